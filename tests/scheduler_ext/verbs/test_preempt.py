"""`/preempt` over real HTTP."""

from typing import Any

from tests.builders import node_json, pod_json
from tests.polling import until
from tests.scheduler_ext.rig import Rig, running


def with_priority(pod: dict[str, Any], priority: int) -> dict[str, Any]:
    pod["spec"]["priority"] = priority
    return pod


async def bound(rig: Rig, name: str, node: str, *, priority: int = 0, memory_mib: int = 1000) -> str:
    """The UID of a pod that was created, and bound to the node."""
    document = pod_json(name, memory_mib=memory_mib)
    if priority:
        rig.server.create({"kind": "PriorityClass", "metadata": {"name": name}, "value": priority})
        document["spec"]["priorityClassName"] = name
    pod = rig.server.create(document)
    assert await rig.bind(pod, node) == ""
    uid = str(pod["metadata"]["uid"])

    async def seen() -> bool:
        answer = await rig.post("/preempt", proposal(with_priority(pod_json("probe"), 1_000_000), {node: [uid]}))
        return bool(answer["NodeNameToMetaVictims"])

    await until(seen)
    return uid


def proposal(pod: dict[str, Any], victims: dict[str, list[str]]) -> dict[str, Any]:
    rows = {node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 1} for node, uids in victims.items()}
    return {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": rows}


async def test_preempt_adds_the_gpu_pods_that_must_go_and_leaves_out_nodes_where_nothing_helps() -> None:
    async with running(node_json("n", replicas=2), node_json("m", replicas=1)) as rig:
        low = await bound(rig, "low", "n", priority=1)
        high = await bound(rig, "high", "n", priority=50)
        peer = await bound(rig, "peer", "m", priority=100)
        pod = with_priority(pod_json("p"), 100)
        answer = await rig.post("/preempt", proposal(pod, {"n": [], "m": [], "nowhere": []}))
        assert answer == {"NodeNameToMetaVictims": {"n": {"Pods": [{"UID": low}], "NumPDBViolations": 1}}}
        answer = await rig.post("/preempt", proposal(pod, {"n": [high], "m": [peer]}))
        assert answer == {"NodeNameToMetaVictims": {"n": {"Pods": [{"UID": high}], "NumPDBViolations": 1}}}


async def test_a_node_on_which_nobody_has_to_go_is_left_out() -> None:
    async with running(node_json("n")) as rig:
        answer = await rig.post("/preempt", proposal(with_priority(pod_json("p"), 100), {"n": []}))
        assert answer == {"NodeNameToMetaVictims": {}}


async def test_preempt_lets_pods_without_gpus_have_their_way() -> None:
    async with running(node_json("n")) as rig:
        answer = await rig.post("/preempt", proposal(pod_json("p", gpus=0), {"n": ["u"]}))
        assert answer == {"NodeNameToMetaVictims": {"n": {"Pods": [{"UID": "u"}], "NumPDBViolations": 1}}}
