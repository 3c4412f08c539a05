"""Kubelet's half of the device-plugin protocol, as small as the tests need it."""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from deviceplugin.metrics.metrics import Metrics
from deviceplugin.plugin_calls import KubeletCalls
from proto.kubelet import deviceplugin_v1beta1_pb2 as pb
from proto.kubelet import deviceplugin_v1beta1_pb2_grpc as rpc
from tests.polling import until

CALLS = KubeletCalls(Metrics(now=lambda: 0.0), "slots")


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
        os.makedirs(self.folder, exist_ok=True)
        for name in os.listdir(self.folder):
            os.unlink(f"{self.folder}/{name}")
        self._server = grpc.aio.server()
        rpc.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.folder}/kubelet.sock")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)

    async def registered(self, times: int) -> None:
        """Until there were that many registrations."""
        await until(lambda: len(self.registrations) >= times)

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
