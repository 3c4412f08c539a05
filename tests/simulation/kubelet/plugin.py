"""A small real device plugin: four ids, gRPC over a unix socket, every call written down."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from grpc import StatusCode, aio

from proto.kubelet import deviceplugin_v1beta1_pb2 as wire
from proto.kubelet.deviceplugin_v1beta1_pb2_grpc import (
    DevicePluginServicer,
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)

RESOURCE = "example.com/gpu"
IDS = ("a-0", "a-1", "b-0", "b-1")


class SmallPlugin(DevicePluginServicer):
    def __init__(
        self,
        directory: Path,
        *,
        preferred: tuple[str, ...] = (),
        pre_start: bool = False,
        numa: Mapping[str, int] | None = None,
        endpoint: str = "small.sock",
    ) -> None:
        self._directory = directory
        self._endpoint = endpoint
        self._numa = dict(numa or {})
        self.preferred = preferred
        self.pre_start = pre_start
        self.pre_start_failures = 0
        self.refuse_with = ""
        self.answers = asyncio.Event()
        """Cleared: whoever asks for devices waits."""
        self.answers.set()
        self.cdi_devices: tuple[str, ...] = ()
        self.files = True
        """Whether its answers name files, which only the stand-in can do without."""
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.health = dict.fromkeys(IDS, "Healthy")
        self.followed = 0
        """How often kubelet asked for the devices."""
        self._health_changed = asyncio.Event()
        self._server: aio.Server | None = None

    @property
    def socket(self) -> Path:
        return self._directory / self._endpoint

    async def start(self) -> None:
        self._server = aio.server()
        add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()
        async with aio.insecure_channel(f"unix:{self._directory / 'kubelet.sock'}") as channel:
            request = wire.RegisterRequest(version="v1beta1", endpoint=self._endpoint, resource_name=RESOURCE)
            await RegistrationStub(channel).Register(request)

    async def stop(self, grace_seconds: float = 0) -> None:
        if self._server is not None:
            await self._server.stop(grace_seconds)
            self._server = None

    def set_health(self, device: str, health: str) -> None:
        self.health[device] = health
        self._health_changed.set()

    async def GetDevicePluginOptions(self, request: wire.Empty, context: Any) -> wire.DevicePluginOptions:  # noqa: N802
        return wire.DevicePluginOptions(
            pre_start_required=self.pre_start, get_preferred_allocation_available=bool(self.preferred)
        )

    async def ListAndWatch(self, request: wire.Empty, context: Any) -> AsyncIterator[wire.ListAndWatchResponse]:  # noqa: N802
        self.followed += 1
        while True:
            yield wire.ListAndWatchResponse(devices=[self._device(name) for name in self.health])
            await self._health_changed.wait()
            self._health_changed.clear()

    def _device(self, name: str) -> wire.Device:
        nodes = [wire.NUMANode(ID=self._numa[name])] if name in self._numa else []
        topology = wire.TopologyInfo(nodes=nodes) if nodes else None
        return wire.Device(ID=name, health=self.health[name], topology=topology)

    async def GetPreferredAllocation(  # noqa: N802
        self, request: wire.PreferredAllocationRequest, context: Any
    ) -> wire.PreferredAllocationResponse:
        asked = request.container_requests[0]
        self.calls.append(("GetPreferredAllocation", tuple(asked.available_deviceIDs)))
        wished = [name for name in self.preferred if name in asked.available_deviceIDs][: asked.allocation_size]
        return wire.PreferredAllocationResponse(
            container_responses=[wire.ContainerPreferredAllocationResponse(deviceIDs=wished)]
        )

    async def Allocate(self, request: wire.AllocateRequest, context: Any) -> wire.AllocateResponse:  # noqa: N802
        ids = tuple(request.container_requests[0].devices_ids)
        self.calls.append(("Allocate", ids))
        await self.answers.wait()
        if self.refuse_with:
            await context.abort(StatusCode.FAILED_PRECONDITION, self.refuse_with)
        answer = wire.ContainerAllocateResponse(
            envs={"VISIBLE": ",".join(ids), "LIMIT": "from-plugin"},
            mounts=[wire.Mount(container_path="/lib", host_path="/host/lib", read_only=True)] if self.files else [],
            devices=[wire.DeviceSpec(container_path="/dev/x0", host_path="/dev/x0", permissions="rw")] * self.files,
            annotations={"note": "kept"},
            cdi_devices=[wire.CDIDevice(name=name) for name in self.cdi_devices],
        )
        return wire.AllocateResponse(container_responses=[answer])

    async def PreStartContainer(  # noqa: N802
        self, request: wire.PreStartContainerRequest, context: Any
    ) -> wire.PreStartContainerResponse:
        self.calls.append(("PreStartContainer", tuple(request.devices_ids)))
        if self.pre_start_failures:
            self.pre_start_failures -= 1
            await context.abort(StatusCode.UNAVAILABLE, "whose ids are these?")
        return wire.PreStartContainerResponse()
