"""Scripted streams of events and polls, second by second."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.health.step import (
    APPLICATION_XIDS,
    FABRIC_PROBLEM,
    DoubleBitError,
    GpuLost,
    HealthEvent,
    HealthSettings,
    HealthState,
    Hint,
    Monitored,
    Polled,
    Signals,
    XidSeen,
    awaiting_events,
    doubted,
    problems,
    recovery_problem,
    step,
)
from proto.devices import DeviceUUID
from tests.deviceplugin.gpus import A, B
from tests.playbook import converse

HOLD = 60.0
SETTINGS = HealthSettings()
GOOD = Polled(gpu=A, signals=Signals())
XID_79 = XidSeen(gpu=A, xid=79)
REGISTERED = Monitored(gpus=frozenset({A, B}))
FALLEN = "the driver reported XID 79 (GPU has fallen off the bus)"

Script = Sequence[tuple[float, HealthEvent]]


def after(script: Script, settings: HealthSettings = SETTINGS) -> HealthState:
    state = HealthState()
    for now, event in script:
        state = step(state, event, now, settings)
    return state


def polled(**signals: object) -> Polled:
    return Polled(gpu=A, signals=replace(Signals(), **signals))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (XID_79, FALLEN),
        (XidSeen(gpu=A, xid=999), "the driver reported XID 999"),
        (
            XidSeen(gpu=A, xid=94, gpu_instance=3, compute_instance=0),
            "the driver reported XID 94 (contained memory error) in GPU instance 3, compute instance 0",
        ),
        (
            XidSeen(gpu=A, xid=95, gpu_instance=3),
            "the driver reported XID 95 (uncontained memory error) in GPU instance 3",
        ),
        (DoubleBitError(gpu=A), "the driver reported an uncorrectable memory error"),
        (GpuLost(gpu=A, problem="GPU is lost"), "it does not answer: GPU is lost"),
        (polled(recovery_action=1), "the driver asks for a GPU reset"),
        (polled(recovery_action=9), "the driver asks for recovery action 9"),
        (polled(remap_pending=True), "a remapped memory row waits for a GPU reset"),
        (polled(remap_failed=True), "remapping a faulty memory row failed; the GPU needs replacing"),
        (polled(pages_pending=True), "a retired memory page waits for a GPU reset"),
        (polled(fabric_unhealthy=True), "the NVLink fabric calls it unhealthy"),
        (polled(fabric_broken=True), FABRIC_PROBLEM),
    ],
    ids=str,
)
def test_what_makes_a_gpu_unhealthy(event: HealthEvent, problem: str) -> None:
    assert problems(after([(0, event)])) == {A: problem}


@pytest.mark.parametrize(
    "event",
    [
        *(XidSeen(gpu=A, xid=xid) for xid in sorted(APPLICATION_XIDS)),
        XidSeen(gpu=None, xid=79),
        DoubleBitError(gpu=None),
        Hint(gpu=A),
        GOOD,
        polled(recovery_action=0),
        polled(uncorrected=12),
        polled(unread="memory errors: Unknown Error"),
        GpuLost(gpu=A, problem="Unknown Error", certain=False),
        Monitored(refused={A: "Not Supported"}),
    ],
    ids=str,
)
def test_what_does_not(event: HealthEvent) -> None:
    assert problems(after([(0, event)])) == {}


def test_uncorrected_errors_count_when_they_become_more() -> None:
    assert problems(after([(0, polled(uncorrected=2)), (5, polled(uncorrected=5))])) == {
        A: "uncorrected memory errors: 3 new"
    }
    assert problems(after([(0, polled(uncorrected=2)), (5, polled(uncorrected=0)), (9, polled(uncorrected=0))])) == {}
    assert problems(after([(0, polled(uncorrected=2)), (5, GOOD), (9, polled(uncorrected=2))])) == {}


def test_a_gpu_returns_when_it_was_well_for_the_hold_time_and_is_registered_anew() -> None:
    script: Script = [(0, XID_79), (1, GOOD), (2, REGISTERED)]
    assert problems(after([*script, (60.9, GOOD)])) == {A: FALLEN}
    assert problems(after([*script, (61, GOOD)])) == {}


def test_time_alone_brings_no_gpu_back() -> None:
    assert problems(after([(0, XID_79), (1, REGISTERED), (900, GOOD)])) == {A: FALLEN}


def test_a_gpu_that_is_not_registered_anew_stays_out() -> None:
    before = after([(0, XID_79), (0.5, REGISTERED), (1, GOOD), (70, GOOD)])
    assert problems(before) == {A: FALLEN}
    assert awaiting_events(before) == {A}
    tried = step(before, REGISTERED, 71, SETTINGS)
    assert awaiting_events(tried) == frozenset()
    assert problems(step(tried, GOOD, 75, SETTINGS)) == {}


def test_a_gpu_that_no_events_can_be_had_for_returns_by_its_polls_and_is_reported_unmonitored() -> None:
    state = after([(0, XID_79), (1, GOOD), (2, Monitored(refused={A: "Not Supported"})), (61, GOOD)])
    assert (problems(state), state.unmonitored) == ({}, {A: "Not Supported"})
    assert step(state, REGISTERED, 70, SETTINGS).unmonitored == {}


@pytest.mark.parametrize(
    "setback",
    [
        XidSeen(gpu=A, xid=48),
        DoubleBitError(gpu=A),
        GpuLost(gpu=A, problem="GPU is lost"),
        polled(remap_pending=True),
        polled(unread="recovery action: Unknown Error"),
        polled(fabric_broken=True),
    ],
    ids=str,
)
def test_a_setback_starts_the_hold_time_again(setback: HealthEvent) -> None:
    script: Script = [(0, XID_79), (1, GOOD), (2, REGISTERED), (40, setback), (45, GOOD), (46, REGISTERED)]
    assert A in problems(after([*script, (61, GOOD), (104.9, GOOD)]))
    assert problems(after([*script, (61, GOOD), (105, GOOD)])) == {}


def test_an_application_error_does_not_delay_the_return() -> None:
    script: Script = [(0, XID_79), (1, GOOD), (2, REGISTERED), (40, XidSeen(gpu=A, xid=31)), (61, GOOD)]
    assert problems(after(script)) == {}


def test_a_poll_without_an_answer_counts_when_the_next_one_has_none_either() -> None:
    silent = GpuLost(gpu=A, problem="Unknown Error", certain=False)
    once = after([(0, silent)])
    assert (problems(once), doubted(once)) == ({}, True)
    assert problems(step(once, silent, 1, SETTINGS)) == {A: "it does not answer: Unknown Error"}
    well = step(once, GOOD, 1, SETTINGS)
    assert (problems(well), doubted(well)) == ({}, False)
    assert problems(step(well, silent, 2, SETTINGS)) == {}


def test_a_fabric_that_is_to_be_left_out_makes_no_gpu_unhealthy() -> None:
    settings = HealthSettings(checks=("-fabric",))
    assert problems(after([(0, polled(fabric_broken=True))], settings)) == {}
    assert (settings.signals, settings.watches, settings.is_fatal(79)) == (True, True, True)


def test_an_xid_does_not_hide_what_still_stands() -> None:
    script: Script = [(0, polled(remap_failed=True)), (1, XID_79)]
    assert problems(after(script)) == problems(after(script[:1]))


def test_without_signals_they_only_delay_the_return() -> None:
    settings = HealthSettings(checks=("-all", "79"))
    pending = polled(remap_pending=True)
    assert (
        problems(after([(0, pending), (1, GpuLost(gpu=A, problem="lost")), (2, DoubleBitError(gpu=A))], settings)) == {}
    )
    assert A in problems(after([(0, XID_79), (1, GOOD), (2, REGISTERED), (61, pending)], settings))


def test_two_gpus_are_judged_apart() -> None:
    state = after([(0, XID_79), (1, XidSeen(gpu=B, xid=48)), (2, GOOD), (3, REGISTERED), (62, GOOD)])
    assert problems(state) == {B: "the driver reported XID 48 (uncorrectable memory error)"}


# Laws.

_SIGNALS = st.builds(
    Signals,
    recovery_action=st.sampled_from([None, 0, 0, 0, 1, 4]),
    remap_pending=st.sampled_from([False, False, True]),
    uncorrected=st.sampled_from([None, 0, 0, 1]),
    fabric_broken=st.sampled_from([False, False, True]),
    unread=st.sampled_from(["", "", "memory errors: Unknown Error"]),
)


def _events(gpus: st.SearchStrategy[DeviceUUID]) -> st.SearchStrategy[HealthEvent]:
    return st.one_of(
        st.builds(XidSeen, gpu=gpus, xid=st.sampled_from([13, 31, 48, 79])),
        st.builds(DoubleBitError, gpu=gpus),
        st.builds(Polled, gpu=gpus, signals=_SIGNALS),
        st.builds(Polled, gpu=gpus, signals=st.just(Signals())),
        st.builds(GpuLost, gpu=gpus, problem=st.just("GPU is lost")),
        st.builds(Monitored, gpus=st.frozensets(gpus)),
    )


def _scripts(gpus: st.SearchStrategy[DeviceUUID]) -> st.SearchStrategy[Script]:
    gaps_and_events = st.lists(st.tuples(st.integers(0, 90), _events(gpus)), max_size=30)

    def timed(steps: list[tuple[int, HealthEvent]]) -> Script:
        times = accumulate(gap for gap, _ in steps)
        return [(now, event) for now, (_, event) in zip(times, steps, strict=True)]

    return gaps_and_events.map(timed)


SCRIPTS_OF_A = _scripts(st.just(A))
SCRIPTS = _scripts(st.sampled_from([A, B]))


def _is_bad(event: HealthEvent) -> bool:
    match event:
        case XidSeen(xid=xid):
            return SETTINGS.is_fatal(xid)
        case Polled(signals=signals):
            return bool(signals.recovery_action) or signals.remap_pending or signals.fabric_broken
        case DoubleBitError() | GpuLost():
            return True
    return False


@given(SCRIPTS_OF_A)
def test_no_gpu_becomes_healthy_within_the_hold_time_of_a_bad_sign(script: Script) -> None:
    state, last_bad = HealthState(), -HOLD
    for now, event in script:
        before, state = state, step(state, event, now, SETTINGS)
        last_bad = now if _is_bad(event) else last_bad
        if problems(before) and not problems(state):
            assert now - last_bad >= HOLD


@given(SCRIPTS)
def test_what_happens_to_one_gpu_changes_no_other(script: Script) -> None:
    of_a = [(now, event) for now, event in script if isinstance(event, Monitored) or event.gpu == A]
    assert after(script).gpus.get(A) == after(of_a).gpus.get(A)


@given(SCRIPTS, st.integers(0, 100), st.integers(0, 5))
def test_a_gpu_that_was_lost_and_answers_well_again_returns(script: Script, away: int, pause: int) -> None:
    lost = (script[-1][0] if script else 0.0) + away
    back = lost + pause
    state = after([*script, (lost, GpuLost(gpu=A, problem="GPU is lost"))])
    ending: Script = [(back, GOOD), (back, REGISTERED), (back + HOLD, GOOD)]
    for now, event in ending:
        assert A in problems(state)
        state = step(state, event, now, SETTINGS)
    assert A not in problems(state)


@given(SCRIPTS, st.sampled_from(sorted(APPLICATION_XIDS)), st.sampled_from([A, B, None]))
def test_an_ignored_xid_changes_nothing(script: Script, xid: int, gpu: DeviceUUID | None) -> None:
    state = after(script)
    assert step(state, XidSeen(gpu=gpu, xid=xid), 1e6, SETTINGS) == state


@given(SCRIPTS)
def test_with_everything_off_nothing_is_unhealthy(script: Script) -> None:
    settings = HealthSettings(checks=("-all",))
    assert not settings.watches
    assert problems(after(script, settings)) == {}


# What counts.


@pytest.mark.parametrize(
    ("checks", "fatal", "harmless", "signals"),
    [
        ("", {48, 79}, {13, 31, 43, 45, 68, 109}, True),
        ("-79 -48", {74}, {13, 48, 79}, True),
        ("13", {13, 79}, {31}, True),
        ("-xids", set(), {13, 79}, True),
        ("-all", set(), {13, 79}, False),
        ("-all 79", {79}, {13, 48}, False),
        ("-xids 79 48", {48, 79}, {13, 74}, True),
        ("-79 79", {79}, {13}, True),
        ("all", {13, 31, 79}, set(), True),
        ("-all all", {13, 31, 79}, set(), True),
    ],
)
def test_health_checks(checks: str, fatal: set[int], harmless: set[int], signals: bool) -> None:
    settings = HealthSettings(checks=tuple(checks.split()))
    assert {xid for xid in fatal | harmless if settings.is_fatal(xid)} == fatal
    assert settings.signals is signals
    assert settings.watches is (signals or bool(fatal))


@pytest.mark.parametrize("action", [None, 0])
def test_no_recovery_action_is_no_problem(action: int | None) -> None:
    assert recovery_problem(action) == ""


def watching(settings: HealthSettings = SETTINGS) -> Callable[[float, HealthEvent], Sequence[str]]:
    """The watch over GPU A. Its commands are what has changed for pods, and what has to be done next."""
    state = HealthState()

    def machine(now: float, event: HealthEvent) -> Sequence[str]:
        nonlocal state
        before, state = problems(state).get(A), step(state, event, now, settings)
        after = problems(state).get(A)
        commands = [] if after == before else [f"withdraw it: {after}" if after else "offer it again"]
        commands += ["poll soon"] if doubted(state) else []
        return commands + (["register for events"] if awaiting_events(state) else [])

    return machine


def test_a_gpu_that_fell_off_the_bus_is_offered_again_after_good_polls_and_a_registration() -> None:
    converse(
        watching(HealthSettings(recovery_seconds=10, recovery_polls=2)),
        (0, GOOD, []),
        (5, XID_79, [f"withdraw it: {FALLEN}"]),
        (10, GOOD, ["register for events"]),
        (11, REGISTERED, []),
        (15, GOOD, []),
        (20, GOOD, ["offer it again"]),
    )


def test_a_gpu_that_did_not_answer_once_is_polled_soon_and_withdrawn_if_it_stays_silent() -> None:
    silent = GpuLost(gpu=A, problem="Unknown Error", certain=False)
    converse(
        watching(),
        (0, silent, ["poll soon"]),
        (1, GOOD, []),
        (5, silent, ["poll soon"]),
        (6, silent, ["withdraw it: it does not answer: Unknown Error"]),
    )
