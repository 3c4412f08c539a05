"""Edge to kubelet: the device-plugin gRPC server, registration, and the sockets both live on.

Kubelet empties its plugin folder when it starts and forgets every plugin. So both sockets are watched: a new
kubelet socket asks for a registration, a vanished plugin socket for a new server. Kubelet also gives up for good
a plugin whose ListAndWatch broke off, and asks for it no more: so it is registered with again.
Source: pkg/kubelet/cm/devicemanager/plugin/v1beta1/client.go of Kubernetes.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

import grpc

from deviceplugin.allocator import Allocator, CannotAllocate
from deviceplugin.container.edits import ContainerEdits
from deviceplugin.folder_watch import FolderWatch
from deviceplugin.replicas import replica_ids
from deviceplugin.settings import KubeletSettings
from proto.devices import UNKNOWN_NUMA, Device
from proto.kubelet import deviceplugin_v1beta1_pb2 as pb
from proto.kubelet import deviceplugin_v1beta1_pb2_grpc as rpc

log = logging.getLogger(__name__)

API_VERSION = "v1beta1"
SocketIdentity = tuple[int, int, int]
_STOP_SECONDS = 0.2
_UNWATCHED_SECONDS = 0.2
"""Between two looks where the kernel does not tell of changes."""
_FIRST_RETRY_SECONDS = 0.1
_SLOWEST_RETRY_SECONDS = 5.0
_MOST_LOSSES = 3
"""Of the plugin's socket within `_LOSS_SECONDS`; more are another process that serves the same."""
_LOSS_SECONDS = 60.0
_TRUCE_SECONDS = 30.0
"""Two daemons that take the socket from each other at once would have kubelet refuse pods without end."""


class KubeletUnusable(Exception):
    """The plugin's socket cannot be served or kubelet does not take the registration.

    `wait_seconds` is how long to leave it so; None for as long as it was left before, doubled.
    """

    def __init__(self, problem: str, wait_seconds: float | None = None) -> None:
        super().__init__(problem)
        self.wait_seconds = wait_seconds


class DevicePlugin(rpc.DevicePluginServicer):
    """Kubelet's calls, translated."""

    def __init__(self, allocator: Allocator, *, numa_hints: bool = False) -> None:
        self._allocator = allocator
        self._numa_hints = numa_hints
        self._listeners = 0
        self.left_at: float | None = None
        """Since when no ListAndWatch is open, by the loop's clock; None while one is, and before the first."""

    async def GetDevicePluginOptions(self, request: pb.Empty, context: object) -> pb.DevicePluginOptions:  # noqa: ARG002, N802
        return options(self._allocator)

    async def ListAndWatch(self, request: pb.Empty, context: object) -> AsyncIterator[pb.ListAndWatchResponse]:  # noqa: ARG002, N802
        self._listeners, self.left_at = self._listeners + 1, None
        try:
            async for devices in self._allocator.devices():
                yield list_response(devices, numa_hints=self._numa_hints)
        finally:
            self._listeners -= 1
            if not self._listeners:
                self.left_at = asyncio.get_running_loop().time()

    async def GetPreferredAllocation(  # noqa: N802
        self,
        request: pb.PreferredAllocationRequest,
        context: object,  # noqa: ARG002
    ) -> pb.PreferredAllocationResponse:
        answers = [
            pb.ContainerPreferredAllocationResponse(
                deviceIDs=await self._allocator.prefer(
                    container.available_deviceIDs, container.must_include_deviceIDs, container.allocation_size
                )
            )
            for container in request.container_requests
        ]
        return pb.PreferredAllocationResponse(container_responses=answers)

    async def Allocate(  # noqa: N802
        self, request: pb.AllocateRequest, context: grpc.aio.ServicerContext[pb.AllocateRequest, pb.AllocateResponse]
    ) -> pb.AllocateResponse:
        try:
            answers = [
                allocate_response(await self._allocator.allocate(container.devices_ids))
                for container in request.container_requests
            ]
        except CannotAllocate as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return pb.AllocateResponse(container_responses=answers)

    async def PreStartContainer(  # noqa: N802
        self,
        request: pb.PreStartContainerRequest,
        context: grpc.aio.ServicerContext[pb.PreStartContainerRequest, pb.PreStartContainerResponse],
    ) -> pb.PreStartContainerResponse:
        try:
            await self._allocator.pre_start(request.devices_ids)
        except CannotAllocate as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return pb.PreStartContainerResponse()


def list_response(devices: Sequence[Device], *, numa_hints: bool) -> pb.ListAndWatchResponse:
    """Every replica of every GPU.

    With hints, kubelet's topology manager may refuse a pod whose GPUs the extender has already chosen, or choose
    others, so they are for nodes whose CPU and memory managers must know them. An unknown NUMA node is no hint.
    """
    return pb.ListAndWatchResponse(
        devices=[
            pb.Device(
                ID=replica,
                health="Healthy" if device.healthy else "Unhealthy",
                topology=_hint(device) if numa_hints else None,
            )
            for device in devices
            for replica in replica_ids(device)
        ]
    )


def _hint(device: Device) -> pb.TopologyInfo | None:
    if device.numa == UNKNOWN_NUMA:
        return None
    return pb.TopologyInfo(nodes=[pb.NUMANode(ID=device.numa)])


def allocate_response(edits: ContainerEdits) -> pb.ContainerAllocateResponse:
    """The edits in kubelet's words."""
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


class PluginServer:
    """One resource, served and registered through every restart of kubelet."""

    def __init__(
        self,
        settings: KubeletSettings,
        allocator: Allocator,
        *,
        restarted: Callable[[], None] = lambda: None,
        told: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """`restarted` is called before a kubelet not met before is registered with, `told` after each try."""
        self._settings = settings
        self._allocator = allocator
        self._restarted = restarted
        self._told = told
        self._watch = FolderWatch(*os.path.split(settings.kubelet_socket))
        self._met: SocketIdentity | None = None
        self._plugin = DevicePlugin(allocator, numa_hints=settings.numa_hints)
        self._server: grpc.aio.Server | None = None
        self._own: SocketIdentity | None = None
        self._answered: SocketIdentity | None = None
        self._losses: list[float] = []

    @property
    def is_registered(self) -> bool:
        """With the kubelet that runs now."""
        return self._answered is not None and self._answered == identity(self._settings.kubelet_socket)

    async def run(self) -> None:
        """Until cancelled; then the plugin's socket is gone."""
        delay, problem, last = _FIRST_RETRY_SECONDS, "", None
        try:
            while True:
                kubelet = identity(self._settings.kubelet_socket)
                if kubelet != last:
                    # It lists its pods a second after it serves this socket, and refuses for good those whose GPUs
                    # nobody has registered by then.
                    last, delay = kubelet, _FIRST_RETRY_SECONDS
                try:
                    await self._follow(kubelet)
                    delay, problem = _FIRST_RETRY_SECONDS, ""
                    pause = self._settings.poll_seconds
                except KubeletUnusable as error:
                    if str(error) != problem:
                        problem = str(error)
                        log.warning("%s; trying again", problem)
                    pause = delay = error.wait_seconds or min(2 * delay, _SLOWEST_RETRY_SECONDS)
                await self._pause(kubelet, pause)
        finally:
            self._watch.close()
            await self._stop()

    async def _follow(self, kubelet: SocketIdentity | None) -> None:
        """Serve where the plugin's socket is missing, register where kubelet's is new. Raises KubeletUnusable."""
        if kubelet is None:
            return
        if self._own is None or identity(self._settings.plugin_socket) != self._own:
            was_taken = self._own is not None and kubelet == self._answered
            await self._stop()
            if was_taken:
                self._note_loss()
            await self._start()
        if kubelet == self._answered and self._is_given_up():
            log.warning("kubelet listens no more to %s; registering again", self._settings.resource_name)
            self._answered = None
        if kubelet != self._answered:
            if kubelet != self._met:
                self._met = kubelet
                self._restarted()
            self._plugin.left_at = None
            try:
                await register(self._settings, options(self._allocator))
            except KubeletUnusable:
                self._told(False)
                raise
            self._answered = kubelet
            log.info("registered %s with kubelet", self._settings.resource_name)
            self._told(True)

    def _note_loss(self) -> None:
        """Raises KubeletUnusable where it happens again and again."""
        now = asyncio.get_running_loop().time()
        self._losses = [*(at for at in self._losses if now - at < _LOSS_SECONDS), now]
        if len(self._losses) > _MOST_LOSSES:
            path, resource = self._settings.plugin_socket, self._settings.resource_name
            problem = f"{path} is replaced again and again: another process serves {resource}; remove it from this node"
            raise KubeletUnusable(problem, _TRUCE_SECONDS)

    def _is_given_up(self) -> bool:
        left_at = self._plugin.left_at
        return left_at is not None and asyncio.get_running_loop().time() - left_at >= self._settings.unheard_seconds

    async def _start(self) -> None:
        path = self._settings.plugin_socket
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        rpc.add_DevicePluginServicer_to_server(self._plugin, server)
        try:
            _remove(path)
            server.add_insecure_port(f"unix:{path}")
            await server.start()
        except (RuntimeError, OSError) as error:
            raise KubeletUnusable(f"cannot serve on {path}: {error}") from error
        self._server, self._own, self._answered = server, identity(path), None

    async def _stop(self) -> None:
        server, self._server, self._own, self._answered = self._server, None, None, None
        if server is not None:
            await server.stop(_STOP_SECONDS)
            with suppress(OSError):  # the folder may be read-only or gone; kubelet empties it at its next start
                _remove(self._settings.plugin_socket)

    async def _pause(self, kubelet: SocketIdentity | None, seconds: float) -> None:
        """Up to `seconds`, less when kubelet's socket changes meanwhile."""
        clock, poll = asyncio.get_running_loop().time, self._settings.poll_seconds
        ends_at = clock() + seconds
        while (left := ends_at - clock()) > 0:
            look = poll if self._watch.begin() else min(poll, _UNWATCHED_SECONDS)
            # It may have come before the watch began.
            if identity(self._settings.kubelet_socket) != kubelet:
                return
            await self._watch.wait(min(left, look))


async def register(settings: KubeletSettings, plugin: pb.DevicePluginOptions) -> None:
    """One Register call. Raises KubeletUnusable."""
    # A channel of its own: a shared one would sit out gRPC's back-off after kubelet's restart.
    own_pool = [("grpc.use_local_subchannel_pool", 1)]
    request = pb.RegisterRequest(
        version=API_VERSION, endpoint=settings.endpoint, resource_name=settings.resource_name, options=plugin
    )
    async with grpc.aio.insecure_channel(f"unix:{settings.kubelet_socket}", options=own_pool) as channel:
        try:
            await rpc.RegistrationStub(channel).Register(request, timeout=settings.register_seconds)
        except grpc.aio.AioRpcError as error:
            raise KubeletUnusable(
                f"kubelet did not take the registration on {settings.kubelet_socket}: {error.details()}"
            ) from error


def identity(path: str) -> SocketIdentity | None:
    """Device, inode and time of creation, because inodes are used again at once; None when there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def options(allocator: Allocator) -> pb.DevicePluginOptions:
    """What kubelet is told to call."""
    return pb.DevicePluginOptions(
        get_preferred_allocation_available=True, pre_start_required=allocator.pre_start_required
    )


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
