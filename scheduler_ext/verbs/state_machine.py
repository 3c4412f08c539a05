"""One bind as a state machine. Each event has one row per state in `TABLE`; nothing else can happen.

The law behind it: the GPUs of a Binding that may still be carried out are reserved. During that time the attempt is
`unanswered`. It then ends only by a check of the Binding's outcome.

`BindMachine` performs the effects that need no waiting; the caller does the rest. It has no task, no clock and no
network: the state, the time and the files are passed in.
"""

from collections.abc import Callable
from enum import StrEnum
from itertools import count
from typing import NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import replace

from proto.devices import PodShares
from scheduler_ext.cluster.events import BindBegan, BindingSent, BindStep, Dropped, TimePassed
from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.cluster.records import RecordState
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.settings import ServeSettings


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
    IMPOSSIBLE = "no Binding possible"
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
    (S.RECOVERING, E.IMPOSSIBLE): Transition(S.REFUSED, (D.CROSS_OUT,), unanswered=False),
    (S.DECIDING, E.DECIDED): Transition(S.WRITING, _BEGIN_WRITING),
    (S.DECIDING, E.LOCK_NEEDED): Transition(S.QUEUED, (D.HOLD, D.TAKE_TURN)),
    (S.DECIDING, E.HAS_NODE): _DONE,
    (S.DECIDING, E.IMPOSSIBLE): _GIVEN_UP_FOR_GOOD,
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
    (S.SENDING, E.IMPOSSIBLE): _GIVEN_UP_FOR_GOOD,
    (S.SENDING, E.STOPPED): _GIVEN_UP,
    (S.SENDING, E.CUT_OFF): _GIVEN_UP_UNANSWERED,
    (S.CHECKING, E.HAS_NODE): _DONE,
    (S.CHECKING, E.NOT_BOUND): _GIVEN_UP_UNANSWERED,
    (S.CHECKING, E.IMPOSSIBLE): _GIVEN_UP_FOR_GOOD,
    (S.CHECKING, E.STOPPED): _GIVEN_UP_UNANSWERED,
    (S.CHECKING, E.CUT_OFF): _GIVEN_UP_UNANSWERED,
    (S.SETTLING, E.HAS_NODE): Transition(S.BOUND, (D.CROSS_OUT,), unanswered=False),
    (S.SETTLING, E.NOT_BOUND): Transition(S.REFUSED, (D.DROP, D.CROSS_OUT), unanswered=False),
    (S.SETTLING, E.UNKNOWN): Transition(S.SETTLING, (D.CHECK_LATER,)),
    (S.SETTLING, E.OVERTAKEN): Transition(S.OVERTAKEN, (D.CROSS_OUT,), unanswered=False),
    (S.SETTLING, E.CUT_OFF): Transition(S.OVERTAKEN),
}


class BindAttempt(Struct, frozen=True, kw_only=True, gc=False):
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


class StepResult(NamedTuple):
    """The attempt after an event, and the effects that are to be performed, in their order. `problem` is the reason if
    the attempt could not go on.
    """

    attempt: BindAttempt
    effects: tuple[BindEffect, ...]
    problem: str = ""


def step(attempt: BindAttempt, event: BindEvent) -> StepResult:
    """Returns the attempt after the event. Raises KeyError for an event that cannot happen in this state."""
    row = TABLE[attempt.state, event]
    unanswered = attempt.unanswered if row.unanswered is None else row.unanswered
    state, effects = GIVING_UP[unanswered] if row.to is None else (row.to, row.effects)
    locked = attempt.locked or state is BindState.LOCKING
    effects = tuple(effect for effect in effects if effect is not BindEffect.UNLOCK or locked)
    return StepResult(replace(attempt, state=state, unanswered=unanswered, locked=locked), effects)


class SentBinding(Struct, frozen=True, gc=False):
    """A Binding of this pod to this node, with these shares."""

    pod: PodName
    uid: str
    node: str
    shares: PodShares


class Journal(Protocol):
    """Keeps what is sent and unanswered, for the next process. `add` raises OSError."""

    def add(self, sent: SentBinding) -> None: ...

    def remove(self, uid: str) -> None: ...

    def clear(self) -> None: ...


class BindMachine:
    """The attempts of one process, and what their steps change in `state` and `files`."""

    def __init__(
        self, *, state: Cluster, settings: ServeSettings, monotonic: Callable[[], float], files: Journal | None
    ) -> None:
        self._state = state
        self._records = state.ledger.records
        self._settings = settings
        self._monotonic = monotonic
        self._files = files
        self._numbers = count(1)

    def begin(self, pod: PodName, uid: str, node: str) -> BindAttempt:
        """Returns a new attempt, for a bind that kube-scheduler requests."""
        self._state.apply(TimePassed(), self._monotonic())
        unanswered = self._records.sent_to(uid) == node
        return BindAttempt(number=next(self._numbers), pod=pod, uid=uid, node=node, unanswered=unanswered)

    def left_behind(self, sent: SentBinding) -> BindAttempt:
        """Returns the attempt of the previous process that sent this Binding."""
        return BindAttempt(
            number=next(self._numbers),
            pod=sent.pod,
            uid=sent.uid,
            node=sent.node,
            state=BindState.RECOVERING,
            unanswered=True,
            shares=sent.shares,
        )

    def forget_sent(self) -> None:
        """Drops the reservations of everything that was sent from here. Another process may have had the turn to write
        Bindings and have given these GPUs to other pods. Nothing of it can be carried out any more.
        """
        if self._files is not None:
            self._files.clear()
        now = self._monotonic()
        self._state.apply(TimePassed(), now)
        for record in self._records.of(RecordState.SENT):
            self._state.apply(Dropped(record.uid), now)

    def after(self, attempt: BindAttempt, event: BindEvent) -> StepResult:
        """Takes the attempt one step further. Returns the effects that are left to the caller."""
        attempt, effects, _ = step(attempt, event)
        words = f"its bind to node {attempt.node}: {event}, now {attempt.state}"
        self._state.apply(BindStep(attempt.uid, words), self._monotonic())
        for effect in effects:
            if effect is BindEffect.WRITE_DOWN:
                problem = self._not_held(attempt) or self._not_written(attempt)
                if problem:
                    return self.after(attempt, BindEvent.STOPPED)._replace(problem=problem)
            else:
                self._perform(attempt, effect)
        return StepResult(attempt, tuple(effect for effect in effects if effect not in AT_ONCE))

    def _perform(self, attempt: BindAttempt, effect: BindEffect) -> None:
        match effect:
            case BindEffect.HOLD if self._has_reservation(attempt):
                self._hold(attempt, self._settings.reservation_lease_seconds)
            case BindEffect.HOLD_LONG if self._has_reservation(attempt):
                self._hold(attempt, self._settings.bound_lease_seconds)
            case BindEffect.DROP if self._has_reservation(attempt):
                self._state.apply(Dropped(attempt.uid), self._monotonic())
            case BindEffect.MARK if attempt.shares is not None:
                self._state.apply(BindingSent(attempt.uid, attempt.number), self._monotonic())
            case BindEffect.CROSS_OUT if self._files is not None and not self._is_tied_to_another(attempt):
                self._files.remove(attempt.uid)

    def _hold(self, attempt: BindAttempt, lease_seconds: float) -> None:
        now = self._monotonic()
        self._state.apply(BindBegan(attempt.uid, self._settings.held_until(now, lease_seconds)), now)

    def _not_held(self, attempt: BindAttempt) -> str:
        """Returns why the Binding may not be sent; empty if it may. Unless the GPUs are reserved or bound, others may
        get them before the watch shows the pod.
        """
        known = self._state.pods.pod(attempt.pod)
        is_bound = known is not None and known.uid == attempt.uid and known.node == attempt.node
        if attempt.shares is None or is_bound or self._has_reservation(attempt):
            return ""
        return "its reservation ended before its Binding was sent"

    def _not_written(self, attempt: BindAttempt) -> str:
        """Writes the Binding to its file, before it is sent: if this process is killed, the next one knows of it.
        Returns the problem; empty without one.
        """
        if self._files is None or attempt.shares is None:
            return ""
        try:
            self._files.add(SentBinding(attempt.pod, attempt.uid, attempt.node, attempt.shares))
        except OSError as error:
            return f"the Binding cannot be written to its file before it is sent: {error.strerror}"
        return ""

    def _has_reservation(self, attempt: BindAttempt) -> bool:
        reservation = self._records.reserved(attempt.uid)
        return reservation is not None and reservation.node == attempt.node

    def _is_tied_to_another(self, attempt: BindAttempt) -> bool:
        """Returns whether another attempt wrote the file: its Binding may still be carried out."""
        reservation = self._records.reserved(attempt.uid)
        return reservation is not None and reservation.sent_by not in (0, attempt.number)
