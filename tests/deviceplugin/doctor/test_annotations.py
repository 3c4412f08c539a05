from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from deviceplugin.doctor.annotations import LockHolder, judge_annotations, judge_handshake, judge_lock
from deviceplugin.doctor.finding import Finding, FindingState
from deviceplugin.node.registration import Offer, registration
from deviceplugin.settings import HamiScheduler
from proto.annotations.keys import NODE_HANDSHAKE, NODE_REGISTER, NODE_SCORE
from proto.annotations.node_allocation import AllocationMode
from proto.annotations.node_limits import NodeLimits
from proto.annotations.node_lock import NodeLock, encode_lock
from proto.annotations.node_register import encode_register, encode_scores
from proto.devices import Device
from proto.kubernetes.objects import Pod, PodSpec, PodStatus
from tests.builders import node
from tests.deviceplugin.gpus import NODE, PAIR, A, B, bound_pod, share

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SCORES = {A: {B: 100}, B: {A: 100}}
IMMEDIATE = AllocationMode.IMMEDIATE
OFFER = Offer(devices=PAIR, scores=SCORES, mode=IMMEDIATE, limits=NodeLimits.HAMI_CORE)


def written(scheduler: HamiScheduler = HamiScheduler.NONE) -> dict[str, str]:
    """What the daemon writes on a new node."""
    wanted = registration(node(NODE), OFFER, scheduler, now=NOW).annotations
    return {key: value for key, value in wanted.items() if value is not None}


def judged(
    annotations: dict[str, str],
    devices: tuple[Device, ...] = PAIR,
    scheduler: HamiScheduler = HamiScheduler.NONE,
    *,
    serves: bool = True,
) -> Finding:
    return judge_annotations(
        node(NODE, annotations=annotations),
        replace(OFFER, devices=devices),
        scheduler=scheduler,
        daemon_serves=serves,
        now=NOW,
    )


@pytest.mark.parametrize("scheduler", list(HamiScheduler))
def test_what_the_daemon_wrote_is_as_computed_in_every_form(scheduler: HamiScheduler) -> None:
    assert judged(written(scheduler), scheduler=scheduler).state is FindingState.OK


def test_the_gpu_and_the_field_that_differ_are_named() -> None:
    smaller = (replace(PAIR[0], memory_mib=1), PAIR[1])
    finding = judged(written() | {NODE_REGISTER: encode_register(smaller)})
    assert finding.state is FindingState.PROBLEM
    assert f"{NODE_REGISTER} differs: {A} has memory_mib 1 instead of 40960" in finding.explanation


def test_gpus_too_few_and_too_many_are_named() -> None:
    assert f"{B} is not registered" in judged(written() | {NODE_REGISTER: encode_register(PAIR[:1])}).explanation
    assert f"{B} is registered but not on this machine" in judged(written(), PAIR[:1]).explanation


def test_the_pair_whose_score_differs_is_named() -> None:
    other = encode_scores({A: {B: 40}, B: {A: 100}}, [A, B])
    assert f"{A} to {B} scores 40 instead of 100" in judged(written() | {NODE_SCORE: other}).explanation


def test_a_missing_or_unreadable_annotation_is_a_problem() -> None:
    without = {key: value for key, value in written().items() if key != NODE_SCORE}
    assert f"{NODE_SCORE} is missing" in judged(without).explanation
    assert "cannot be read" in judged(written() | {NODE_REGISTER: "nonsense"}).explanation


def test_health_alone_is_the_daemons_to_know() -> None:
    ill = (replace(PAIR[0], healthy=False), PAIR[1])
    assert judged(written() | {NODE_REGISTER: encode_register(ill)}).state is FindingState.WARNING


def test_before_the_daemon_ran_there_is_nothing_to_compare() -> None:
    assert judged({}, serves=False).state is FindingState.SKIPPED
    assert judged({}, serves=True).state is FindingState.PROBLEM


def lock(seconds: float, holder: LockHolder, *, pod: str = "p") -> Finding:
    taken = NodeLock(taken_at=NOW - timedelta(seconds=seconds), namespace="default" if pod else "", pod=pod)
    return judge_lock(encode_lock(taken), holder, NODE, NOW)


WAITING = LockHolder(known=True, pod=bound_pod("p", ((share(A),),)))
RUNNING = LockHolder(known=True, pod=bound_pod("p", ((share(A),),), phase="Running"))
DONE = LockHolder(known=True, pod=bound_pod("p", ((share(A),),), changed={"hami.io/bind-phase": "success"}))
ELSEWHERE = LockHolder(known=True, pod=Pod(spec=PodSpec(node_name="node-2"), status=PodStatus(phase="Pending")))
GONE = LockHolder(known=True)
UNASKED = LockHolder()


@pytest.mark.parametrize(
    ("seconds", "holder", "why"),
    [
        (10, WAITING, ""),
        (290, WAITING, ""),
        (300, WAITING, "no lock is needed for longer than 5 min"),
        (10, RUNNING, ""),
        (31, RUNNING, "the pod is running"),
        (31, DONE, "the pod's allocation ended with success"),
        (31, ELSEWHERE, "the pod is on node node-2"),
        (10, GONE, ""),
        (31, GONE, "there is no such pod"),
        (31, UNASKED, ""),
    ],
)
def test_a_lock_is_stale_when_its_pod_needs_it_no_more(seconds: float, holder: LockHolder, why: str) -> None:
    finding = lock(seconds, holder)
    assert (finding.state is FindingState.PROBLEM, why in finding.explanation) == (bool(why), True)
    assert finding.remedy == (f"Remove it: kubectl annotate node {NODE} hami.io/mutex.lock-" if why else "")


def test_a_lock_without_owner_goes_by_its_age_and_an_unreadable_one_blocks() -> None:
    assert lock(60, UNASKED, pod="").state is FindingState.OK
    assert lock(301, UNASKED, pod="").state is FindingState.PROBLEM
    assert judge_lock("garbage", UNASKED, NODE, NOW).state is FindingState.PROBLEM
    assert judge_lock(None, UNASKED, NODE, NOW).state is FindingState.OK


@pytest.mark.parametrize(
    ("value", "off", "on"),
    [
        (None, "ok", "ok"),
        ("Requesting_2029-12-31 23:59:30", "ok", "ok"),
        ("Requesting_2029-12-31 23:58:00", "warning", "problem"),
        ("Requesting_garbage", "ok", "ok"),
        ("Deleted_2029-12-31 23:59:59", "warning", "problem"),
        ("Reported 2029-12-31 23:00:00", "ok", "ok"),
    ],
)
def test_an_old_scheduler_that_waits_for_an_answer_is_told(value: str | None, off: str, on: str) -> None:
    asked = node(NODE, annotations={} if value is None else {NODE_HANDSHAKE: value})
    found = [judge_handshake(asked, scheduler, NOW).state for scheduler in (HamiScheduler.NONE, HamiScheduler.V2_7)]
    assert found == [off, on]
