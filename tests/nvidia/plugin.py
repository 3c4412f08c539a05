"""NVIDIA's own device plugin as a process, with the kubelet that it registers with.

It has one list of news for all readers, so that only one may watch.
"""

import asyncio
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Self

import grpc

from proto.kubelet import deviceplugin_v1beta1_pb2 as pb
from proto.kubelet import deviceplugin_v1beta1_pb2_grpc as rpc
from tests.nvidia.driver import Driver
from tests.nvidia.programs import Programs

_SOCKETS = "/var/lib/kubelet/device-plugins"
_START_SECONDS = 60.0


class _Registry(rpc.RegistrationServicer):
    def __init__(self) -> None:
        self.endpoints: asyncio.Queue[str] = asyncio.Queue()

    async def Register(self, request: pb.RegisterRequest, context: object) -> pb.Empty:  # noqa: N802
        await self.endpoints.put(request.endpoint)
        return pb.Empty()


class PluginEnded(Exception):
    """NVIDIA's plugin crashed; the last lines of its log."""


class NvidiasPlugin:
    """`stub` calls the plugin; `options` are its own."""

    stub: "rpc.DevicePluginAsyncStub"

    def __init__(self, programs: Programs, driver: Driver, *options: str) -> None:
        self._driver = driver
        self._command = [programs.path("nvidia-device-plugin"), "--device-discovery-strategy=nvml", *options]
        self._registry, self._server = _Registry(), grpc.aio.server()
        self._sockets = Path(tempfile.mkdtemp(prefix="nvidia-", dir="/tmp"))
        self._log = driver.folder / "plugin.log"

    async def __aenter__(self) -> Self:
        rpc.add_RegistrationServicer_to_server(self._registry, self._server)
        self._server.add_insecure_port(f"unix:{self._sockets}/kubelet.sock")
        await self._server.start()
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()
        await self._server.stop(0)
        shutil.rmtree(self._sockets)

    async def start(self) -> None:
        """Raises PluginEnded."""
        bound = {_SOCKETS: self._sockets, "/dev": self._driver.root / "dev"}
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._driver.inside(*self._command, bound=bound), env=self._driver.environment, stdout=log, stderr=log
            )
        registered = asyncio.create_task(self._registry.endpoints.get())
        ended = asyncio.create_task(self._process.wait())
        await asyncio.wait((registered, ended), timeout=_START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not registered.done():
            registered.cancel()
            raise self.ended()
        self._channel = grpc.aio.insecure_channel(
            f"unix:{self._sockets}/{registered.result()}", options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self.stub = rpc.DevicePluginStub(self._channel)
        self._updates = aiter(self.stub.ListAndWatch(pb.Empty(), wait_for_ready=True))
        await anext(self._updates)

    async def kill(self) -> None:
        await self._channel.close(None)
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()

    def ended(self) -> PluginEnded:
        return PluginEnded(self._log.read_text(errors="replace")[-2000:])

    async def allocate(self, *uuids: str) -> pb.ContainerAllocateResponse:
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=uuids)])
        answer = await self.stub.Allocate(request)
        return answer.container_responses[0]

    async def prefers(self, size: int, free: list[str], *, seconds: float) -> list[str]:
        """Its choice among the free GPUs. Raises grpc.aio.AioRpcError, also where it takes longer."""
        wanted = pb.ContainerPreferredAllocationRequest(available_deviceIDs=free, allocation_size=size)
        request = pb.PreferredAllocationRequest(container_requests=[wanted])
        answer = await self.stub.GetPreferredAllocation(request, timeout=seconds)
        return list(answer.container_responses[0].deviceIDs)

    def unhealthy(self, sentinel: str) -> asyncio.Task[set[str]]:
        """Its unhealthy GPUs, as soon as this one is among them."""
        return asyncio.create_task(self._unhealthy(sentinel))

    async def _unhealthy(self, sentinel: str) -> set[str]:
        async for update in self._updates:
            ill = {device.ID for device in update.devices if device.health != "Healthy"}
            if sentinel in ill:
                return ill
        raise self.ended()
