"""Sockets on which plugins are called."""

import asyncio
from pathlib import Path

import pytest

from deviceplugin.plugin_sockets import ServedSocket, answers
from proto.kubelet.deviceplugin_v1beta1_pb2_grpc import DevicePluginServicer


@pytest.mark.timeout(10)  # without a mend the process never ends
@pytest.mark.parametrize("turns", range(1, 5))
async def test_a_socket_whose_start_is_cancelled_at_any_moment_is_served_by_nobody(tmp_path: Path, turns: int) -> None:
    failures = list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    plugin = DevicePluginServicer()  # type: ignore[abstract]  # it is never called
    starting = asyncio.create_task(ServedSocket.start(str(tmp_path / "plugin.sock"), plugin))
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    (ended,) = await asyncio.gather(starting, return_exceptions=True)
    if isinstance(ended, ServedSocket):
        await ended.stop()
    assert not [path for path in tmp_path.iterdir() if answers(str(path))]
    assert not failures
