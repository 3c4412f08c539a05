"""Pods on a GPU in MIG mode, from /filter to what the watch brings back."""

import json
from typing import Any

from proto.annotations import keys
from proto.annotations.node_register import encode_register
from tests.builders import node_json
from tests.scheduler_ext.mig_gpus import mig_device
from tests.scheduler_ext.rig import FAST, Rig, extender_for, running


def mig_node() -> dict[str, Any]:
    node = node_json("n", replicas=7)
    node["metadata"]["annotations"][keys.NODE_REGISTER] = encode_register([mig_device(0)])
    return node


def starts(rig: Rig, pod: str) -> list[int]:
    rows = json.loads(rig.pod(pod)["metadata"]["annotations"][keys.MIG_ALLOCATIONS])
    return [row["placement"]["start"] for row in rows]


async def test_pods_filtered_back_to_back_get_instances_side_by_side() -> None:
    async with running(mig_node()) as rig:
        pods = [rig.add_pod(name, memory_mib=8000) for name in ("a", "b", "c", "d")]
        answers = [await rig.filter(pod, "n") for pod in pods]
        assert [answer["NodeNames"] for answer in answers] == [["n"], ["n"], ["n"], None]
        assert answers[3]["FailedNodes"] == {"n": "CardMigTopologyInfeasible"}
        assert [await rig.bind(pod, "n") for pod in pods[:3]] == ["", "", ""]
        assert [starts(rig, name) for name in ("a", "b", "c")] == [[0], [2], [4]]


async def test_an_extender_that_starts_anew_knows_the_instances_from_the_pods() -> None:
    async with running(mig_node()) as rig:
        first = rig.add_pod("a", memory_mib=8000)
        await rig.filter(first, "n")
        assert await rig.bind(first, "n") == ""
        async with extender_for(rig.server, FAST, synced=True) as anew:
            second = anew.add_pod("b", memory_mib=8000)
            assert await anew.bind(second, "n") == ""
            assert starts(anew, "b") == [2]
