"""Pods are evicted for a group only if all of it then fits."""

from functools import partial
from typing import Any

import pytest

from scheduler_ext.membership import KUEUE_GROUP, KUEUE_SIZE
from tests.builders import node_json, pod_json
from tests.polling import until
from tests.scheduler_ext.rig import Rig, running
from tests.scheduler_ext.verbs.priorities import WHOLE_GPU_MIB, add, add_classes, budget, placed, rooms_kept
from tests.scheduler_ext.verbs.test_evictor import events, leaving

NODES = ("n", "m")


def add_group(rig: Rig, size: int) -> list[Any]:
    made = []
    for number in range(size):
        pod = pod_json(f"g{number}", gpus=4, memory_mib=WHOLE_GPU_MIB)
        pod["metadata"] |= {"labels": {KUEUE_GROUP: "g"}, "annotations": {KUEUE_SIZE: str(size)}}
        pod["spec"]["priorityClassName"] = "urgent"
        made.append(rig.server.create(pod))
    return made


async def full(rig: Rig) -> None:
    """A pod of all four GPUs on each node."""
    add_classes(rig, urgent=1000)
    for name in NODES:
        await placed(rig, add(rig, f"low-{name}", 4, labels={"app": name}), name)


async def fits(rig: Rig, pod: Any) -> bool:
    return bool((await rig.filter(pod, *NODES))["NodeNames"])


async def test_a_group_gets_the_room_of_the_pods_that_are_evicted_for_all_of_it() -> None:
    async with running(*(node_json(name, gpus=4, replicas=1) for name in NODES), gpu_preemption=True) as rig:
        await full(rig)
        members = add_group(rig, 2)
        assert not await fits(rig, members[0])

        async def both_leave() -> bool:
            return leaving(rig) == {"low-n", "low-m"}

        await until(both_leave)
        await rooms_kept(rig, 2)
        rig.server.delete("pods", "low-n", namespace="default")
        assert not await fits(rig, add(rig, "late", 4))
        assert not await fits(rig, members[0])
        rig.server.delete("pods", "low-m", namespace="default")
        for pod in members:
            await until(partial(fits, rig, pod))
        assert {(await rig.filter(pod, *NODES))["NodeNames"][0] for pod in members} == set(NODES)

        async def told() -> bool:
            return set(events(rig, "Preempted")) == {"low-n", "low-m"} and bool(events(rig, "Preempting"))

        await until(told)
        assert "for group default/g of higher priority 1000" in events(rig, "Preempted")["low-n"]
        assert events(rig, "Preempting")["g0"].startswith("room is made for group default/g on ")


@pytest.mark.parametrize("why", ["a budget", "too few pods"])
async def test_no_pod_is_evicted_for_a_group_that_would_not_fit_all_the_same(why: str) -> None:
    async with running(*(node_json(name, gpus=4, replicas=1) for name in NODES), gpu_preemption=True) as rig:
        await full(rig)
        if why == "a budget":
            rig.server.create(budget("guarded", 0, app="m"))
        members = add_group(rig, 2 if why == "a budget" else 3)
        assert not await fits(rig, members[0])
        # The pod for which one is evicted comes last, and each is served in turn.
        assert not await fits(rig, add(rig, "allowed", 1, priority="urgent"))

        async def served() -> bool:
            return bool(events(rig, "Preempting"))

        await until(served)
        assert set(events(rig, "Preempting")) == {"allowed"}
        assert len(leaving(rig)) == 1
        await rooms_kept(rig, 1)
