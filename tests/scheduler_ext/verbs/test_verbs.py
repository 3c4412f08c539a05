"""The verbs beside `/filter` and `/bind`, and what happens to pods that wait, over real HTTP."""

import json
from typing import Any

from proto.annotations import keys
from scheduler_ext.policies import parse_node_policy
from scheduler_ext.requests import RequestSettings
from scheduler_ext.settings import FilterReturns
from simulation.apiserver import Fault
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


async def test_filter_can_offer_several_nodes_and_reserves_on_each_until_kube_scheduler_has_chosen() -> None:
    async with running(node_json("a", slots=1), node_json("b"), filter_returns=FilterReturns.ALL) as rig:
        pod, late = rig.add_pod("p"), rig.add_pod("late")
        assert (await rig.filter(pod, "b", "a", "nowhere"))["NodeNames"] == ["b", "a"]
        answer = await rig.filter(late, "a", "nowhere")
        assert answer["FailedNodes"] == {"a": "CardTimeSlicingExhausted"}
        assert answer["FailedAndUnresolvableNodes"] == {"nowhere": "node unregistered"}
        assert await rig.bind(pod, "b") == ""
        assert rig.pod("p")["metadata"]["annotations"][keys.DEVICES_ALLOCATED] == "GPU-b-0,NVIDIA,1000,0:;"
        assert (await rig.filter(late, "a"))["NodeNames"] == ["a"]
        assert await rig.bind(late, "a") == ""


async def test_what_was_offered_is_remembered_of_a_pod_with_a_warning_too() -> None:
    async with running(node_json("a"), node_json("b"), filter_returns=FilterReturns.ALL) as rig:
        document = pod_json("p")
        document["metadata"]["annotations"] = {keys.NODE_POLICY: "fullest"}
        await rig.filter(rig.server.create(document), "a", "b")
        account = json.loads((await rig.status("/debug/explain?pod=p"))[1])
        assert account["said"] == "2 nodes fit, kube-scheduler chooses"


async def test_prioritize_scores_by_our_order_of_nodes() -> None:
    async with running(node_json("used"), node_json("empty"), filter_returns=FilterReturns.ALL) as rig:
        assert await rig.bind(rig.add_pod("first"), "used") == ""
        body = {"Pod": pod_json("p"), "Nodes": None, "NodeNames": ["empty", "used", "nowhere"]}
        assert await rig.post("/prioritize", body) == [
            {"Host": "empty", "Score": 1},
            {"Host": "used", "Score": 10},
            {"Host": "nowhere", "Score": 0},
        ]
        body["Pod"] = pod_json("cpu", gpus=0)
        assert {row["Score"] for row in await rig.post("/prioritize", body)} == {0}


async def test_pods_without_gpus_go_first_where_gpus_do_not_need_the_cpu() -> None:
    """With `fgd`, and as far as it is known which pods usually come."""
    nodes = [node_json("gpus"), node_json("spare"), node_json("first"), node_json("cpus", gpus=0)]
    for node, cpu in zip(nodes, ("8", "16", "16", "16"), strict=True):
        node["status"]["allocatable"] |= {"cpu": cpu, "memory": "64Gi"}
    asks = {"cpu": "8", "memory": "1Gi"}
    usual = pod_json("usual", memory_mib=0)
    usual["spec"]["containers"][0]["resources"]["requests"] = {**asks}
    cpu_pod = pod_json("cpu", gpus=0)
    cpu_pod["spec"]["containers"][0]["resources"] = {"requests": {**asks}}
    body = {"Pod": cpu_pod, "NodeNames": ["gpus", "spare", "cpus", "nowhere"]}
    for policy, scores in (("fgd", [0, 10, 10, 10]), ("binpack", [0, 0, 0, 0])):
        requests = RequestSettings(node_policy=parse_node_policy(policy))
        async with running(*nodes, requests=requests) as rig:
            assert await rig.bind(rig.server.create(usual), "first") == ""
            rig.server.patch(
                "pods", "usual", {"status": {"phase": "Running"}}, namespace="default", subresource="status"
            )

            async def scored(rig: Rig = rig, scores: list[int] = scores) -> bool:
                answer = await rig.post("/prioritize-without-gpus", body)
                return [row["Score"] for row in answer] == scores

            await until(scored)
            answer = await rig.post("/prioritize-without-gpus", {**body, "Pod": pod_json("p")})
            assert [row["Score"] for row in answer] == [0, 0, 0, 0]


async def test_preempt_adds_the_gpu_pods_that_must_go_and_leaves_out_nodes_where_nothing_helps() -> None:
    async with running(node_json("n", slots=2), node_json("m", slots=1)) as rig:
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


async def test_a_waiting_pod_is_nudged_as_soon_as_there_is_room() -> None:
    async with running(node_json("n", slots=1)) as rig:
        first, waiting = rig.add_pod("first"), rig.add_pod("waiting")
        assert await rig.bind(first, "n") == ""
        assert (await rig.filter(waiting, "n"))["NodeNames"] is None
        assert keys.NUDGE not in rig.pod("waiting")["metadata"].get("annotations", {})
        rig.server.delete("pods", "first", namespace="default")

        async def nudged() -> bool:
            return keys.NUDGE in rig.pod("waiting")["metadata"].get("annotations", {})

        await until(nudged)
        assert (await rig.filter(waiting, "n"))["NodeNames"] == ["n"]


async def fits(rig: Rig, pod: dict[str, Any]) -> bool:
    return bool((await rig.filter(pod, "n"))["NodeNames"])


async def test_a_pod_made_anew_under_the_name_is_not_nudged_and_the_old_one_no_longer_waits() -> None:
    async with running(node_json("n", slots=1)) as rig:
        first, anew = rig.add_pod("first"), rig.add_pod("waiting")
        assert await rig.bind(first, "n") == ""
        earlier = anew | {"metadata": anew["metadata"] | {"uid": "11111111-2222-4333-8444-555555555555"}}
        assert (await rig.filter(earlier, "n"))["NodeNames"] is None

        async def waiting(count: str) -> bool:
            async with rig.http.get(rig.metrics_url + "/metrics") as response:
                return f"topogpu_waiting_pods {count}\n" in await response.text()

        assert await waiting("1.0")
        rig.server.delete("pods", "first", namespace="default")
        await until(lambda: fits(rig, anew))
        await until(lambda: waiting("0.0"))
        assert keys.NUDGE not in rig.pod("waiting")["metadata"].get("annotations", {})


async def test_a_node_that_is_cordoned_or_not_ready_is_seen_at_once() -> None:
    async with running(node_json("n")) as rig:
        cordon = {"metadata": {"annotations": {keys.DEVICE_CORDON: "GPU-n-0"}}}
        rig.server.patch("nodes", "n", cordon)

        async def refused() -> bool:
            answer = await rig.filter(pod_json("p"), "n")
            return bool(answer["FailedAndUnresolvableNodes"] == {"n": "CardCordoned"})

        await until(refused)
        conditions = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
        rig.server.patch("nodes", "n", conditions, subresource="status")

        async def away() -> bool:
            answer = await rig.filter(pod_json("p"), "n")
            return "not ready" in ((answer["FailedAndUnresolvableNodes"] or {}).get("n") or "")

        await until(away)


async def test_a_pod_filtered_anew_keeps_what_its_unseen_binding_gave_it() -> None:
    async with running(node_json("a", slots=1), node_json("b")) as rig:
        pod = rig.add_pod("p")
        hide_pods(rig)
        assert (await rig.filter(pod, "a"))["NodeNames"] == ["a"]
        assert await rig.bind(pod, "a") == ""
        assert (await rig.filter(pod, "a", "b"))["NodeNames"] == ["a"]
        assert (await rig.filter(pod, "b"))["Error"] == "the pod's Binding to node a may have been written already"
        assert "already bound to node a" in await rig.bind(pod, "b")
        assert (await rig.filter(rig.add_pod("late"), "a"))["NodeNames"] is None


async def test_a_pod_whose_bind_got_no_answer_is_sent_to_the_same_node_again() -> None:
    async with running(node_json("a", slots=1), node_json("b")) as rig:
        pod = rig.add_pod("p")
        hide_pods(rig)
        assert (await rig.filter(pod, "a"))["NodeNames"] == ["a"]
        await rig.bind_without_an_answer(pod, "a", "after")
        assert rig.pod("p")["spec"]["nodeName"] == "a"
        assert (await rig.filter(pod, "b"))["NodeNames"] is None
        assert (await rig.filter(rig.add_pod("late"), "a"))["NodeNames"] is None
        assert (await rig.filter(pod, "a", "b"))["NodeNames"] == ["a"]
        assert await rig.bind(pod, "a") == ""


async def test_a_refusal_gives_nothing_back_of_what_an_earlier_binding_may_have_taken() -> None:
    async with running(node_json("a", slots=1)) as rig:
        pod = rig.add_pod("p")
        hide_pods(rig)
        assert (await rig.filter(pod, "a"))["NodeNames"] == ["a"]
        assert await rig.bind(pod, "a") == ""
        rig.server.inject(Fault(subresource="binding", status=403, times=1))
        assert "403 Forbidden" in await rig.bind(pod, "a")
        assert (await rig.filter(rig.add_pod("late"), "a"))["NodeNames"] is None


async def test_what_a_pod_that_was_created_anew_was_promised_is_free_at_once() -> None:
    async with running(node_json("a", slots=1)) as rig:
        pod = rig.add_pod("p")
        assert (await rig.filter(pod, "a"))["NodeNames"] == ["a"]
        hide_pods(rig)
        rig.server.delete("pods", "p", namespace="default")
        rig.add_pod("p")
        assert "the pod was created again" in await rig.bind(pod, "a")
        assert (await rig.filter(rig.add_pod("next"), "a"))["NodeNames"] == ["a"]


def hide_pods(rig: Rig) -> None:
    """What happens to pods from now on reaches the extender by no watch."""
    rig.server.inject(Fault(verbs=frozenset({"watch"}), resources=frozenset({"pods"}), stall=True))
    rig.server.drop_watches()
