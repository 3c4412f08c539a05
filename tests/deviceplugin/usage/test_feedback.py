from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.settings import Feedback
from deviceplugin.usage.feedback import GpuTasks, Who, of_interest, released, switched
from deviceplugin.usage.shared_region import Switches
from proto.devices import DeviceUUID

NOW = 1_000_000.0
A, B = DeviceUUID("GPU-a"), DeviceUUID("GPU-b")
FIRST, SECOND, THIRD = ("u1", "c"), ("u2", "c"), ("u3", "c")


def at(recent: int, switch: int = 1, *, ago: int | None = None) -> Switches:
    last = None if ago is None else int(NOW) - ago
    return Switches(recent_kernel=recent, utilization_switch=switch, last_kernel_unix_seconds=last)


def on(*gpus: DeviceUUID, priority: int = 1) -> GpuTasks:
    return GpuTasks(gpus=frozenset(gpus), priority=priority)


def after(
    tasks: Mapping[Who, GpuTasks], seen: Mapping[Who, Switches], feedback: Feedback = Feedback.PRIORITY
) -> dict[Who, tuple[int, int]]:
    return {
        who: (each.recent_kernel, each.utilization_switch) for who, each in switched(tasks, seen, feedback, NOW).items()
    }


PRIORITIES = {FIRST: on(A, priority=0), SECOND: on(A, priority=1)}


def test_a_task_waits_while_one_of_higher_priority_computes_on_its_gpu_and_goes_on_after_it() -> None:
    assert after(PRIORITIES, {FIRST: at(2), SECOND: at(2)}) == {FIRST: (1, 1), SECOND: (-1, 1)}
    assert after(PRIORITIES, {FIRST: at(1), SECOND: at(-1)}) == {FIRST: (0, 1), SECOND: (0, 1)}
    elsewhere = {FIRST: on(B, priority=0), SECOND: on(A, priority=1)}
    assert after(elsewhere, {FIRST: at(2), SECOND: at(2)}) == {FIRST: (1, 1), SECOND: (1, 1)}


def test_a_task_that_is_not_limited_computes_too_if_its_last_launch_was_just_now() -> None:
    """Where HAMi-core does not limit cores it tells of launches by their time only."""
    for ago, waits in ((0, True), (9, True), (10, False), (-60, False), (None, False)):
        found = after(PRIORITIES, {FIRST: at(0, ago=ago), SECOND: at(2)})
        assert found[SECOND] == ((-1 if waits else 1), 1), ago


def test_who_waits_does_not_make_others_wait() -> None:
    three = {**PRIORITIES, THIRD: on(A, B, priority=2)}
    seen = {FIRST: at(0), SECOND: at(-1, ago=1), THIRD: at(-1)}
    assert after(three, seen) == {FIRST: (0, 1), SECOND: (0, 1), THIRD: (0, 1)}


def test_limits_of_cores_hold_always_unless_contention_is_asked_for() -> None:
    equal = {FIRST: on(A), SECOND: on(A, B)}
    left = {FIRST: at(0, 0), SECOND: at(0, 0)}
    assert after(equal, left) == {FIRST: (0, 1), SECOND: (0, 1)}
    contention = Feedback.CONTENTION
    assert after(equal, {FIRST: at(2), SECOND: at(0)}, contention) == {FIRST: (1, 0), SECOND: (0, 0)}
    assert after(equal, {FIRST: at(2), SECOND: at(2)}, contention) == {FIRST: (1, 1), SECOND: (1, 1)}
    # Not held to its cores the first tells of its launches by time alone: a second one must find it all the same.
    assert after(equal, {FIRST: at(0, 0, ago=1), SECOND: at(2, 0)}, contention) == {FIRST: (0, 1), SECOND: (1, 1)}


def test_where_all_have_one_priority_no_region_is_looked_at() -> None:
    equal = {FIRST: on(A), SECOND: on(A, B), THIRD: on(B)}
    assert of_interest(equal, (), Feedback.PRIORITY) == frozenset()
    assert of_interest(equal, {THIRD}, Feedback.PRIORITY) == {THIRD}
    assert of_interest({**equal, THIRD: on(B, priority=0)}, (), Feedback.PRIORITY) == {SECOND, THIRD}
    assert of_interest(equal, (), Feedback.CONTENTION) == equal.keys()


SOME = st.dictionaries(
    st.sampled_from([(f"u{number}", "c") for number in range(6)]),
    st.tuples(
        st.builds(GpuTasks, gpus=st.frozensets(st.sampled_from([A, B]), min_size=1), priority=st.integers(0, 3)),
        st.builds(
            Switches,
            recent_kernel=st.integers(-1, 2),
            utilization_switch=st.integers(0, 1),
            last_kernel_unix_seconds=st.sampled_from([None, int(NOW) - 3, int(NOW) - 30]),
        ),
    ),
)


@given(SOME, st.sampled_from([Feedback.PRIORITY, Feedback.CONTENTION]))
def test_the_first_of_a_gpu_never_wait_and_all_go_on_once_nothing_is_launched_any_more(
    some: Mapping[Who, tuple[GpuTasks, Switches]], feedback: Feedback
) -> None:
    tasks = {who: each for who, (each, _) in some.items()}
    seen: Mapping[Who, Switches] = {who: each for who, (_, each) in some.items()}
    found = switched(tasks, seen, feedback, NOW)
    for who, each in tasks.items():
        others = [other.priority for other in tasks.values() if other.gpus & each.gpus]
        assert found[who].recent_kernel >= 0 or each.priority > min(others)
    for _ in range(3):
        found = switched(tasks, found, feedback, NOW + 60)
    assert {each.recent_kernel for each in found.values()} <= {0}


@pytest.mark.parametrize(("switches", "then"), [(at(-1, 0), (0, 1)), (at(2, 1), (2, 1))])
def test_what_is_left_to_itself_is_as_hami_core_begins(switches: Switches, then: tuple[int, int]) -> None:
    assert (released(switches).recent_kernel, released(switches).utilization_switch) == then
