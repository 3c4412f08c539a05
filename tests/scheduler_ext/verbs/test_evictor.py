"""The extender evicts for a pod that lacks nothing but GPUs, where that is asked for."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from proto.annotations.keys import REQUEUE
from simulation.apiserver import Fault
from tests.builders import node_json, pod_json
from tests.polling import until
from tests.scheduler_ext.rig import Rig, running
from tests.scheduler_ext.verbs.priorities import WHOLE_GPU_MIB, add, add_classes, budget, placed, preempt, rooms_kept

NODE = node_json("n", gpus=4, replicas=1)


async def full(rig: Rig, *labels: dict[str, str]) -> Sequence[Any]:
    """One pod of priority 0 on each of the four GPUs."""
    pods = [add(rig, f"low{number}", labels=each) for number, each in enumerate(labels or ({},) * 4)]
    for pod in pods:
        await placed(rig, pod, "n")
    return pods


def leaving(rig: Rig) -> set[str]:
    pods = rig.server.store.objects("pods", "default")
    return {pod["metadata"]["name"] for pod in pods if pod["metadata"].get("deletionTimestamp")}


def evictions(rig: Rig) -> int:
    """Asked for, those that only ask whether it would be allowed among them."""
    return sum(request.subresource == "eviction" for request in rig.server.requests)


def events(rig: Rig, reason: str) -> dict[str, str]:
    found = rig.server.store.objects("events", "default")
    return {each["involvedObject"]["name"]: each["message"] for each in found if each["reason"] == reason}


async def fits(rig: Rig, pod: Any) -> bool:
    return bool((await rig.filter(pod, "n"))["NodeNames"])


async def asked(rig: Rig, pod: Any, times: int) -> None:
    """Until so many evictions were asked for; the pod comes back all the time, as kube-scheduler has it."""

    async def so_many() -> bool:
        assert not await fits(rig, pod)
        return evictions(rig) >= times

    await until(so_many)


async def test_the_least_that_is_needed_goes_and_the_room_is_there_when_the_pod_comes_back() -> None:
    async with running(NODE, gpu_preemption=True) as rig:
        add_classes(rig, urgent=1000)
        low = await full(rig)
        urgent = add(rig, "urgent", 2, priority="urgent")
        assert not await fits(rig, urgent)
        await until(lambda: _leave(rig, 2))
        gone = leaving(rig)
        await rooms_kept(rig, 1)
        assert await preempt(rig, urgent, "n", low[0]) is None
        for name in sorted(gone):
            rig.server.delete("pods", name, namespace="default")
            late = add(rig, f"late-{name}")
            for _ in range(3):
                assert not await fits(rig, late)
        await until(lambda: fits(rig, urgent))
        assert await rig.bind(urgent, "n") == ""
        await rooms_kept(rig, 0)
        assert leaving(rig) == set()
        await until(lambda: _told(rig, gone))


async def test_kube_scheduler_is_made_to_look_again_when_the_room_that_is_kept_for_a_pod_is_there() -> None:
    """It may have asked, and been refused, before the end of the pods that went was seen."""
    async with running(NODE, gpu_preemption=True) as rig:
        add_classes(rig, urgent=1000)
        await full(rig)
        assert not await fits(rig, add(rig, "urgent", 2, priority="urgent"))
        await until(lambda: _leave(rig, 2))
        await rooms_kept(rig, 1)
        for name in leaving(rig):
            rig.server.delete("pods", name, namespace="default")

        async def is_requeued() -> bool:
            return REQUEUE in rig.pod("urgent")["metadata"].get("annotations", {})

        await until(is_requeued)


async def _leave(rig: Rig, number: int) -> bool:
    return len(leaving(rig)) == number


async def _told(rig: Rig, gone: set[str]) -> bool:
    told = events(rig, "Preempting").get("urgent", "")
    return events(rig, "Preempted").keys() == gone and all(f"default/{name}" in told for name in gone)


async def test_what_a_budget_protects_stays_and_others_go_instead() -> None:
    async with running(NODE, gpu_preemption=True) as rig:
        add_classes(rig, urgent=1000)
        rig.server.create(budget("guarded", 0, app="guarded"))
        rig.server.create(budget("one", 1, app="one"))
        await full(rig, {"app": "guarded"}, {"app": "one"}, {"app": "one"}, {"app": "free"})
        assert not await fits(rig, add(rig, "too-large", 3, priority="urgent"))
        urgent = add(rig, "urgent", 2, priority="urgent")
        assert not await fits(rig, urgent)
        await until(lambda: _leave(rig, 2))
        assert "low3" in leaving(rig)
        assert "low0" not in leaving(rig)


async def test_nobody_goes_in_vain_when_the_api_server_lets_one_of_them_stay() -> None:
    """A pod of two budgets can never be evicted; which is not seen in either of them."""
    async with running(NODE, gpu_preemption=True) as rig:
        add_classes(rig, urgent=1000)
        for name in ("one", "another"):
            rig.server.create(budget(name, 4, app="both"))
        await full(rig, {}, {}, {}, {"app": "both"})
        urgent = add(rig, "urgent", 4, priority="urgent")
        await asked(rig, urgent, 1)
        await until(lambda: _failed(rig))
        assert leaving(rig) == set()
        await rooms_kept(rig, 0)


async def _failed(rig: Rig) -> bool:
    return "more than one PodDisruptionBudget" in events(rig, "PreemptionFailed").get("urgent", "")


async def test_nobody_goes_for_a_pod_that_may_not_or_need_not_preempt() -> None:
    async with running(NODE, node_json("free"), gpu_preemption=True) as rig:
        add_classes(rig, urgent=1000)
        rig.server.create(
            {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": {"name": "few", "namespace": "default"},
                "spec": {"hard": {"limits.nvidia.com/gpumem": str(4 * 40960)}},
            }
        )
        low = await full(rig)
        peer, patient = add(rig, "peer", 1), add(rig, "patient", 1, priority="urgent")
        patient["spec"]["preemptionPolicy"] = "Never"
        behind_quota = add(rig, "behind-quota", 1, priority="urgent")
        assert not await fits(rig, peer)
        assert not await fits(rig, patient)
        assert not (await rig.filter(behind_quota, "free"))["NodeNames"]
        # The one for whom pods go comes last, and each is looked at in turn.
        allowed = add(rig, "allowed", 1, priority="urgent")
        assert not await fits(rig, allowed)
        await until(lambda: _leave(rig, 1))
        await until(lambda: _preempted(rig))
        assert events(rig, "Preempting").keys() == {"allowed"}
        assert len(low) == 4


async def _preempted(rig: Rig) -> bool:
    return bool(events(rig, "Preempting"))


async def test_nobody_goes_where_kubelet_would_refuse_the_pod_all_the_same() -> None:
    """150 cores count as 100 of a GPU, and as 150 with kubelet."""
    node = node_json("n", gpus=2)
    node["status"]["allocatable"]["nvidia.com/gpucores"] = "200"
    async with running(node, gpu_preemption=True) as rig:
        add_classes(rig, urgent=1000, higher=2000)
        for name, cores, priority in (("wide", 150, "higher"), ("low", 40, "")):
            await placed(rig, rig.server.create(whole(name, cores, priority)), "n")
        urgent = rig.server.create(whole("urgent", 60, "urgent"))
        low = rig.server.store.get("pods", "default", "low")
        assert (await rig.filter(urgent, "n"))["FailedNodes"] == {"n": "NodeTotalExceeded(nvidia.com/gpucores)"}
        assert await preempt(rig, urgent, "n", low) is None
        other = rig.server.create(whole("other", 50, "urgent"))
        assert await preempt(rig, other, "n", low) is not None
        await asked(rig, other, 2)
        assert leaving(rig) == {"low"}

        async def told() -> bool:
            return bool(events(rig, "Preempting"))

        await until(told)
        assert set(events(rig, "Preempting")) == {"other"}


def whole(name: str, cores: int, priority: str) -> Any:
    pod = pod_json(name, memory_mib=WHOLE_GPU_MIB)
    pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpucores"] = str(cores)
    return pod | {"spec": pod["spec"] | ({"priorityClassName": priority} if priority else {})}


async def test_a_pod_that_came_for_its_room_and_was_not_bound_has_nobody_evicted_again_soon() -> None:
    """Its volume cannot be had, say: whoever takes the room after it would be evicted over and over."""
    async with running(NODE, gpu_preemption=True, reservation_lease_seconds=0.1) as rig:
        add_classes(rig, urgent=1000, critical=2000)
        low = await full(rig)
        urgent = add(rig, "urgent", 4, priority="urgent")
        assert not await fits(rig, urgent)
        await until(lambda: _leave(rig, 4))
        for pod in low:
            rig.server.delete("pods", pod["metadata"]["name"], namespace="default")
        await until(lambda: fits(rig, urgent))
        critical = add(rig, "critical", 4, priority="critical")
        await until(lambda: fits(rig, critical))
        await placed(rig, critical, "n")
        rig.server.delete("pods", "critical", namespace="default")
        for number in range(4):
            await until(partial(fits, rig, again := add(rig, f"again{number}")))
            await placed(rig, again, "n")
        assert not await fits(rig, urgent)
        # The one for whom a pod goes comes last, and each is looked at in turn.
        assert not await fits(rig, add(rig, "allowed", 1, priority="urgent"))
        await until(lambda: _decided(rig))
        assert len(leaving(rig)) == 1


async def _decided(rig: Rig) -> bool:
    return "allowed" in events(rig, "Preempting") or len(leaving(rig)) > 1


@pytest.mark.parametrize("lose", ["deleted", "promised"])
async def test_nobody_goes_for_a_pod_that_needs_the_room_no_longer(lose: str) -> None:
    """Asking whether all may go takes its time, and the pod may be gone by then, or have GPUs elsewhere."""
    async with running(NODE, gpu_preemption=True) as rig:
        add_classes(rig, urgent=1000)
        await full(rig)
        urgent = add(rig, "urgent", 4, priority="urgent")
        rig.server.inject(Fault(subresource="eviction", latency_seconds=0.5, times=4))
        await asked(rig, urgent, 1)
        if lose == "deleted":
            rig.server.delete("pods", "urgent", namespace="default")
        else:
            rig.server.create(node_json("later", gpus=4, replicas=1))
            await until(lambda: _promised(rig, urgent))
        await until(lambda: _given_up(rig))
        assert leaving(rig) == set()
        await rooms_kept(rig, 0)


async def _promised(rig: Rig, pod: Any) -> bool:
    return bool((await rig.filter(pod, "n", "later"))["NodeNames"] == ["later"])


async def _given_up(rig: Rig) -> bool:
    return "PreemptionFailed" in {each["reason"] for each in rig.server.store.objects("events", "default")} or bool(
        leaving(rig)
    )


async def test_without_the_flag_nobody_is_evicted() -> None:
    async with running(NODE) as rig:
        add_classes(rig, urgent=1000)
        await full(rig)
        urgent = add(rig, "urgent", 1, priority="urgent")
        for _ in range(3):
            assert not await fits(rig, urgent)
        await rooms_kept(rig, 0)
        assert evictions(rig) == 0
