import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proto.annotations.keys import DEVICES_ALLOCATED, NODE_REGISTER
from proto.kubernetes.client import ApiServer
from simulation.apiserver import EmbeddedApiServer
from simulation.watching import ClusterView

REGISTER = json.dumps(
    [{"id": "GPU-a", "count": 2, "devmem": 1000, "devcore": 100, "type": "NVIDIA T4", "mode": "hami-core"}]
)
LONGEST_SECONDS = 60.0


def _nothing() -> None:
    pass


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedApiServer]:
    async with EmbeddedApiServer() as server:
        server.create({"kind": "Node", "metadata": {"name": "node-1", "annotations": {NODE_REGISTER: REGISTER}}})
        yield server


@pytest.fixture
async def view(server: EmbeddedApiServer) -> AsyncIterator[ClusterView]:
    folder = Path(tempfile.mkdtemp(prefix="tg", dir="/tmp"))
    (folder / "kubeconfig").write_text(server.kubeconfig())
    api = await ApiServer.connect(str(folder / "kubeconfig"))
    view = ClusterView(api)
    view.start()
    yield view
    await view.stop()
    await api.close()
    shutil.rmtree(folder)


async def _keep_changing(server: EmbeddedApiServer) -> None:
    turn = 0
    while True:
        turn += 1
        server.patch("nodes", "node-1", {"metadata": {"labels": {"turn": str(turn)}}})
        await asyncio.sleep(0.02)


async def test_what_never_comes_to_rest_is_given_up(server: EmbeddedApiServer, view: ClusterView) -> None:
    changing = asyncio.create_task(_keep_changing(server))
    assert not await view.wait_for_quiet(1.0, 1.2)
    changing.cancel()
    assert await view.wait_for_quiet(0.2, LONGEST_SECONDS)


async def test_a_condition_that_never_holds_is_given_up(view: ClusterView) -> None:
    assert await view.wait_until(lambda: "node-1" in view.nodes, _nothing, LONGEST_SECONDS)
    assert not await view.wait_until(lambda: "node-2" in view.nodes, _nothing, 0.3)


async def test_an_over_booked_moment_is_remembered(server: EmbeddedApiServer, view: ClusterView) -> None:
    assert await view.wait_until(lambda: "node-1" in view.nodes, _nothing, LONGEST_SECONDS)
    decided = {DEVICES_ALLOCATED: "GPU-a,NVIDIA,600,10:;"}
    spec = {"nodeName": "node-1", "containers": [{"name": "c", "image": "i"}]}
    for name in ("p", "q"):
        server.create({"kind": "Pod", "metadata": {"name": name, "annotations": decided}, "spec": spec})
    assert await view.wait_until(lambda: bool(view.overbooked), _nothing, LONGEST_SECONDS)
    server.delete("pods", "q", namespace="default")
    assert await view.wait_until(lambda: "q" not in view.pods, _nothing, LONGEST_SECONDS)
    assert list(view.overbooked) == ["GPU GPU-a: 1200 of 1000 MiB handed out"]


async def test_a_change_at_the_moment_when_the_time_is_over_does_not_make_the_wait_longer(view: ClusterView) -> None:
    change = view._changed.set
    for _ in range(20):
        asyncio.get_running_loop().call_later(0.02, change)
        async with asyncio.timeout(LONGEST_SECONDS / 20):
            assert not await view.wait_for_quiet(10.0, 0.02)
