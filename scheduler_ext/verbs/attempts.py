"""Takes each bind from event to event, and does at once what needs no waiting. The caller does the rest.

It has no task, no clock and no network: the state, the time and the files are passed in.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, Protocol

from proto.devices import PodShares
from proto.kubernetes.objects import Pod
from scheduler_ext.cluster import events
from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.cluster.records import RecordState
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.settings import ServeSettings
from scheduler_ext.verbs.bind_decision import BindRefused, alive
from scheduler_ext.verbs.state_machine import AT_ONCE, BindAttempt, BindEffect, BindEvent, BindState, step


@dataclass(frozen=True, slots=True)
class Sent:
    """A Binding of this pod to this node, with these shares."""

    pod: PodName
    uid: str
    node: str
    shares: PodShares


class Journal(Protocol):
    """Keeps what is sent and unanswered, for the next process. `add` raises OSError."""

    def add(self, sent: Sent) -> None: ...

    def remove(self, uid: str) -> None: ...

    def clear(self) -> None: ...


class Progress(NamedTuple):
    """The attempt after an event, and the effects that are left to the caller, in their order.

    `problem` is the reason if the attempt could not go on.
    """

    attempt: BindAttempt
    left: tuple[BindEffect, ...]
    problem: str = ""


class Attempts:
    """The attempts of one process. `apply` writes an event to `state`."""

    def __init__(
        self,
        *,
        state: Cluster,
        apply: Callable[[events.ClusterEvent], None],
        monotonic: Callable[[], float],
        settings: ServeSettings,
        files: Journal | None,
        numbers: Iterator[int] | None = None,
    ) -> None:
        """`numbers` are those of new attempts: none may be used twice."""
        self._state = state
        self._ledger = state.ledger
        self._apply = apply
        self._monotonic = monotonic
        self._settings = settings
        self._files = files
        self._numbers = count(1) if numbers is None else numbers

    def begin(self, pod: PodName, uid: str, node: str) -> BindAttempt:
        """Returns a new attempt, for a bind that kube-scheduler requests."""
        self._apply(events.TimePassed())
        unanswered = self._ledger.records.sent_to(uid) == node
        return BindAttempt(number=next(self._numbers), pod=pod, uid=uid, node=node, unanswered=unanswered)

    def left_behind(self, sent: Sent) -> BindAttempt:
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

    def recovered(self, attempt: BindAttempt, pod: Pod | None) -> Progress:
        """Continues an attempt of the previous process, once its pod was read. `pod` is None if there is none of its
        name.
        """
        try:
            pod = alive(attempt, pod)
        except BindRefused:
            return self.after(attempt, BindEvent.VOID)
        if pod.spec.node_name:
            return self.after(attempt, BindEvent.HAS_NODE)
        self._apply(events.Decided(attempt.uid, pod, attempt.node, attempt.shares or (), self._until(0.0)))
        return self.after(attempt, BindEvent.NOT_BOUND)

    def forget_sent(self) -> None:
        """Drops the reservations of everything that was sent from here. Another process may have had the turn to write
        Bindings and have given these GPUs to other pods. Nothing of it can be carried out any more.
        """
        if self._files is not None:
            self._files.clear()
        self._apply(events.TimePassed())
        for record in self._ledger.records.of(RecordState.SENT):
            self._apply(events.Dropped(record.uid))

    def after(self, attempt: BindAttempt, event: BindEvent) -> Progress:
        """Takes the attempt one step further."""
        attempt, effects = step(attempt, event)
        self._apply(events.BindStep(attempt.uid, f"its bind to node {attempt.node}: {event}, now {attempt.state}"))
        for effect in effects:
            if effect is BindEffect.WRITE_DOWN:
                problem = self._not_held(attempt) or self._not_written(attempt)
                if problem:
                    return self.after(attempt, BindEvent.STOPPED)._replace(problem=problem)
            else:
                self._perform(attempt, effect)
        return Progress(attempt, tuple(effect for effect in effects if effect not in AT_ONCE))

    def _perform(self, attempt: BindAttempt, effect: BindEffect) -> None:
        match effect:
            case BindEffect.HOLD if self._has_reservation(attempt):
                self._apply(events.BindBegan(attempt.uid, self._until(self._settings.reservation_lease_seconds)))
            case BindEffect.HOLD_LONG if self._has_reservation(attempt):
                self._apply(events.BindBegan(attempt.uid, self._until(self._settings.bound_lease_seconds)))
            case BindEffect.DROP if self._has_reservation(attempt):
                self._apply(events.Dropped(attempt.uid))
            case BindEffect.MARK if attempt.shares is not None:
                self._apply(events.BindingSent(attempt.uid, attempt.number))
            case BindEffect.CROSS_OUT if self._files is not None and not self._is_tied_to_another(attempt):
                self._files.remove(attempt.uid)

    def _until(self, lease_seconds: float) -> float:
        return self._settings.held_until(self._monotonic(), lease_seconds)

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
            self._files.add(Sent(attempt.pod, attempt.uid, attempt.node, attempt.shares))
        except OSError as error:
            return f"the Binding cannot be written to its file before it is sent: {error.strerror}"
        return ""

    def _has_reservation(self, attempt: BindAttempt) -> bool:
        reservation = self._ledger.records.reserved(attempt.uid)
        return reservation is not None and reservation.node == attempt.node

    def _is_tied_to_another(self, attempt: BindAttempt) -> bool:
        """Returns whether another attempt wrote the file: its Binding may still be carried out."""
        reservation = self._ledger.records.reserved(attempt.uid)
        return reservation is not None and reservation.sent_by not in (0, attempt.number)
