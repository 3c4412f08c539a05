"""The container runtime, asked over a real socket."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from grpc import StatusCode, aio

from deviceplugin.mode.trial import ask_enable_cdi
from proto.cri import runtime_v1_pb2 as pb
from proto.cri.runtime_v1_pb2_grpc import RuntimeServiceServicer, add_RuntimeServiceServicer_to_server
from tests.deviceplugin.registration import kubelet_root


class Runtime(RuntimeServiceServicer):
    config = '{"enableCDI": false}'

    async def Status(  # noqa: N802 - gRPC's name
        self, request: pb.StatusRequest, context: "aio.ServicerContext[pb.StatusRequest, pb.StatusResponse]"
    ) -> pb.StatusResponse:
        if not self.config:
            await context.abort(StatusCode.UNIMPLEMENTED, "unknown service runtime.v1.RuntimeService")
        return pb.StatusResponse(info={"config": self.config} if request.verbose else {})


@pytest.fixture
async def socket() -> AsyncIterator[str]:
    async with kubelet_root() as root:
        server = aio.server()
        add_RuntimeServiceServicer_to_server(Runtime(), server)
        server.add_insecure_port(f"unix:{root}/c.sock")
        await server.start()
        yield f"{root}/c.sock"
        await server.stop(None)


async def test_the_runtime_tells_its_switch(socket: str) -> None:
    assert await ask_enable_cdi(socket) is False


async def test_nothing_is_known_where_there_is_no_socket_no_listener_or_no_such_service(
    socket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dead.sock").touch()
    monkeypatch.setattr(Runtime, "config", "")
    for path in (f"{tmp_path}/none.sock", f"{tmp_path}/dead.sock", socket):
        assert await ask_enable_cdi(path) is None
