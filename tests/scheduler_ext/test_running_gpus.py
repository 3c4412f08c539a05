"""What must not free the GPU of a container that runs."""

from collections.abc import Callable

import pytest

from proto.annotations import keys
from tests.builders import node_json
from tests.polling import until
from tests.scheduler_ext.rig import Rig, running


def failed(rig: Rig) -> None:
    """As the garbage collector of pods does on a node that is out of service, before it deletes them by force."""
    rig.server.patch("pods", "one", {"status": {"phase": "Failed"}}, namespace="default", subresource="status")


def emptied(rig: Rig) -> None:
    rewritten(rig, ";")


def moved_to_another_node(rig: Rig) -> None:
    rewritten(rig, "GPU-elsewhere,NVIDIA,1000,10:;")


def rewritten(rig: Rig, value: str) -> None:
    body = {"metadata": {"annotations": {keys.DEVICES_ALLOCATED: value}}}
    rig.server.patch("pods", "one", body, namespace="default")


@pytest.mark.parametrize("happens", [failed, emptied, moved_to_another_node])
async def test_a_running_containers_gpu_is_not_freed(happens: Callable[[Rig], None]) -> None:
    async with running(node_json("n", gpus=1, replicas=1)) as rig:
        one = rig.add_pod("one")
        assert (await rig.filter(one, "n"))["NodeNames"]
        assert not await rig.bind(one, "n")
        states = [{"name": "main", "state": {"running": {}}}]
        body = {"status": {"phase": "Running", "containerStatuses": states}}
        rig.server.patch("pods", "one", body, namespace="default", subresource="status")
        happens(rig)
        rig.server.create(node_json("later"))

        async def later_is_known() -> bool:
            return bool((await rig.filter(rig.pod("probe"), "later"))["NodeNames"])

        rig.add_pod("probe")
        await until(later_is_known)
        rig.server.drop_watches()
        assert not (await rig.filter(rig.add_pod("two"), "n"))["NodeNames"]
