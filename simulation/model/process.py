"""One process of the extender in the small world: its state and bind machines, and what its shell keeps beside them.

A process is a value here. It is its `Local` state, and the shortest list of acts that leads there makes it again. So
each act is performed once for each such state, however many states of the world contain it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from math import ceil
from typing import NamedTuple

from proto.annotations.keys import DEVICES_ALLOCATED
from proto.annotations.node_lock import BindPhase
from proto.annotations.pod_devices import encode_pod_devices
from proto.devices import PodShares
from proto.kubernetes.objects import Node, Pod
from scheduler_ext.cluster import events
from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.leadership.turn import Turn, free_at
from scheduler_ext.requests import read_request
from scheduler_ext.settings import ServeSettings
from scheduler_ext.verbs.bind_decision import (
    BindRefused,
    DecidedAttempt,
    binding_of,
    decide_read,
    decide_unread,
    event_after_conflict,
    event_after_restart,
    event_after_settling,
    is_unsettled,
)
from scheduler_ext.verbs.filter_decision import FilterDecision
from scheduler_ext.verbs.state_machine import (
    AWAITED,
    BindAttempt,
    BindEffect,
    BindEvent,
    BindMachine,
    SentBinding,
    StepResult,
)
from simulation.model.objects import NAMESPACE, NODES, ModelPod, node_object, pod_name, pod_object, uid_of

TICK_SECONDS = 5.0
SETTINGS = ServeSettings(
    bind_deadline_seconds=10, reservation_lease_seconds=5, bound_lease_seconds=15, settle_seconds=10, binding_seconds=5
)
"""The shipped times where a Binding is concerned; leases and waits only as long as their order requires."""
_MOST_ALIVE = 2_000
_SOME_DAY = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """The machines that are searched. A test seeds a defect by giving another one."""

    binds: type[BindMachine] = BindMachine
    free_at: Callable[[Turn, str], float] = free_at
    settings: ServeSettings = SETTINGS


class ActKind(StrEnum):
    FILTER = "filter"
    BIND = "bind"
    READ = "read"
    """The pod was read for a bind, to decide or after a 409."""
    UNREADABLE = "unreadable"
    """The API server did not answer the question."""
    PERMITTED = "permitted"
    FORBIDDEN = "forbidden"
    ANSWERED = "answered"
    CUT_OFF = "cut off"
    LOOKED = "looked"
    RECOVERED = "recovered"
    LISTED = "listed"
    SEEN = "seen"
    REMOVED = "removed"
    OVERTAKEN = "overtaken"
    """Another process has held the Binding Lease."""
    LEADING = "leading"
    TICK = "tick"


_EVENTS = {
    ActKind.PERMITTED: BindEvent.PERMITTED,
    ActKind.FORBIDDEN: BindEvent.STOPPED,
    ActKind.UNREADABLE: BindEvent.STOPPED,
    ActKind.CUT_OFF: BindEvent.CUT_OFF,
}


class Act(NamedTuple):
    """An event that happens to a process. `shown` is what the API server shows of the pod, None if it is gone."""

    what: ActKind
    pod: int = 0
    shown: ModelPod | None = None
    node: str = ""
    event: BindEvent = BindEvent.UNKNOWN
    every: tuple[ModelPod | None, ...] = ()


class Reaction(NamedTuple):
    """`node` is the answer to `/filter`, `sent` the Binding that is sent."""

    node: str = ""
    sent: ModelPod | None = None


class ModelledBind(NamedTuple):
    """One attempt. `number` is its rank among those of the pod; `ends` is in ticks from now."""

    machine: str
    node: str
    unanswered: bool
    devices: str
    number: int
    question: str
    ends: int


class PodState(NamedTuple):
    """All that a process knows of one pod."""

    reservation: tuple[object, ...]
    gpus: str
    """The GPUs that it holds once it is bound."""
    node: str
    lease: int
    bind: ModelledBind | None
    looks: tuple[ModelledBind, ...]
    sent: tuple[str, PodShares] | None
    """Node and GPUs of the Binding in the pod's file."""
    left: bool
    """True if the process before sent it and its outcome is unknown."""


Local = tuple[PodState, ...]


class ReadPod(NamedTuple):
    """The pod as it was read for a bind; None if it is gone."""

    pod: Pod | None


@dataclass(slots=True)
class _Bind:
    attempt: BindAttempt
    ends: float
    question: BindEffect = BindEffect.DECIDE


@dataclass(slots=True)
class _Files:
    """The files of sent Bindings: a process that follows finds them."""

    sent: dict[str, SentBinding] = field(default_factory=dict)

    def add(self, sent: SentBinding) -> None:
        self.sent[sent.uid] = sent

    def remove(self, uid: str) -> None:
        self.sent.pop(uid, None)

    def clear(self) -> None:
        self.sent.clear()


class ModelProcess:
    def __init__(self, machines: Machines, gpus: int, pods: int, left: tuple[SentBinding, ...]) -> None:
        """`gpus` is the request of each pod, `left` what the process before had sent."""
        self._gpus, self._pods, self._settings = gpus, pods, machines.settings
        self._now = 0.0
        self._cluster = Cluster()
        self._index = NodeIndex(self._cluster.ledger)
        self._files = _Files({sent.uid: sent for sent in left})
        self._left = {int(sent.uid.rpartition("-")[2]): sent for sent in left}
        self._binds: dict[int, _Bind] = {}
        self._looks: list[tuple[int, BindAttempt, float]] = []
        self._machine = machines.binds(
            state=self._cluster, settings=self._settings, monotonic=lambda: self._now, files=self._files
        )
        self._apply(events.Listed(Node, [node_object(name) for name in NODES]))

    def act(self, act: Act) -> Reaction:
        if act.what is ActKind.FILTER:
            return Reaction(node=self._filter(act.pod))
        if act.what is ActKind.BIND:
            attempt = self._machine.begin(_name(act.pod), uid_of(act.pod), act.node)
            self._binds[act.pod] = begun = _Bind(attempt, self._now + self._settings.bind_deadline_seconds)
            return self._decide(act.pod, begun)
        if act.what is ActKind.READ:
            read = ReadPod(self._object(act.pod, act.shown))
            return self._decide(act.pod, self._binds[act.pod], read)
        if act.what in _EVENTS:
            return self._go_on(act.pod, self._binds[act.pod], _EVENTS[act.what])
        if act.what is ActKind.ANSWERED:
            return self._go_on(act.pod, self._binds[act.pod], act.event)
        self._happened(act)
        return Reaction()

    def _happened(self, act: Act) -> None:
        """Performs an act that is not about a bind that kube-scheduler waits for."""
        pod = act.pod
        match act.what:
            case ActKind.LOOKED:
                self._looked(pod, act)
            case ActKind.RECOVERED:
                self._recovered(pod, self._machine.left_behind(self._left.pop(pod)), act)
            case ActKind.LISTED:
                there = [self._object(pod, seen) for pod, seen in enumerate(act.every)]
                self._apply(events.Listed(Pod, [each for each in there if each is not None]))
            case ActKind.SEEN if act.shown is not None:
                self._apply(events.Applied(pod_object(pod, self._gpus, act.shown)))
            case ActKind.REMOVED if act.shown is not None:
                self._apply(events.Removed(pod_object(pod, self._gpus, act.shown)))
            case ActKind.OVERTAKEN:
                self._left.clear()
                self._machine.forget_sent()
            case ActKind.LEADING:
                self._apply(events.LeadershipGained())
            case ActKind.TICK:
                self._now += TICK_SECONDS
                self._apply(events.TimePassed())
            case _:
                raise AssertionError(f"{act} cannot happen here")

    def local(self) -> Local:
        return tuple(self._pod_state(pod) for pod in range(self._pods))

    def _apply(self, event: events.ClusterEvent) -> None:
        self._cluster.step(event, self._now, events.unperformed(events.Wake))

    def _object(self, pod: int, seen: ModelPod | None) -> Pod | None:
        return None if seen is None else pod_object(pod, self._gpus, seen)

    # Each follows the shell of its name: what may be awaited there is an act of its own here.

    def _filter(self, pod: int) -> str:
        made = pod_object(pod, self._gpus, ModelPod())
        request = read_request(made, self._cluster.requests)
        if request is None:
            raise AssertionError("a pod of this world asks for GPUs")
        lease_seconds = self._settings.reservation_lease_seconds
        answer = FilterDecision(self._index, self._cluster, lease_seconds).reserve(made, request, NODES, self._now)
        names = answer.result.node_names
        return names[0] if names else ""

    def _decide(self, pod: int, bind: _Bind, read: ReadPod | None = None) -> Reaction:
        """Decides by the pod that was `read`, or by what is known. Without enough the pod must be read."""
        until = self._settings.held_until(self._now, self._settings.reservation_lease_seconds)
        try:
            if read is None:
                decided = decide_unread(self._cluster, bind.attempt, now=self._now, until=until)
            elif bind.question is BindEffect.DECIDE:
                decided = decide_read(self._cluster, bind.attempt, read.pod, now=self._now, until=until)
            else:
                decided = DecidedAttempt(bind.attempt, event_after_conflict(bind.attempt, read.pod))
        except BindRefused as error:
            decided = DecidedAttempt(bind.attempt, error.event)
        if decided is None:
            return Reaction()
        bind.attempt, event = decided
        return self._go_on(pod, bind, event)

    def _go_on(self, pod: int, bind: _Bind, event: BindEvent) -> Reaction:
        result = self._machine.after(bind.attempt, event)
        bind.attempt = result.attempt
        question = self._perform(pod, result)
        if question is None:
            del self._binds[pod]
            return Reaction()
        bind.question = question
        return Reaction(sent=self._binding(bind.attempt) if question is BindEffect.SEND else None)

    def _perform(self, pod: int, result: StepResult) -> BindEffect | None:
        """Returns the question that kube-scheduler waits for next."""
        question = None
        for effect in result.effects:
            if effect in AWAITED:
                question = effect
            elif effect is BindEffect.CHECK_LATER:
                self._look(pod, result.attempt)
        return question

    def _look(self, pod: int, attempt: BindAttempt) -> None:
        if is_unsettled(self._cluster, attempt, self._now):
            self._looks.append((pod, attempt, self._now + self._settings.settle_seconds))
        else:
            self._perform(pod, self._machine.after(attempt, BindEvent.OVERTAKEN))

    def _recovered(self, pod: int, attempt: BindAttempt, act: Act) -> None:
        until, read = self._settings.held_until(self._now, 0.0), self._object(pod, act.shown)
        event = event_after_restart(self._cluster, attempt, read, now=self._now, until=until)
        self._perform(pod, self._machine.after(attempt, event))

    def _looked(self, pod: int, act: Act) -> None:
        """Performs the first look that is due."""
        at = next(at for at, look in enumerate(self._looks) if look[0] == pod and look[2] <= self._now)
        _, attempt, _ = self._looks.pop(at)
        if act.event is BindEvent.STOPPED:
            self._perform(pod, self._machine.after(attempt, BindEvent.UNKNOWN))
            return
        live = self._object(pod, act.shown)
        event = event_after_settling(self._cluster, attempt, live, is_binding=pod in self._binds, now=self._now)
        self._perform(pod, self._machine.after(attempt, event))

    def _binding(self, attempt: BindAttempt) -> ModelPod:
        binding = binding_of(attempt.pod, attempt.uid, attempt.node, attempt.shares, _SOME_DAY, phase=BindPhase.SUCCESS)
        return ModelPod(binding.target.name, binding.metadata.annotations[DEVICES_ALLOCATED])

    # The value

    def _pod_state(self, pod: int) -> PodState:
        uid, ledger, known = uid_of(pod), self._cluster.ledger, self._cluster.pods.pod(_name(pod))
        bind = self._binds.get(pod)
        looks = [(attempt, due) for number, attempt, due in self._looks if number == pod]
        reservation, bound = ledger.records.reserved(uid), ledger.records.bound(uid)
        numbers = {attempt.number for attempt, _ in looks} | ({bind.attempt.number} if bind is not None else set())
        sent_by = reservation.sent_by if reservation is not None else 0
        ranks = {number: rank for rank, number in enumerate(sorted({0, *numbers, sent_by}))}
        sent = self._files.sent.get(uid)
        waiting = pod_object(pod, self._gpus, ModelPod())
        return PodState(
            reservation=()
            if reservation is None
            else (
                reservation.node,
                encode_pod_devices(reservation.shares),
                self._ticks(reservation.until),
                reservation.pending.binding,
                ranks[sent_by],
            ),
            gpus="" if bound is None else repr(bound.gpus),
            node="" if known is None else known.node or "-",
            lease=ceil(ledger.groups.lease_seconds(waiting, self._settings.reservation_lease_seconds) / TICK_SECONDS),
            bind=None
            if bind is None
            else self._bind_state(bind.attempt, bind.ends, bind.question, ranks[bind.attempt.number]),
            looks=tuple(self._bind_state(attempt, due, "", ranks[attempt.number]) for attempt, due in looks),
            sent=None if sent is None else (sent.node, sent.shares),
            left=pod in self._left,
        )

    def _bind_state(self, attempt: BindAttempt, ends: float, question: str, rank: int) -> ModelledBind:
        devices = "" if attempt.shares is None else encode_pod_devices(attempt.shares)
        return ModelledBind(attempt.state, attempt.node, attempt.unanswered, devices, rank, question, self._ticks(ends))

    def _ticks(self, at: float) -> int:
        return max(ceil((at - self._now) / TICK_SECONDS), 0)


class Processes:
    """All states of processes that were met, by number.

    Pods are alike: a state and one with its pods in another order take each act in the same way. So each act is
    performed once for all of them, on the one whose pods are sorted.
    """

    def __init__(self, machines: Machines, gpus: int, pods: int) -> None:
        self.locals: list[Local] = []
        self._numbers: dict[Local, int] = {}
        self._known: dict[tuple[int, Act], tuple[int, Reaction]] = {}
        self._sorted = _Sorted(machines, gpus, pods)

    def begin(self, left: tuple[SentBinding, ...] = ()) -> int:
        """Returns a new process. It has listed no pods yet."""
        return self._numbered(self._sorted.begin(left))

    def after(self, number: int, act: Act) -> tuple[int, Reaction]:
        known = self._known.get((number, act))
        if known is None:
            local, reaction = self._sorted.after(self.locals[number], act)
            known = self._known[number, act] = self._numbered(local), reaction
        return known

    def files(self, number: int) -> tuple[SentBinding, ...]:
        """Returns what a process that follows finds."""
        files = (state.sent for state in self.locals[number])
        return tuple(SentBinding(_name(pod), uid_of(pod), *sent) for pod, sent in enumerate(files) if sent is not None)

    def acts(self) -> int:
        """Returns the number of acts that were performed by the machines."""
        return self._sorted.acts

    def _numbered(self, local: Local) -> int:
        number = self._numbers.setdefault(local, len(self.locals))
        if number == len(self.locals):
            self.locals.append(local)
        return number


class _Sorted:
    """States of processes whose pods are sorted, and how each was reached first."""

    def __init__(self, machines: Machines, gpus: int, pods: int) -> None:
        self.acts = 0
        self._machines, self._gpus, self._pods = machines, gpus, pods
        self._began: dict[Local, tuple[SentBinding, ...]] = {}
        self._reached: dict[Local, tuple[Local, Act]] = {}
        self._known: dict[tuple[Local, Act], tuple[Local, Reaction]] = {}
        """The state is in the order of the pods before the act."""
        self._alive: dict[Local, ModelProcess] = {}
        """The acts that need not be made again. Each names its pods in its own order."""

    def begin(self, left: tuple[SentBinding, ...]) -> Local:
        process = ModelProcess(self._machines, self._gpus, self._pods, left)
        local = process.local()
        key = tuple(local[pod] for pod in _order(local))
        if key not in self._reached:
            self._began.setdefault(key, left)
        return local

    def after(self, local: Local, act: Act) -> tuple[Local, Reaction]:
        order = _order(local)
        key = tuple(local[pod] for pod in order)
        after, reaction = self._performed(key, _renamed(act, order))
        return tuple(after[order.index(pod)] for pod in range(self._pods)), reaction

    def _performed(self, key: Local, act: Act) -> tuple[Local, Reaction]:
        known = self._known.get((key, act))
        if known is None:
            self.acts += 1
            process = self._alive.pop(key, None) or self._made(key)
            order = _order(process.local())
            reaction = process.act(_named(act, order))
            local = process.local()
            after = tuple(local[pod] for pod in order)
            known = self._known[key, act] = after, reaction
            there = tuple(local[pod] for pod in _order(local))
            if there not in self._began:
                self._reached.setdefault(there, (key, act))
            if len(self._alive) >= _MOST_ALIVE:
                self._alive.pop(next(iter(self._alive)))
            self._alive[there] = process
        return known

    def _made(self, key: Local) -> ModelProcess:
        acts: list[Act] = []
        while key not in self._began:
            key, act = self._reached[key]
            acts.append(act)
        process = ModelProcess(self._machines, self._gpus, self._pods, self._began[key])
        for act in reversed(acts):
            process.act(_named(act, _order(process.local())))
        return process


def _order(local: Local) -> list[int]:
    """Returns the pods in the order of what is known of them."""
    return sorted(range(len(local)), key=lambda pod: _text(local[pod]))


@cache
def _text(state: PodState) -> str:
    return repr(state)


def _renamed(act: Act, order: list[int]) -> Act:
    """The act with the pods' places in this order for their numbers."""
    every = tuple(act.every[pod] for pod in order) if act.every else ()
    return act._replace(pod=order.index(act.pod), every=every)


def _named(act: Act, order: list[int]) -> Act:
    """Returns the reverse of `_renamed`."""
    every = tuple(act.every[order.index(pod)] for pod in range(len(order))) if act.every else ()
    return act._replace(pod=order[act.pod], every=every)


def _name(pod: int) -> PodName:
    return PodName(namespace=NAMESPACE, name=pod_name(pod))
