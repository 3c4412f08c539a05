"""GPUs that are freed for a pod are there when it comes back for them."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from scheduler_ext.cluster.events import Applied, Decided, Proposed
from scheduler_ext.cluster.records import RecordState
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.verbs.live_cluster import LiveCluster
from scheduler_ext.verbs.nominated_rooms import shorten_taken_rooms
from tests.builders import container, node, node_json, pod
from tests.polling import until
from tests.scheduler_ext.cluster.ledgers import share
from tests.scheduler_ext.gpus import device
from tests.scheduler_ext.rig import Rig, running
from tests.scheduler_ext.verbs.priorities import add, add_classes, budget, nominate, placed, preempt, rooms_kept

NODE = node_json("n", gpus=4, replicas=1)


async def full(rig: Rig) -> Sequence[Any]:
    """One pod on each GPU."""
    pods = [add(rig, f"low{number}") for number in range(4)]
    for each in pods:
        await placed(rig, each, "n")
    return pods


async def nominated(rig: Rig, pod: Any, *proposed: Any) -> None:
    """As kube-scheduler does, with at least the proposed victims."""
    assert not (await rig.filter(pod, "n"))["NodeNames"]
    assert await preempt(rig, pod, "n", *proposed) is not None
    nominate(rig, pod, "n")
    await rooms_kept(rig, 1)


def gone(rig: Rig, *pods: Any) -> None:
    for each in pods:
        rig.server.delete("pods", each["metadata"]["name"], namespace="default")


async def fits(rig: Rig, pod: Any) -> bool:
    return bool((await rig.filter(pod, "n"))["NodeNames"])


async def test_pods_of_lower_priority_do_not_take_what_becomes_free_for_a_nominated_one() -> None:
    async with running(NODE) as rig:
        add_classes(rig, urgent=1000)
        low = await full(rig)
        urgent = add(rig, "urgent", 4, priority="urgent")
        await nominated(rig, urgent, low[0])
        late = [add(rig, f"late{number}") for number in range(4)]
        for pod in low:
            gone(rig, pod)
            for other in late:
                assert not await fits(rig, other)
        await until(lambda: fits(rig, urgent))
        assert await rig.bind(urgent, "n") == ""
        assert not await fits(rig, late[0])
        await rooms_kept(rig, 0)


async def test_what_the_nominated_pod_does_not_need_is_free_for_all() -> None:
    async with running(NODE) as rig:
        add_classes(rig, urgent=1000)
        low = await full(rig)
        await nominated(rig, add(rig, "urgent", 1, priority="urgent"), low[0])
        late = [add(rig, f"late{number}") for number in range(2)]
        gone(rig, low[0], low[1])
        await until(lambda: fits(rig, late[0]))
        assert await rig.bind(late[0], "n") == ""
        assert not await fits(rig, late[1])


async def test_a_more_important_pod_takes_the_room_if_it_fits_nowhere_else() -> None:
    async with running(NODE) as rig:
        add_classes(rig, urgent=1000, critical=2000)
        low = await full(rig)
        urgent = add(rig, "urgent", 4, priority="urgent")
        await nominated(rig, urgent, low[0])
        gone(rig, *low)
        critical, peer = add(rig, "critical", 2, priority="critical"), add(rig, "peer", 1, priority="urgent")
        await until(lambda: fits(rig, critical))
        assert await rig.bind(critical, "n") == ""
        await rooms_kept(rig, 0)
        assert await fits(rig, peer)


async def test_a_pod_of_equal_priority_leaves_the_room_alone() -> None:
    async with running(NODE) as rig:
        add_classes(rig, urgent=1000)
        low = await full(rig)
        urgent = add(rig, "urgent", 4, priority="urgent")
        await nominated(rig, urgent, low[0])
        peer = add(rig, "peer", 1, priority="urgent")
        gone(rig, *low)
        for _ in range(5):
            assert not await fits(rig, peer)
        await until(lambda: fits(rig, urgent))


@pytest.mark.parametrize("lose", [lambda rig, pod: nominate(rig, pod, ""), gone], ids=["not nominated", "deleted"])
async def test_the_room_is_free_once_the_pod_does_not_wait_for_it(lose: Callable[[Rig, Any], None]) -> None:
    async with running(NODE) as rig:
        add_classes(rig, urgent=1000)
        low = await full(rig)
        urgent = add(rig, "urgent", 4, priority="urgent")
        await nominated(rig, urgent, low[0])
        lose(rig, urgent)
        await rooms_kept(rig, 0)
        gone(rig, low[0])
        late = add(rig, "late")
        await until(lambda: fits(rig, late))


async def test_a_restarted_extender_keeps_room_for_pods_that_were_nominated_before() -> None:
    async with running(NODE) as rig:
        add_classes(rig, urgent=1000)
        await full(rig)
        nominate(rig, add(rig, "urgent", 2, priority="urgent"), "n")
        await rooms_kept(rig, 1)


async def test_nothing_is_kept_on_a_node_where_the_pod_could_never_fit() -> None:
    async with running(NODE) as rig:
        add_classes(rig, urgent=1000)
        nominate(rig, add(rig, "large", 5, priority="urgent"), "n")
        nominate(rig, add(rig, "urgent", 2, priority="urgent"), "n")
        await rooms_kept(rig, 1)


async def test_the_budgets_that_victims_exceed_are_counted_and_other_victims_are_preferred() -> None:
    async with running(NODE) as rig:
        add_classes(rig, urgent=1000, lower=-10)
        rig.server.create(budget("guarded", 0, app="guarded"))
        rig.server.create(budget("one", 1, app="one"))
        labels = ({"app": "guarded"}, {"app": "one"}, {"app": "one"}, {"app": "free"})
        low = [
            add(rig, f"low{number}", labels=each, priority="lower" if each["app"] == "guarded" else "")
            for number, each in enumerate(labels)
        ]
        for pod in low:
            await placed(rig, pod, "n")
        await until(lambda: _known(rig))
        uids = [pod["metadata"]["uid"] for pod in low]
        two, four = (add(rig, name, gpus, priority="urgent") for name, gpus in (("two", 2), ("four", 4)))
        answer = await preempt(rig, two, "n", low[3])
        victims = {each["UID"] for each in answer["Pods"]}
        assert victims in ({uids[3], uids[1]}, {uids[3], uids[2]})
        assert answer["NumPDBViolations"] == 0
        answer = await preempt(rig, four, "n", low[3])
        assert {each["UID"] for each in answer["Pods"]} == set(uids)
        assert answer["NumPDBViolations"] == 2


async def _known(rig: Rig) -> bool:
    """Once the extender watches budgets it has listed them."""
    return any(each.resource == "poddisruptionbudgets" and each.verb == "watch" for each in rig.server.requests)


def test_a_second_preemption_for_a_pod_that_has_gpus_elsewhere_by_now_keeps_no_room() -> None:
    """kube-scheduler's own filters may refuse the node that was promised before the next question."""
    cluster = LiveCluster(Cluster(), lambda: 0.0, lambda *_: None)
    ledger = cluster.state.ledger
    ledger.replace_nodes([node(name, [device(0)]) for name in ("n", "elsewhere")])
    urgent = pod(container(gpu=1), name="urgent")
    urgent.status.nominated_node_name = "n"
    cluster.apply(Applied(urgent))
    assert len(ledger.records.of(RecordState.KEPT)) == 1
    cluster.apply(Decided("uid-urgent", urgent, "elsewhere", ((share("G0"),),), 60.0))
    cluster.apply(Proposed(urgent, {"n": {"uid-low"}}))
    assert len(ledger.records.of(RecordState.KEPT)) == 0
    shorten_taken_rooms(cluster.state, 0, 0.0)
