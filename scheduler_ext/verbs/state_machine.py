"""One bind as a state machine. Each event has one row per state in `TABLE`; nothing else can happen.

The law behind it: the GPUs of a Binding that may still be carried out are reserved. During that time the attempt is
`unanswered`. It then ends only by a check of the Binding's outcome.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from proto.devices import PodShares
from scheduler_ext.cluster.pod_index import PodName


class BindState(StrEnum):
    RECOVERING = "Recovering"
    """A Binding of the previous process may still be carried out."""
    DECIDING = "Deciding"
    """The pod's GPUs on the node are found, or decided again."""
    QUEUED = "Queued"
    """A pod of a node with a lock waits while other pods are bound to the node first."""
    LOCKING = "Locking"
    WRITING = "Writing"
    """A Binding will be sent as soon as it is permitted."""
    SENDING = "Sending"
    """A Binding is on its way."""
    CHECKING = "Checking"
    """The API server refused the Binding because the pod has a node: which one is being read."""
    SETTLING = "Settling"
    """kube-scheduler got an error, but a Binding may still be carried out."""
    BOUND = "Bound"
    REFUSED = "Refused"
    """No Binding was carried out, and none will be."""
    OVERTAKEN = "Overtaken"
    """A later attempt, or the watch, has taken over."""


class BindEvent(StrEnum):
    DECIDED = "decided"
    LOCK_NEEDED = "decided, lock needed"
    TURN = "turn came"
    LOCKED = "lock taken"
    PERMITTED = "permitted"
    TAKEN = "accepted"
    LOST = "no answer, or 5xx"
    TURNED_AWAY = "429"
    CONFLICT = "409"
    HAS_NODE = "pod has the node"
    NOT_BOUND = "pod has no node"
    VOID = "no Binding possible"
    """The pod is gone or has another node: nothing that was sent can be carried out any more."""
    STOPPED = "cannot go on"
    CUT_OFF = "time is up"
    UNKNOWN = "not known yet"
    OVERTAKEN = "overtaken"


class BindEffect(StrEnum):
    HOLD = "hold the GPUs for the bind"
    HOLD_LONG = "hold the GPUs until the watch shows the pod"
    DROP = "free the GPUs"
    MARK = "tie the pod to the node"
    WRITE_DOWN = "write the Binding down"
    CROSS_OUT = "cross the Binding out"
    ANSWER = "answer kube-scheduler"
    DECIDE = "find or decide the GPUs"
    TAKE_TURN = "wait for the turn"
    TAKE_LOCK = "take the lock"
    GET_PERMISSION = "get permission"
    GET_PERMISSION_LATER = "get permission after a pause"
    SEND = "send the Binding"
    READ = "read the pod"
    CHECK_LATER = "check the outcome later"
    UNLOCK = "release the lock"


S, E, D = BindState, BindEvent, BindEffect

AT_ONCE = frozenset({D.HOLD, D.HOLD_LONG, D.DROP, D.MARK, D.WRITE_DOWN, D.CROSS_OUT})
"""The effects on what this process knows and keeps: they need no waiting."""
AWAITED = frozenset(BindEffect) - AT_ONCE - {D.ANSWER, D.CHECK_LATER, D.UNLOCK}
"""The effects for which kube-scheduler waits: each ends in the next event."""


class Transition(NamedTuple):
    """The next state and the actions. `unanswered` is the new value; None leaves it."""

    to: BindState | None
    """The next state; None if the attempt gives up: SETTLING if it is unanswered, else REFUSED."""
    effects: tuple[BindEffect, ...] = ()
    unanswered: bool | None = None


_BEGIN_WRITING = (D.HOLD, D.MARK, D.WRITE_DOWN, D.GET_PERMISSION)
_DONE = Transition(S.BOUND, (D.HOLD_LONG, D.CROSS_OUT, D.ANSWER), unanswered=False)
_GIVEN_UP = Transition(None)
_GIVEN_UP_FOR_GOOD = Transition(None, unanswered=False)
_GIVEN_UP_UNANSWERED = Transition(None, unanswered=True)
GIVING_UP = {
    False: (S.REFUSED, (D.DROP, D.CROSS_OUT, D.ANSWER, D.UNLOCK)),
    True: (S.SETTLING, (D.HOLD_LONG, D.ANSWER, D.UNLOCK, D.CHECK_LATER)),
}
"""The next state and the actions when an attempt gives up, for one that is not, or is, unanswered."""

TABLE: dict[tuple[BindState, BindEvent], Transition] = {
    (S.RECOVERING, E.NOT_BOUND): Transition(S.SETTLING, (D.MARK, D.HOLD_LONG, D.CHECK_LATER), unanswered=True),
    (S.RECOVERING, E.HAS_NODE): Transition(S.BOUND, (D.CROSS_OUT,), unanswered=False),
    (S.RECOVERING, E.VOID): Transition(S.REFUSED, (D.CROSS_OUT,), unanswered=False),
    (S.DECIDING, E.DECIDED): Transition(S.WRITING, _BEGIN_WRITING),
    (S.DECIDING, E.LOCK_NEEDED): Transition(S.QUEUED, (D.HOLD, D.TAKE_TURN)),
    (S.DECIDING, E.HAS_NODE): _DONE,
    (S.DECIDING, E.VOID): _GIVEN_UP_FOR_GOOD,
    (S.DECIDING, E.STOPPED): _GIVEN_UP,
    (S.DECIDING, E.CUT_OFF): _GIVEN_UP,
    (S.QUEUED, E.TURN): Transition(S.LOCKING, (D.TAKE_LOCK,)),
    (S.QUEUED, E.STOPPED): _GIVEN_UP,
    (S.QUEUED, E.CUT_OFF): _GIVEN_UP,
    (S.LOCKING, E.LOCKED): Transition(S.WRITING, _BEGIN_WRITING),
    (S.LOCKING, E.STOPPED): _GIVEN_UP,
    (S.LOCKING, E.CUT_OFF): _GIVEN_UP,
    (S.WRITING, E.PERMITTED): Transition(S.SENDING, (D.SEND,)),
    (S.WRITING, E.STOPPED): _GIVEN_UP,
    (S.WRITING, E.CUT_OFF): _GIVEN_UP,
    (S.SENDING, E.TAKEN): _DONE,
    (S.SENDING, E.LOST): Transition(S.WRITING, (D.GET_PERMISSION_LATER,), unanswered=True),
    (S.SENDING, E.TURNED_AWAY): Transition(S.WRITING, (D.GET_PERMISSION_LATER,)),
    (S.SENDING, E.CONFLICT): Transition(S.CHECKING, (D.READ,), unanswered=True),
    (S.SENDING, E.VOID): _GIVEN_UP_FOR_GOOD,
    (S.SENDING, E.STOPPED): _GIVEN_UP,
    (S.SENDING, E.CUT_OFF): _GIVEN_UP_UNANSWERED,
    (S.CHECKING, E.HAS_NODE): _DONE,
    (S.CHECKING, E.NOT_BOUND): _GIVEN_UP_UNANSWERED,
    (S.CHECKING, E.VOID): _GIVEN_UP_FOR_GOOD,
    (S.CHECKING, E.STOPPED): _GIVEN_UP_UNANSWERED,
    (S.CHECKING, E.CUT_OFF): _GIVEN_UP_UNANSWERED,
    (S.SETTLING, E.HAS_NODE): Transition(S.BOUND, (D.CROSS_OUT,), unanswered=False),
    (S.SETTLING, E.NOT_BOUND): Transition(S.REFUSED, (D.DROP, D.CROSS_OUT), unanswered=False),
    (S.SETTLING, E.UNKNOWN): Transition(S.SETTLING, (D.CHECK_LATER,)),
    (S.SETTLING, E.OVERTAKEN): Transition(S.OVERTAKEN, (D.CROSS_OUT,), unanswered=False),
    (S.SETTLING, E.CUT_OFF): Transition(S.OVERTAKEN),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BindAttempt:
    """One attempt at a bind. `number` distinguishes it from other attempts for the same pod. `shares` is None until
    decided, and without GPUs.
    """

    number: int
    pod: PodName
    uid: str
    node: str
    state: BindState = BindState.DECIDING
    unanswered: bool = False
    """True if a Binding that was sent, here or by an earlier attempt, may still be carried out."""
    locked: bool = False
    """True if it may hold the node's lock."""
    shares: PodShares | None = None


def step(attempt: BindAttempt, event: BindEvent) -> tuple[BindAttempt, tuple[BindEffect, ...]]:
    """Returns the attempt after the event, and the actions. Raises KeyError for an event that cannot happen in this
    state.
    """
    row = TABLE[attempt.state, event]
    unanswered = attempt.unanswered if row.unanswered is None else row.unanswered
    state, effects = GIVING_UP[unanswered] if row.to is None else (row.to, row.effects)
    locked = attempt.locked or state is BindState.LOCKING
    effects = tuple(effect for effect in effects if effect is not BindEffect.UNLOCK or locked)
    return replace(attempt, state=state, unanswered=unanswered, locked=locked), effects
