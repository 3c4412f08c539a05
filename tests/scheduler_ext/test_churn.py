"""Pods come and go, and nothing of what the extender keeps grows with their number."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import product
from typing import Any

import pytest

from proto.annotations import keys
from proto.annotations.outliving_pods import Outliving, encode_outliving
from scheduler_ext.policies import parse_gpu_policy, parse_node_policy
from scheduler_ext.requests import RequestSettings
from scheduler_ext.settings import ServeSettings
from tests.builders import node_json, pod_json
from tests.polling import until
from tests.scheduler_ext.in_process import InProcess, in_process

Json = dict[str, Any]
Life = Callable[[InProcess, Json], Awaitable[None]]

NODES = ["node-a", "node-b"]
PODS = 20
FEW = 4
BOUNDS = (
    "scheduler_ext.cluster.history.MOST_REMEMBERED",
    "scheduler_ext.cluster.history.MOST_PODS",
    "scheduler_ext.decide.index.ranking.MOST_SHAPES",
    "scheduler_ext.decide.fgd.MOST_REMEMBERED",
    "scheduler_ext.workload.MOST_CLASSES",
    "scheduler_ext.verbs.turns.MOST_NAMESPACES",
    "proto.kubernetes.events.MOST_QUIET",
    "proto.kubernetes.events.MOST_ORDINARY",
    "proto.kubernetes.events.LONGEST_QUEUE",
)
"""Of what is kept, by design, of pods that are gone: so few here that a few pods show it."""


async def finished(on: InProcess, pod: Json) -> None:
    name = pod["metadata"]["name"]
    assert await on.place(pod, NODES)
    await on.api.all_seen()
    on.api.change(name, status={"phase": "Succeeded"})


async def ran_as_no_other(on: InProcess, pod: Json) -> None:
    """It refuses a type of GPU that no other pod refuses."""
    name = pod["metadata"]["name"]
    pod["metadata"]["annotations"] = {**pod["metadata"].get("annotations", {}), keys.NO_USE_GPU_TYPE: name}
    assert await on.place(pod, NODES)
    on.api.change(name, status={"phase": "Running"})


async def deleted_by_force(on: InProcess, pod: Json) -> None:
    assert await on.place(pod, NODES)
    running = [{"name": "main", "state": {"running": {}}}]
    on.api.change(pod["metadata"]["name"], status={"phase": "Running", "containerStatuses": running})


async def fits_nowhere(on: InProcess, pod: Json) -> None:
    limits(pod)[keys.RESOURCE_MEMORY] = "1000000"
    assert not await on.place(pod, NODES)


async def is_never_bound(on: InProcess, pod: Json) -> None:
    assert await on.filter(pod, NODES)


async def is_gone_when_it_is_bound(on: InProcess, pod: Json) -> None:
    assert await on.filter(pod, NODES)
    on.api.delete(pod["metadata"]["name"])
    assert await on.bind(pod, NODES[0])
    on.api.add(pod)


async def waits_in_permit(on: InProcess, pod: Json) -> None:
    pod["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": f"group-of-{pod['metadata']['name']}"}
    assert await on.filter(pod, NODES)


async def is_of_a_group_that_is_refused(on: InProcess, pod: Json) -> None:
    pod["spec"]["schedulingGroup"] = {"podGroupName": f"group-of-{pod['metadata']['name']}"}
    assert await on.filter(pod, NODES)
    other = pod_json(pod["metadata"]["name"] + "-beside", memory_mib=1_000_000)
    other["spec"]["schedulingGroup"] = pod["spec"]["schedulingGroup"]
    on.api.add(other)
    assert not await on.filter(other, NODES)
    on.api.delete(other["metadata"]["name"])


async def asks_for_what_cannot_be_read(on: InProcess, pod: Json) -> None:
    limits(pod)[keys.RESOURCE_MEMORY] = "much"
    assert not await on.filter(pod, NODES)


async def asks_for_no_gpu(on: InProcess, pod: Json) -> None:
    """Though it was annotated as one that does."""
    limits(pod).clear()
    bare = pod["metadata"]
    on.api.change(bare["name"], metadata={**bare, "annotations": {keys.POD_NODE: NODES[0]}}, spec=pod["spec"])
    on.api.change(bare["name"], metadata=bare)
    assert await on.place(pod, NODES)


async def was_bound_by_hand_and_cannot_be_read(on: InProcess, pod: Json) -> None:
    annotations = {keys.DEVICES_ALLOCATED: "?", keys.POD_NODE: NODES[0]}
    metadata, spec = {**pod["metadata"], "annotations": annotations}, {**pod["spec"], "nodeName": NODES[0]}
    on.api.change(pod["metadata"]["name"], metadata=metadata, spec=spec)


async def has_others_evicted(on: InProcess, pod: Json) -> None:
    """And the room kept, until it is deleted."""
    victim = pod_json(pod["metadata"]["name"] + "-victim", memory_mib=40960)
    on.api.add(victim)
    assert await on.place(victim, NODES) == NODES[0]
    await on.api.all_seen()
    limits(pod)[keys.RESOURCE_MEMORY] = "40960"
    pod["spec"]["priority"] = 100
    victims = {NODES[0]: {"Pods": [{"UID": victim["metadata"]["uid"]}]}}
    answer = await on.ask("preempt", {"Pod": pod, "NodeNameToMetaVictims": victims})
    assert answer["NodeNameToMetaVictims"], answer
    on.api.change(pod["metadata"]["name"], status={"phase": "Pending", "nominatedNodeName": NODES[0]})
    await on.api.all_seen()
    on.api.delete(victim["metadata"]["name"])


async def is_asked_about_in_every_way(on: InProcess, pod: Json) -> None:
    assert await on.ask("prioritize", {"Pod": pod, "NodeNames": NODES})
    assert await on.filter(pod, NODES)
    assert await on.filter(pod, NODES[1:]) == NODES[1]
    assert not await on.bind(pod, NODES[1])


def limits(pod: Json) -> Json:
    found: Json = pod["spec"]["containers"][0]["resources"]["limits"]
    return found


LIVES = (
    finished,
    ran_as_no_other,
    deleted_by_force,
    fits_nowhere,
    is_never_bound,
    is_gone_when_it_is_bound,
    waits_in_permit,
    is_of_a_group_that_is_refused,
    asks_for_what_cannot_be_read,
    asks_for_no_gpu,
    was_bound_by_hand_and_cannot_be_read,
    has_others_evicted,
    is_asked_about_in_every_way,
)


@asynccontextmanager
async def remembering(most: int, monkeypatch: pytest.MonkeyPatch, policy: str = "binpack") -> AsyncIterator[InProcess]:
    """Where each node's daemon says that nothing runs of what was deleted."""
    for bound in BOUNDS:
        monkeypatch.setattr(bound, most)
    nodes = [node_json(name, gpus=2) for name in NODES]
    for node in nodes:
        node["metadata"]["annotations"][keys.NODE_OUTLIVING] = encode_outliving(Outliving(as_of=10**9))
    requests = RequestSettings(node_policy=parse_node_policy(policy), gpu_policy=parse_gpu_policy(policy))
    async with in_process(nodes, ServeSettings(gpu_preemption=True), requests) as on:
        yield on


async def after(on: InProcess, lives: Sequence[Life], numbers: range) -> Counter[str]:
    """The sizes of all stores when so many pods have lived each life and are gone."""
    for number, life in product(numbers, lives):
        pod = pod_json(f"churn-{number}-{life.__name__}") | {"status": {"phase": "Pending"}}
        pod["metadata"]["namespace"] = f"team-{number}"
        on.api.add(pod)
        await life(on, pod)
        await on.api.all_seen()
        on.api.delete(pod["metadata"]["name"])
        await on.api.all_seen()
    return on.sizes()


def growing(before: Counter[str], after: Counter[str]) -> set[str]:
    """The stores with one object more, at least, for each pod of some life."""
    return {store for store, size in after.items() if size - before[store] >= PODS}


@pytest.mark.parametrize("policy", ["binpack", "fgd"])
async def test_no_store_keeps_pods_that_are_gone(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with remembering(FEW, monkeypatch, policy) as on:
        before = await after(on, LIVES, range(PODS))
        await after(on, LIVES, range(PODS, 2 * PODS))

        async def as_before() -> bool:
            return not growing(before, on.sizes())

        await until(as_before)


async def test_a_store_that_keeps_them_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async with remembering(100 * PODS, monkeypatch) as on:
        before = await after(on, [finished], range(PODS))
        grown = growing(before, await after(on, [finished], range(PODS, 2 * PODS)))
    assert grown >= {"Histories._known", "EventRecorder._quiet", "SearchTurns._spent"}
