"""The small world of the model checker: the extender's machines survive it, and machines with a defect do not."""

from collections.abc import Iterator

import pytest

from scheduler_ext.cluster import events
from scheduler_ext.verbs.state_machine import BindAttempt, BindEvent, BindMachine, BindState, StepResult
from simulation.model.objects import WAITING, ModelPod
from simulation.model.process import Act, ActKind, Local, Machines, ModelProcess
from simulation.model.rules import Bounds, WorldRules
from simulation.model.search import Searched, TooLarge, WorldStep, search


def searched(machines: Machines | None = None, *, pods: int = 2, faults: int, most: int = 50_000) -> Searched:
    rules = WorldRules(Bounds(pods=pods, gpus=2, faults=faults), machines)
    return search(rules.start(), rules.steps, rules.wrong, rules.is_over, most=most)


def test_no_gpu_is_overbooked_and_every_pod_ends_bound_or_refused_with_one_fault_at_any_moment() -> None:
    found = searched(faults=1)
    assert (found.problem, found.trace) == ("", ())
    assert found.states > 10_000


def test_three_pods_for_two_nodes_end_bound_or_refused_in_any_order() -> None:
    assert searched(pods=3, faults=0).problem == ""


def test_pods_are_alike_for_a_process_of_the_model() -> None:
    """A state is searched once for all orders of its pods."""
    devices = "GPU-a-0,NVIDIA,1000,0:;"

    def seen_bound(pod: int) -> Local:
        process = ModelProcess(Machines(), gpus=1, pods=2, left=())
        process.act(Act(ActKind.LISTED, every=(WAITING, WAITING)))
        process.act(Act(ActKind.SEEN, pod, ModelPod("a", devices)))
        return process.local()

    assert seen_bound(0) == seen_bound(1)[::-1]


class ALostAnswerFrees(BindMachine):
    """A Binding without an answer frees the GPUs, as if the pod were gone."""

    def after(self, attempt: BindAttempt, event: BindEvent) -> StepResult:
        return super().after(attempt, BindEvent.IMPOSSIBLE if event is BindEvent.LOST else event)


class DropsWhenSent(BindMachine):
    """The reservation ends as soon as the Binding is sent."""

    def after(self, attempt: BindAttempt, event: BindEvent) -> StepResult:
        result = super().after(attempt, event)
        if result.attempt.state is BindState.SENDING:
            self._state.apply(events.Dropped(attempt.uid), self._monotonic())
        return result


DEFECTS = {
    "the new leader does not wait for the Binding Lease": (Machines(free_at=lambda *_: 0.0), 1),
    "the reservation is dropped when the Binding is sent": (Machines(binds=DropsWhenSent), 0),
    "an answer that is lost frees the GPUs": (Machines(binds=ALostAnswerFrees), 1),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_in_a_machine_is_found_as_an_overbooked_gpu(defect: str) -> None:
    machines, faults = DEFECTS[defect]
    found = searched(machines, faults=faults)
    assert "is over-booked" in found.problem
    assert found.trace


def counting(number: int) -> Iterator[WorldStep[int]]:
    yield WorldStep("up", (number + 1) % 10)
    yield WorldStep("trap", 10, fault=True)


def test_a_state_that_only_a_fault_leaves_is_found() -> None:
    found = search(0, lambda n: counting(n) if n < 10 else iter(()), lambda _: "", lambda n: n == 5, most=100)
    assert (found.states, found.trace) == (11, ("trap",))
    assert found.problem == "without a further fault it never comes to its end"


def test_a_world_larger_than_granted_is_refused() -> None:
    with pytest.raises(TooLarge):
        search(0, counting, lambda _: "", lambda _: True, most=3)
