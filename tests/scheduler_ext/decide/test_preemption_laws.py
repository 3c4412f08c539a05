"""What holds of every eviction that we plan, and of the room that is kept after it, whatever runs on the node."""

from dataclasses import replace
from itertools import chain, combinations
from math import inf
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from proto.kubernetes.objects import (
    LabelSelector,
    ObjectMeta,
    Pod,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
    ResourceQuota,
    ResourceQuotaSpec,
)
from scheduler_ext.cluster.budgets import Budgets
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.records import kept_record
from scheduler_ext.decide.decision import decide
from scheduler_ext.decide.effort import Effort, SteppedSearch, finished, within
from scheduler_ext.decide.preempt import EvictionPlan, EvictionTrial, GpuHolder, decide_without, plan_evictions
from tests.builders import container, node, pod
from tests.scheduler_ext.gpus import device, request

DEVICES = tuple(device(number, memory_mib=16000, replicas=3) for number in range(3))
APPS = ("a", "b", "")

holders_strategy = st.lists(
    st.tuples(st.integers(1, 2), st.sampled_from([4000, 8000, 16000]), st.integers(0, 3), st.sampled_from(APPS)),
    min_size=1,
    max_size=7,
)


def full(asked: list[tuple[int, int, int, str]]) -> tuple[Ledger, list[GpuHolder]]:
    """As many of the pods as fit, one after the other."""
    ledger, holders = Ledger(), []
    ledger.replace_nodes([node("n", DEVICES)])
    for number, (gpus, memory_mib, priority, app) in enumerate(asked):
        each = pod(container(gpu=gpus, gpumem=memory_mib), name=f"p{number}")
        if reserved(ledger, each):
            labels = {"app": app} if app else {}
            holders.append(
                GpuHolder(
                    uid=each.metadata.uid, name=f"p{number}", namespace="default", priority=priority, labels=labels
                )
            )
    return ledger, holders


def reserved(ledger: Ledger, each: Pod) -> bool:
    decision = decide(request(each), ledger.snapshot(each.metadata.uid), ["n"])
    if decision.node is not None:
        ledger.reserve(each.metadata.uid, each, "n", decision.shares, until=inf)
    return decision.node is not None


def budgets(allowed: dict[str, int]) -> Budgets:
    found = Budgets()
    found.replace(
        PodDisruptionBudget(
            metadata=ObjectMeta(name=app, namespace="default"),
            spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": app})),
            status=PodDisruptionBudgetStatus(disruptions_allowed=number),
        )
        for app, number in allowed.items()
    )
    return found


def trial_on(node: str, ledger: Ledger, wanted: Pod, priority: int, effort: Effort | None = None) -> EvictionTrial:
    asked = request(wanted)
    return EvictionTrial(ledger.alone(node, asked.namespace), asked, priority, effort)


def planned(
    ledger: Ledger, known: Budgets, wanted: Pod, priority: int, holders: list[GpuHolder]
) -> EvictionPlan | None:
    return finished(plan_evictions(trial_on("n", ledger, wanted, priority), known, holders))


@given(
    holders_strategy,
    st.integers(1, 3),
    st.sampled_from([4000, 16000]),
    st.integers(0, 4),
    st.none() | st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
def test_victims_are_needed_less_important_and_within_their_budgets(
    asked: list[tuple[int, int, int, str]],
    gpus: int,
    memory_mib: int,
    priority: int,
    allowed: tuple[int, int] | None,
) -> None:
    ledger, holders = full(asked)
    known = budgets({} if allowed is None else dict(zip(APPS, allowed, strict=False)))
    wanted = pod(container(gpu=gpus, gpumem=memory_mib), name="wanted")

    def fits(gone: set[str]) -> bool:
        return decide_without(ledger, request(wanted), priority=priority, node="n", gone=gone).node is not None

    found = planned(ledger, known, wanted, priority, holders)
    lower = {each.uid for each in holders if each.priority < priority}
    helps = fits(lower) and not fits(set())
    if found is None:
        assert allowed is not None or not helps
        return
    chosen = {each.uid for each in found.victims}
    assert helps
    assert chosen <= lower
    assert known.violating(found.victims) == frozenset()
    assert fits(chosen)
    proper = chain.from_iterable(combinations(sorted(chosen), size) for size in range(len(chosen)))
    assert not any(fits(set(each)) for each in proper)


@given(holders_strategy, st.integers(1, 3), st.integers(0, 4), st.integers(0, 4), st.data())
def test_a_search_that_gives_way_finds_what_one_without_a_pause_would_have_found_when_it_began(
    asked: list[tuple[int, int, int, str]], gpus: int, priority: int, steps: int, data: st.DataObject
) -> None:
    ledger, holders = full(asked)
    wanted = pod(container(gpu=gpus, gpumem=8000), name="wanted")
    at_once, effort = planned(ledger, budgets({}), wanted, priority, holders), Effort()
    trial = trial_on("n", ledger, wanted, priority, effort)
    search = plan_evictions(trial, budgets({}), holders)

    def changed_after(steps: int) -> SteppedSearch[EvictionPlan | None]:
        for step in range(1000):
            try:
                next(search)
            except StopIteration as end:
                return cast("EvictionPlan | None", end.value)
            if step == steps:
                for uid in data.draw(st.sets(st.sampled_from([each.uid for each in holders]))):
                    ledger.remove_pod(uid)
                reserved(ledger, pod(container(gpu=1, gpumem=4000), name="late"))
            yield
        raise AssertionError

    assert finished(changed_after(steps)) == at_once
    spent = effort.made
    search = plan_evictions(trial_on("n", ledger, wanted, priority, effort), budgets({}), holders)
    assert finished(within(search, effort, 1)) is None
    assert effort.made - spent < 100


@given(holders_strategy, st.integers(1, 3), st.integers(0, 4), st.data())
def test_a_look_says_what_a_decision_without_these_pods_would(
    asked: list[tuple[int, int, int, str]], gpus: int, priority: int, data: st.DataObject
) -> None:
    ledger, holders = full(asked)
    limit: str | int | float = data.draw(st.sampled_from([8000, 20000, 60000]))
    metadata = ObjectMeta(name="q", namespace="default")
    ledger.quotas.apply(
        ResourceQuota(metadata=metadata, spec=ResourceQuotaSpec(hard={"limits.nvidia.com/gpumem": limit}))
    )
    wanted, room = pod(container(gpu=gpus, gpumem=8000), name="wanted"), pod(container(gpu=1, gpumem=8000), name="room")
    there = decide(request(room), ledger.snapshot(), ["n"])
    if there.node is not None:
        uid = data.draw(st.sampled_from(["uid-wanted", "uid-room"]))
        asking = replace(request(room), uid=uid)
        kept_for = data.draw(st.integers(0, 4))
        ledger.records.put(kept_record(asking, "n", there.shares, priority=kept_for, until=60.0))
    look = trial_on("n", ledger, wanted, priority)
    gone = frozenset(data.draw(st.lists(st.sampled_from([each.uid for each in holders]), unique=True)))
    decision = decide_without(ledger, request(wanted), priority=priority, node="n", gone=gone)
    assert look.fits(gone) == (decision.node is not None)
    assert not trial_on("elsewhere", ledger, wanted, priority).fits(gone)


@given(holders_strategy, st.integers(1, 3), st.data())
def test_whatever_comes_meanwhile_the_room_is_there_in_the_end_and_nothing_is_given_out_twice(
    asked: list[tuple[int, int, int, str]], gpus: int, data: st.DataObject
) -> None:
    ledger, holders = full(asked)
    wanted = pod(container(gpu=gpus, gpumem=16000), name="wanted")
    found = planned(ledger, budgets({}), wanted, 4, holders)
    if found is None:
        return
    gone = [each.uid for each in found.victims]
    decision = decide_without(ledger, request(wanted), priority=4, node="n", gone=gone)
    ledger.records.put(kept_record(request(wanted), "n", decision.shares, priority=4, until=60.0))
    assert request(wanted).uid == "uid-wanted"
    for step, uid in enumerate(data.draw(st.permutations(gone))):
        for number in range(2):
            late = pod(
                container(gpu=data.draw(st.integers(1, 2)), gpumem=data.draw(st.sampled_from([4000, 16000]))),
                name=f"late{step}-{number}",
            )
            reserved(ledger, late)
        _assert_within_capacity(ledger)
        ledger.remove_pod(uid)
    _assert_within_capacity(ledger)
    assert reserved(ledger, wanted)
    _assert_within_capacity(ledger)


def _assert_within_capacity(ledger: Ledger) -> None:
    for gpu in ledger.snapshot().nodes["n"].gpus:
        assert gpu.replicas <= gpu.device.replicas
        assert gpu.memory_mib <= gpu.device.memory_mib
