"""Serves kubelet's calls to a device plugin: translates them for an allocator, counts and times them (edge)."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import grpc

from deviceplugin.changes import Changes
from deviceplugin.container.edits import ContainerEdits
from deviceplugin.metrics.metrics import KubeletCall, Metrics, Outcome
from deviceplugin.replicas import replica_ids
from proto.devices import UNKNOWN_NUMA, Device
from proto.kubelet import deviceplugin_v1beta1_pb2 as pb
from proto.kubelet import deviceplugin_v1beta1_pb2_grpc as rpc


class CannotAllocate(Exception):
    """This call is refused; the text goes to the pod's events."""


class Allocator(Protocol):
    """Answers kubelet's calls about the GPUs."""

    def devices(self) -> Sequence[Device]:
        """Returns the GPUs as they are now."""

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Returns the replica ids on the GPUs decided for the container of the call; empty if unknown."""

    async def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        """Returns the edits for the container of the call. Raises CannotAllocate."""

    @property
    def pre_start_required(self) -> bool:
        """Returns whether `pre_start` must be called before each start of a container."""

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Prepares the start of a container that holds these ids. Raises CannotAllocate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaHints:
    """The NUMA nodes that kubelet's Topology Manager reads of each replica.

    Kubelet counts replicas, not GPUs, and takes the lowest NUMA node that has enough of them and of CPUs. So the free
    replicas of a NUMA node none of whose GPUs has room name no NUMA node: kubelet then does not choose that one. A
    replica that a container holds keeps what it was given with, because kubelet judges running pods again after its
    restart: one that was given without a NUMA node is near all of them. A NUMA node without CPUs is never named:
    kubelet would refuse each pod with CPUs of its own there.
    Source: pkg/kubelet/cm/devicemanager/topology_hints.go of Kubernetes.

    `zones` are the host's NUMA nodes with CPUs, empty if they are unknown. `held` has the NUMA nodes of the
    replicas that containers hold.
    """

    zones: frozenset[int] = frozenset()
    closed: frozenset[int] = frozenset()
    """The NUMA nodes none of whose GPUs has room."""
    held: Mapping[str, frozenset[int]] = field(default_factory=dict)

    def of(self, replica: str, device: Device) -> Sequence[int]:
        """Returns the NUMA nodes of a replica; empty for none."""
        held = self.held.get(replica)
        if held is not None:
            return sorted(held or self.zones)
        has_cpus = device.numa in self.zones if self.zones else device.numa != UNKNOWN_NUMA
        return (device.numa,) if has_cpus and device.numa not in self.closed else ()


async def _no_hints() -> NumaHints | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedHints:
    """What makes kubelet's list of replicas change beside the allocator's GPUs. `hints` returns None for none."""

    changes: Changes
    hints: Callable[[], Awaitable[NumaHints | None]] = _no_hints


@dataclass(frozen=True, slots=True)
class KubeletCalls:
    """The calls about one resource. `strategy` is how its containers are given their GPUs."""

    metrics: Metrics
    strategy: str

    @contextmanager
    def timed(self, call: KubeletCall) -> Iterator[None]:
        """Times what is done in the block."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.metrics.called(call, time.perf_counter() - began)

    @contextmanager
    def counted(self, call: KubeletCall) -> Iterator[None]:
        """Times what is done in the block, and counts how it ends."""
        outcome = Outcome.FAILED
        try:
            with self.timed(call):
                yield
            outcome = Outcome.OK
        except CannotAllocate:
            outcome = Outcome.REFUSED
            raise
        finally:
            self.metrics.allocated(call, outcome, self.strategy)


class DevicePlugin(rpc.DevicePluginServicer):
    """Kubelet's calls, translated."""

    def __init__(self, allocator: Allocator, calls: KubeletCalls, offers: ListedHints) -> None:
        self._allocator = allocator
        self._calls = calls
        self._offers = offers
        self._listeners = 0
        self.left_at: float | None = None
        """The time since when no ListAndWatch is open, by the loop's clock; None while one is, and before the first."""

    async def GetDevicePluginOptions(  # noqa: N802
        self,
        request: pb.Empty,  # noqa: ARG002
        context: grpc.aio.ServicerContext[pb.Empty, pb.DevicePluginOptions],  # noqa: ARG002
    ) -> pb.DevicePluginOptions:
        return options(self._allocator)

    async def ListAndWatch(self, request: pb.Empty, context: object) -> AsyncIterator[pb.ListAndWatchResponse]:  # noqa: ARG002, N802
        self._listeners, self.left_at = self._listeners + 1, None
        try:
            async for offer in self._offers.changes.answers(self._offer):
                yield offer
        finally:
            self._listeners -= 1
            if not self._listeners:
                self.left_at = asyncio.get_running_loop().time()

    async def _offer(self) -> pb.ListAndWatchResponse:
        hints = await self._offers.hints()
        return list_response(self._allocator.devices(), hints)

    async def GetPreferredAllocation(  # noqa: N802
        self,
        request: pb.PreferredAllocationRequest,
        context: object,  # noqa: ARG002
    ) -> pb.PreferredAllocationResponse:
        answers = [await self._preferred(container) for container in request.container_requests]
        return pb.PreferredAllocationResponse(container_responses=answers)

    async def _preferred(self, wish: pb.ContainerPreferredAllocationRequest) -> pb.ContainerPreferredAllocationResponse:
        with self._calls.timed(KubeletCall.PREFER):
            ids = await self._allocator.prefer(
                wish.available_deviceIDs, wish.must_include_deviceIDs, wish.allocation_size
            )
        return pb.ContainerPreferredAllocationResponse(deviceIDs=ids)

    async def Allocate(  # noqa: N802
        self, request: pb.AllocateRequest, context: grpc.aio.ServicerContext[pb.AllocateRequest, pb.AllocateResponse]
    ) -> pb.AllocateResponse:
        try:
            answers = [await self._allocated(container.devices_ids) for container in request.container_requests]
        except CannotAllocate as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return pb.AllocateResponse(container_responses=answers)

    async def _allocated(self, ids: Sequence[str]) -> pb.ContainerAllocateResponse:
        """Raises CannotAllocate."""
        with self._calls.counted(KubeletCall.ALLOCATE):
            return allocate_response(await self._allocator.allocate(ids))

    async def PreStartContainer(  # noqa: N802
        self,
        request: pb.PreStartContainerRequest,
        context: grpc.aio.ServicerContext[pb.PreStartContainerRequest, pb.PreStartContainerResponse],
    ) -> pb.PreStartContainerResponse:
        try:
            with self._calls.counted(KubeletCall.PRE_START):
                await self._allocator.pre_start(request.devices_ids)
        except CannotAllocate as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return pb.PreStartContainerResponse()


def list_response(devices: Sequence[Device], hints: NumaHints | None) -> pb.ListAndWatchResponse:
    """Returns every replica of every GPU; without hints, kubelet's Topology Manager does not look at them."""
    return pb.ListAndWatchResponse(
        devices=[
            pb.Device(
                ID=replica,
                health="Healthy" if device.healthy else "Unhealthy",
                topology=None if hints is None else _topology(hints.of(replica, device)),
            )
            for device in devices
            for replica in replica_ids(device)
        ]
    )


def _topology(zones: Sequence[int]) -> pb.TopologyInfo | None:
    return pb.TopologyInfo(nodes=[pb.NUMANode(ID=zone) for zone in zones]) if zones else None


def allocate_response(edits: ContainerEdits) -> pb.ContainerAllocateResponse:
    """Returns the edits as kubelet's messages."""
    return pb.ContainerAllocateResponse(
        envs=edits.env,
        mounts=[
            pb.Mount(container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only)
            for mount in (*edits.mounts, *edits.driver_mounts)
        ],
        devices=[
            pb.DeviceSpec(container_path=node.path, host_path=node.host_path or node.path, permissions="rw")
            for node in edits.devices
        ],
        annotations=edits.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in edits.cdi_devices],
    )


def options(allocator: Allocator) -> pb.DevicePluginOptions:
    """Returns the options, which name the calls that kubelet must make."""
    return pb.DevicePluginOptions(
        get_preferred_allocation_available=True, pre_start_required=allocator.pre_start_required
    )
