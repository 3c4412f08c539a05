"""Dialogues with the machine of a bind: what happens, and what is done then, to the end."""

from collections.abc import Callable, Sequence

from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.verbs.state_machine import BindAttempt, BindEffect, BindEvent, BindState, step
from tests.playbook import converse

D, E = BindEffect, BindEvent
BEGIN_WRITING = (D.HOLD, D.MARK, D.WRITE_DOWN, D.GET_PERMISSION)


def a_bind(state: BindState = BindState.DECIDING) -> Callable[[float, BindEvent], Sequence[BindEffect]]:
    attempt = BindAttempt(number=1, pod=PodName(namespace="default", name="p"), uid="u", node="n", state=state)

    def machine(_: float, event: BindEvent) -> Sequence[BindEffect]:
        nonlocal attempt
        result = step(attempt, event)
        attempt = result.attempt
        return result.effects

    return machine


def test_a_bind_whose_answer_is_lost_is_sent_again_and_ends_with_what_the_pod_shows() -> None:
    converse(
        a_bind(),
        (0, E.DECIDED, BEGIN_WRITING),
        (1, E.PERMITTED, [D.SEND]),
        (2, E.LOST, [D.GET_PERMISSION_LATER]),
        (3, E.PERMITTED, [D.SEND]),
        (4, E.CONFLICT, [D.READ]),
        (5, E.HAS_NODE, [D.HOLD_LONG, D.CROSS_OUT, D.ANSWER]),
    )


def test_a_bind_that_runs_out_of_time_keeps_its_gpus_until_its_outcome_is_known() -> None:
    converse(
        a_bind(),
        (0, E.DECIDED, BEGIN_WRITING),
        (1, E.PERMITTED, [D.SEND]),
        (9, E.CUT_OFF, [D.HOLD_LONG, D.ANSWER, D.CHECK_LATER]),
        (10, E.UNKNOWN, [D.CHECK_LATER]),
        (11, E.NOT_BOUND, [D.DROP, D.CROSS_OUT]),
    )


def test_a_bind_that_was_never_sent_frees_its_gpus_and_its_lock_at_once() -> None:
    converse(
        a_bind(),
        (0, E.LOCK_NEEDED, [D.HOLD, D.TAKE_TURN]),
        (1, E.TURN, [D.TAKE_LOCK]),
        (2, E.LOCKED, BEGIN_WRITING),
        (3, E.STOPPED, [D.DROP, D.CROSS_OUT, D.ANSWER, D.UNLOCK]),
    )


def test_a_bind_of_the_process_before_is_checked_until_another_attempt_overtakes_it() -> None:
    converse(
        a_bind(BindState.RECOVERING),
        (0, E.NOT_BOUND, [D.MARK, D.HOLD_LONG, D.CHECK_LATER]),
        (1, E.UNKNOWN, [D.CHECK_LATER]),
        (2, E.OVERTAKEN, [D.CROSS_OUT]),
    )
