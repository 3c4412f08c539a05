"""`/filter` over real HTTP: offers, promises, and what nodes and Bindings do to them."""

import json

from proto.annotations import keys
from scheduler_ext.settings import FilterReturns
from simulation.apiserver import Fault
from tests.builders import node_json, pod_json
from tests.polling import until
from tests.scheduler_ext.rig import Rig, running


async def test_filter_can_offer_several_nodes_and_reserves_on_each_until_kube_scheduler_has_chosen() -> None:
    async with running(node_json("a", replicas=1), node_json("b"), filter_returns=FilterReturns.ALL) as rig:
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
    async with running(node_json("a", replicas=1), node_json("b")) as rig:
        pod = rig.add_pod("p")
        hide_pods(rig)
        assert (await rig.filter(pod, "a"))["NodeNames"] == ["a"]
        assert await rig.bind(pod, "a") == ""
        assert (await rig.filter(pod, "a", "b"))["NodeNames"] == ["a"]
        assert (await rig.filter(pod, "b"))["Error"] == "the pod's Binding to node a may have been written already"
        assert "already bound to node a" in await rig.bind(pod, "b")
        assert (await rig.filter(rig.add_pod("late"), "a"))["NodeNames"] is None


async def test_a_pod_whose_bind_got_no_answer_is_sent_to_the_same_node_again() -> None:
    async with running(node_json("a", replicas=1), node_json("b")) as rig:
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
    async with running(node_json("a", replicas=1)) as rig:
        pod = rig.add_pod("p")
        hide_pods(rig)
        assert (await rig.filter(pod, "a"))["NodeNames"] == ["a"]
        assert await rig.bind(pod, "a") == ""
        rig.server.inject(Fault(subresource="binding", status=403, times=1))
        assert "403 Forbidden" in await rig.bind(pod, "a")
        assert (await rig.filter(rig.add_pod("late"), "a"))["NodeNames"] is None


async def test_what_a_pod_that_was_created_anew_was_promised_is_free_at_once() -> None:
    async with running(node_json("a", replicas=1)) as rig:
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
