"""Kubelet's half of the device-plugin protocol, as small as the tests need it."""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc

from proto.kubelet import deviceplugin_v1beta1_pb2 as pb
from proto.kubelet import deviceplugin_v1beta1_pb2_grpc as rpc


class TinyKubelet(rpc.RegistrationServicer):
    """Takes registrations on `<root>/device-plugins/kubelet.sock`; empties the folder when it starts."""

    def __init__(self, root: str) -> None:
        self.folder = f"{root}/device-plugins"
        self.registrations: list[pb.RegisterRequest] = []
        self._server: grpc.aio.Server | None = None

    async def Register(self, request: pb.RegisterRequest, context: object) -> pb.Empty:  # noqa: N802
        self.registrations.append(request)
        return pb.Empty()

    async def start(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        self._server = grpc.aio.server()
        rpc.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.folder}/kubelet.sock")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)

    async def registered(self, times: int, seconds: float = 5.0) -> float:
        """How long it took until there were that many registrations."""
        began = time.monotonic()
        await until(lambda: len(self.registrations) >= times, seconds)
        return time.monotonic() - began

    @asynccontextmanager
    async def plugin(self) -> AsyncIterator["rpc.DevicePluginAsyncStub"]:
        options = [("grpc.use_local_subchannel_pool", 1)]
        target = f"unix:{self.folder}/{self.registrations[-1].endpoint}"
        async with grpc.aio.insecure_channel(target, options=options) as channel:
            yield rpc.DevicePluginStub(channel)


@asynccontextmanager
async def kubelet_root() -> AsyncIterator[str]:
    root = tempfile.mkdtemp(prefix="tg", dir="/tmp")
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


async def until(fact: Callable[[], bool], seconds: float = 5.0) -> None:
    """Raises TimeoutError when the fact does not come true."""
    async with asyncio.timeout(seconds):
        while not fact():  # noqa: ASYNC110 - the fact is elsewhere: a file, a peer's memory
            await asyncio.sleep(0.01)
