"""GPUs that stay unhealthy, and the pods on them: events in, effects out; the time is an argument. Pure.

| GPU is | until | then it is | effect |
|---|---|---|---|
| well | a sign against it | ill | the Node remembers since when |
| ill | it is well | well | |
| ill | it has been for `after` | lasting | the Node's condition, its taint, events of Node and pods |
| lasting | it is well | well | condition and taint are taken back; no further pod is evicted |

| pod on a GPU whose evictions are due is | until | then it is | effect |
|---|---|---|---|
| there | there is room among those that leave | tried | Evict |
| tried | Evicted | leaving | an event on the pod |
| tried | EvictionRefused | there, for a time that doubles | an event on the pod |
| tried | Spared | spared, while it lives | an event on the pod |
| tried | Needless | there, if it is still shown after a time that doubles | |
| tried | Paused | there, and so are all others until then | |
| tried, leaving | long after it should have been gone | there | |

A lasting GPU's evictions are due at once, but for three cases. While most GPUs of the node are ill, they are due when
the last of them has been for `most_after`; once that is over, the others' time begins again. While the driver cannot be
read, no pod that runs is to go: nothing is known of its GPU; once it can, the time begins again. After a start the
process must have seen the GPU ill for a while itself, and one that was ill before is not well before such a while is
over.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from deviceplugin.settings import RemediationSettings, Remedy
from proto.kubernetes.objects import Notice

_SETTLED = timedelta(seconds=60)
"""The time for which a GPU must be seen ill after a start; `after` where that is shorter."""
_ANSWERED = timedelta(minutes=2)
"""An eviction is answered by then."""
_LEFT = timedelta(minutes=5)
"""A pod is gone so long after its grace period; what its processes still hold is no reason to wait for it longer."""
_FIRST_PAUSE = timedelta(minutes=1)
_LONGEST_PAUSE = timedelta(minutes=30)
_LOOK = timedelta(seconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """A sign against one GPU. `name` is for people; `missing`: nothing is known of it but that it should be there."""

    name: str
    problem: str
    missing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A pod with containers that have a GPU and have not ended."""

    uid: str
    namespace: str
    pod: str
    gpus: frozenset[str]
    waits: bool = False
    """None of its containers runs, and one that has a GPU cannot be started."""
    leaves_at: datetime | None = None
    """The end of its grace period, once it is being deleted."""
    priority: int = 0

    @property
    def name(self) -> str:
        return f"{self.namespace}/{self.pod}"


@dataclass(frozen=True, slots=True)
class Remembered:
    """The times since when GPUs were unhealthy, as the Node had them when this process started."""

    since: Mapping[str, datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The node now: signs by GPU, how many GPUs have none, and which pods have which.

    `is_blind`: the driver cannot be read. Then all GPUs count as ill.
    """

    ill: Mapping[str, Sign]
    well: int
    holders: Sequence[Holder] = ()
    is_blind: bool = False


@dataclass(frozen=True, slots=True)
class Evicted:
    uid: str


@dataclass(frozen=True, slots=True)
class EvictionRefused:
    """A PodDisruptionBudget or the API server does not let the pod go now. `why` is for people."""

    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class Spared:
    """The pod is one of those that are never evicted, and why, for people."""

    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class Needless:
    """The pod is gone, or its GPU is not one to evict from any more; the next look shows that."""

    uid: str


@dataclass(frozen=True, slots=True)
class Paused:
    """No pod may be evicted now."""

    uid: str
    until: datetime


Answer = Evicted | EvictionRefused | Spared | Needless | Paused
Event = Remembered | Seen | Answer


@dataclass(frozen=True, slots=True)
class Evict:
    holder: Holder


@dataclass(frozen=True, slots=True)
class Tell:
    """An event of the Node, or of a pod."""

    notice: Notice
    holder: Holder | None = None


Effect = Evict | Tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Illness:
    name: str
    problem: str = ""
    since: datetime
    counts_from: datetime
    """The time from which evictions count: `since`, or when most GPUs of the node became healthy again."""
    seen_at: datetime | None = None
    """The time when this process saw it first; None while it is only remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt to evict a pod. Nothing more is done about the pod before `until`, which is None for good."""

    until: datetime | None
    tries: int = 0
    takes_room: bool = False
    """The pod may be on its way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemediationState:
    began_at: datetime | None = None
    """The time when the node was seen first."""
    gpus: int = 0
    """The number of GPUs of the node, healthy or not."""
    ill: Mapping[str, Illness] = field(default_factory=dict)
    told: frozenset[str] = frozenset()
    """GPUs whose event was emitted."""
    holders: Mapping[str, Holder] = field(default_factory=dict)
    """Pods on ill GPUs, by UID."""
    attempts: Mapping[str, Attempt] = field(default_factory=dict)
    paused_until: datetime | None = None
    is_blind: bool = False

    @property
    def most(self) -> bool:
        """Returns whether more GPUs are ill than well."""
        return 2 * len(self.ill) > self.gpus


def step(
    state: RemediationState, event: Event, now: datetime, settings: RemediationSettings
) -> tuple[RemediationState, tuple[Effect, ...]]:
    """Returns the state after `event`, and the effects to carry out. The time does not run backwards."""
    match event:
        case Remembered(since=since):
            ill = {key: Illness(name=key, since=min(at, now), counts_from=min(at, now)) for key, at in since.items()}
            return replace(state, ill={**ill, **state.ill}), ()
        case Seen():
            return _seen(state, event, now, settings)
        case Paused(until=until):
            state = replace(state, paused_until=until)
    holder = state.holders.get(event.uid)
    if holder is None:
        return state, ()
    attempt, notice = _answered(state, event, holder, now)
    told = () if notice is None else (Tell(notice, holder),)
    return replace(state, attempts={**state.attempts, holder.uid: attempt}), told


def lasting(state: RemediationState, now: datetime, settings: RemediationSettings) -> tuple[str, ...]:
    """Returns the GPUs that have been unhealthy for `after`."""
    return tuple(key for key, each in state.ill.items() if now >= each.since + settings.after)


def is_due(state: RemediationState, holder: Holder, now: datetime, settings: RemediationSettings) -> bool:
    """Returns whether the pod may be evicted: a GPU of it has been unhealthy for long enough."""
    if not _may_go(state, holder, settings):
        return False
    times = [_due_at(state, state.ill[gpu], settings) for gpu in holder.gpus if gpu in state.ill]
    return any(at is not None and now >= at for at in times)


def told_by(state: RemediationState, off: timedelta) -> RemediationState:
    """Returns the state with times of a clock that is off by this much, for readers of the Node."""
    if not off:
        return state
    return replace(state, ill={key: replace(each, since=each.since + off) for key, each in state.ill.items()})


def stranded(state: RemediationState, now: datetime, settings: RemediationSettings) -> tuple[Holder, ...]:
    """Returns the pods on lasting GPUs."""
    gpus = frozenset(lasting(state, now, settings))
    return tuple(holder for holder in state.holders.values() if holder.gpus & gpus)


def next_look(state: RemediationState, now: datetime, settings: RemediationSettings) -> datetime | None:
    """Returns when time alone may change something; None when it cannot."""
    if not state.ill:
        return None
    dues = (_due_at(state, each, settings) for each in state.ill.values())
    times = (now + _LOOK, *(each.since + settings.after for each in state.ill.values()), *filter(None, dues))
    return min(at for at in times if at > now)


def _seen(
    state: RemediationState, event: Seen, now: datetime, settings: RemediationSettings
) -> tuple[RemediationState, tuple[Effect, ...]]:
    began = state.began_at or now
    ill = _ill(state, event, began, now, settings)
    gpus = event.well + len(event.ill)
    before = replace(state, gpus=state.gpus or gpus)
    holders = {each.uid: each for each in event.holders if each.gpus & ill.keys()} if ill else {}
    after = replace(
        state,
        began_at=began,
        gpus=gpus,
        ill=ill,
        told=state.told & ill.keys(),
        holders=holders,
        is_blind=event.is_blind,
        attempts={uid: attempt for uid, attempt in state.attempts.items() if uid in holders},
    )
    if (before.most and not after.most) or (before.is_blind and not after.is_blind):
        after = replace(after, ill={key: replace(each, counts_from=now) for key, each in ill.items()})
    renamed = {key for key, sign in event.ill.items() if sign.missing} if state.told - ill.keys() else set()
    untold = [key for key in lasting(after, now, settings) if key not in after.told]
    new = [key for key in untold if key not in renamed]
    after = replace(after, told=after.told | set(untold))
    told = tuple(tell for key in new for tell in _lasting(after, key, settings))
    chosen = tuple(_chosen(after, now, settings))
    evictions = {
        each.uid: Attempt(until=now + _ANSWERED, tries=_tries(after, each.uid), takes_room=True) for each in chosen
    }
    return replace(after, attempts={**after.attempts, **evictions}), (*told, *map(Evict, chosen))


def _ill(
    state: RemediationState, event: Seen, began: datetime, now: datetime, settings: RemediationSettings
) -> Mapping[str, Illness]:
    unseen = {key: each for key, each in state.ill.items() if each.seen_at is None and key not in event.ill}
    gone = min((each.since for key, each in state.ill.items() if key not in event.ill), default=now)
    found: dict[str, Illness] = {}
    for key, sign in event.ill.items():
        # A missing GPU is known by its place instead of its UUID after a restart, or once no pod has it any more.
        known = state.ill.get(key) or Illness(name=key, since=gone if sign.missing else now, counts_from=now)
        found[key] = replace(known, name=sign.name, problem=sign.problem, seen_at=known.seen_at or now)
    return found | (unseen if now < began + _settled(settings) else {})


def _settled(settings: RemediationSettings) -> timedelta:
    return min(_SETTLED, settings.after)


def _due_at(state: RemediationState, illness: Illness, settings: RemediationSettings) -> datetime | None:
    """Returns when pods may be evicted from the GPU; None while this process has not seen it ill."""
    if illness.seen_at is None:
        return None
    latest = max(each.counts_from for each in state.ill.values())
    patience = latest + settings.most_after if state.most else illness.counts_from + settings.after
    return max(patience, illness.seen_at + _settled(settings))


def _chosen(state: RemediationState, now: datetime, settings: RemediationSettings) -> Iterator[Holder]:
    """Yields the pods to evict now: those that wait first, then the least important."""
    if state.paused_until is not None and now < state.paused_until:
        return
    holders, attempts = state.holders.values(), state.attempts
    leaving = {each.uid for each in holders if each.leaves_at is not None and now < each.leaves_at + _LEFT}
    leaving |= {uid for uid, each in attempts.items() if each.takes_room and not _is_over(each, now)}
    due = (
        each
        for each in holders
        if each.leaves_at is None
        and each.uid not in leaving
        and (each.uid not in attempts or _is_over(attempts[each.uid], now))
        and is_due(state, each, now, settings)
    )
    ordered = sorted(due, key=lambda each: (not each.waits, each.priority, each.name))
    yield from ordered[: max(0, settings.at_once - len(leaving))]


def _is_over(attempt: Attempt, now: datetime) -> bool:
    return attempt.until is not None and now >= attempt.until


def _answered(state: RemediationState, answer: Answer, holder: Holder, now: datetime) -> tuple[Attempt, Notice | None]:
    """Returns the attempt after the answer, and the pod's event."""
    tries = _tries(state, holder.uid)
    match answer:
        case Evicted():
            return Attempt(until=now + _LEFT, tries=tries, takes_room=True), _evicted(state, holder)
        case EvictionRefused(why=why):
            pause = _pause(_FIRST_PAUSE, tries)
            return Attempt(until=now + pause, tries=tries + 1), _refused(state, holder, why, pause)
        case Spared(why=why):
            return Attempt(until=None), _spared(state, holder, why)
        case Needless():
            return Attempt(until=now + _pause(_LOOK, tries), tries=tries + 1), None
        case Paused():
            return Attempt(until=now, tries=tries), None


def _pause(first: timedelta, tries: int) -> timedelta:
    doubled: timedelta = first * 2 ** min(tries, 10)
    return min(doubled, _LONGEST_PAUSE)


def _tries(state: RemediationState, uid: str) -> int:
    return state.attempts[uid].tries if uid in state.attempts else 0


def spoken(span: timedelta) -> str:
    """Returns a time span in the largest unit that divides it: `90 s`, `10 min`, `1 h`."""
    seconds = span.total_seconds()
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"


def _lasting(state: RemediationState, key: str, settings: RemediationSettings) -> Iterator[Tell]:
    """Yields the Node's event, and those of pods that are to go."""
    illness = state.ill[key]
    holders = sorted((each for each in state.holders.values() if key in each.gpus), key=lambda each: each.name)
    pods = f". Pods on it: {', '.join(each.name for each in holders)}" if holders else ""
    message = f"{illness.name} has been unhealthy for {spoken(settings.after)}: {illness.problem}"
    yield Tell(Notice(reason="GPUStaysUnhealthy", message=message + pods, distinct=True))
    for holder in holders:
        if _may_go(state, holder, settings):
            yield Tell(
                Notice(
                    reason="GPUStaysUnhealthy", message=f"{message}. The pod is to be evicted unless the GPU recovers"
                ),
                holder,
            )


def _may_go(state: RemediationState, holder: Holder, settings: RemediationSettings) -> bool:
    may_run = Remedy.EVICT in settings.remedies and not state.is_blind
    return may_run or (settings.evicts and holder.waits)


def _evicted(state: RemediationState, holder: Holder) -> Notice:
    message = f"evicted from the node, because {_problems(state, holder)}"
    return Notice(reason="EvictedFromUnhealthyGPU", message=message)


def _refused(state: RemediationState, holder: Holder, why: str, pause: timedelta) -> Notice:
    message = (
        f"{_problems(state, holder)}; the pod is not evicted: {why.rstrip('.')}. It is tried again in {spoken(pause)}"
    )
    return Notice(reason="EvictionRefused", message=message)


def _spared(state: RemediationState, holder: Holder, why: str) -> Notice:
    message = f"{_problems(state, holder)}; the pod is not evicted, because {why}. Delete it to have it placed again"
    return Notice(reason="NotEvicted", message=message)


def _problems(state: RemediationState, holder: Holder) -> str:
    ill = [state.ill[gpu] for gpu in sorted(holder.gpus) if gpu in state.ill]
    return " and ".join(f"{each.name} is unhealthy: {each.problem}" for each in ill)
