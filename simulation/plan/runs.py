"""Runs a plan once: all pods come in one order, under one policy."""

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import chain, count, islice
from math import ceil, inf
from statistics import mean

from simulation.plan.engine import Engine, Placed, PlanRefusal
from simulation.plan.gauge import Gauge
from simulation.plan.groups import gathered
from simulation.plan.objects import Arrival
from simulation.plan.outcome import (
    Delay,
    Home,
    PlanOutcome,
    PlanRun,
    Sample,
    SeveralGpus,
    Size,
    Unplaced,
    counted,
    percent,
)
from simulation.plan.question import Asking, Kinds, Question

MOST_PODS = 200_000
SAMPLES = 200
"""An outcome has about this many."""
MOST_EXAMPLES = 3
SHORTEST_SECONDS = 1.0
"""A pod that comes stays at least this long."""
_LEAVES, _COMES = 0, 1
"""Pods leave before others come at the same time."""

Progress = Callable[[float], None]
"""Called with the part that is done, from 0 to 1."""


class TooManyPods(ValueError):
    """The message is one sentence."""


class Runs:
    """Performs the runs of a question."""

    def __init__(self, question: Question) -> None:
        self._question, self._kinds = question, Kinds(question)
        self._before = None if question.before is None else replace(question, cluster=question.before)
        self._kinds_before = None if self._before is None else Kinds(self._before)

    def run(self, run: PlanRun, progress: Progress = lambda _: None) -> PlanOutcome:
        """Raises PolicyError for an unknown policy, and TooManyPods."""
        question, kinds = self._question, self._kinds
        arrivals = in_order(question, run, kinds)
        if run.before and self._before is not None and self._kinds_before is not None:
            question, kinds = self._before, self._kinds_before
            arrivals = [each for each in arrivals if not each.came_from]
        replay = _Replay(question, kinds, run, arrivals)
        for part in replay.steps():
            progress(part)
        return replay.outcome()


def in_order(question: Question, run: PlanRun, kinds: Kinds) -> list[Arrival]:
    """Returns the pods as they come: first those that are moved, then the others as given, or at random. With
    times they exchange theirs; a group comes when its last member does. Raises TooManyPods.
    """
    moved = [each for each in question.arrivals if each.came_from]
    coming = [each for each in question.arrivals if not each.came_from]
    check_number(len(coming))
    draw = random.Random(run.seed or 0)
    if question.fill is not None:
        until = question.fill / 100 * kinds.gpus - sum(kinds.asking(each).amount for each in coming)
        coming += _more(draw, list(coming), kinds, until)
    if run.seed is not None:
        times = [each.at for each in coming]
        draw.shuffle(coming)
        coming = [replace(each, at=at) for each, at in zip(coming, times, strict=True)]
    last: dict[str, float] = {}
    for each in coming:
        last[each.group] = max(each.at, last.get(each.group, 0.0))
    coming = [replace(each, at=last[each.group]) if each.group else each for each in coming]
    return gathered([*moved, *coming], lambda each: each.group)


def _more(draw: random.Random, pods: Sequence[Arrival], kinds: Kinds, amount: float) -> Iterator[Arrival]:
    """Yields pods drawn from these, until they request so many GPUs."""
    if not any(kinds.asking(each).amount for each in pods):
        return
    for drawn in count(len(pods)):
        check_number(drawn)
        more = draw.choice(pods)
        amount -= kinds.asking(more).amount
        if amount < 0:
            return
        yield more


def check_number(pods: int) -> None:
    """Raises TooManyPods."""
    if pods > MOST_PODS:
        raise TooManyPods(f"a plan has at most {MOST_PODS} pods; give fewer, fewer --copies or a smaller --fill")


@dataclass(slots=True, kw_only=True)
class _Waiting:
    number: int
    came: float
    arrival: Arrival
    gpus: int

    @property
    def rank(self) -> tuple[int, float, int]:
        """Pods are tried again in this order. All pods of a kind have the same priority."""
        return -(self.arrival.spec.priority or 0), self.came, self.number


class _Queue:
    """The pods that wait, by kind. Of each kind the oldest is first."""

    def __init__(self) -> None:
        self._by_kind: dict[bytes, deque[_Waiting]] = {}
        self._pods = 0
        self.with_gpus = 0
        """Pods with GPUs that wait."""

    def __len__(self) -> int:
        return self._pods

    def kinds(self) -> Iterable[Sequence[_Waiting]]:
        return self._by_kind.values()

    def add(self, pod: _Waiting) -> None:
        """`pod` came last."""
        self._by_kind.setdefault(pod.arrival.kind, deque()).append(pod)
        self._count(pod, 1)

    def first(self, kind: bytes) -> _Waiting:
        return self._by_kind[kind][0]

    def remove_first(self, kind: bytes) -> _Waiting | None:
        """Return the next one of the kind, if there is one."""
        pods = self._by_kind[kind]
        self._count(pods.popleft(), -1)
        if pods:
            return pods[0]
        del self._by_kind[kind]
        return None

    def _count(self, pod: _Waiting, more: int) -> None:
        self._pods += more
        self.with_gpus += more * (pod.gpus > 0)


@dataclass(slots=True)
class _Tally:
    """Waiting times of the pods with GPUs that were placed."""

    waited: list[float] = field(default_factory=list)
    at_once: int = 0
    gbps: list[float] = field(default_factory=list)
    by_gpus: Counter[int] = field(default_factory=Counter)
    several: int = 0
    placed: int = 0
    """Counts of all pods, also of pods without GPUs."""
    moves: list[Home] = field(default_factory=list)
    homes: list[Home] = field(default_factory=list)


class _Replay:
    def __init__(self, question: Question, kinds: Kinds, run: PlanRun, arrivals: Sequence[Arrival]) -> None:
        cluster = question.cluster
        self._question, self._run, self._kinds = question, run, kinds
        self._engine = Engine(cluster, question.under(run.policy), question.hosts)
        self._arrivals = arrivals
        self._gauge = Gauge(self._engine, self._kinds.workload(self._arrivals))
        self._tally = _Tally()
        self._waiting = _Queue()
        self._events: list[tuple[float, int, int]] = []
        self._samples: list[Sample] = []
        self._requested = 0.0
        self._at_capacity: float | None = None
        self._held = self._busy = self._crowded = self._since = 0.0

    def steps(self) -> Iterator[float]:
        """Run to the end. Each step yields the part that is done."""
        replays = self._question.replays
        self._events = [
            (each.at if replays else float(number), _COMES, number) for number, each in enumerate(self._arrivals)
        ]
        heapify(self._events)
        every, seen, total = ceil(len(self._events) / SAMPLES) or 1, 0, len(self._events) or 1
        self._sample(0.0)
        while self._events:
            now, what, number = heappop(self._events)
            self._pass(now)
            if what == _COMES:
                self._come(number, now)
                seen += 1
            else:
                self._leave(number, now)
            if (what == _COMES and seen % every == 0) or not self._events:
                self._sample(now)
                yield seen / total
        yield 1.0

    def outcome(self) -> PlanOutcome:
        refusals = self._refusals()
        tally, asking = self._tally, [self._kinds.asking(each) for each in self._arrivals]
        several = [each for each in asking if each.several]
        sizes = Counter(each.gpus for each in asking)
        return PlanOutcome(
            run=self._run,
            pods=len(self._arrivals),
            placed=tally.placed,
            asked=self._requested,
            at_capacity=self._at_capacity,
            end=self._gauge.read(),
            several=SeveralGpus(pods=len(several), placed=tally.several, gbps=mean(tally.gbps) if tally.gbps else None),
            sizes=[Size(gpus=gpus, pods=sizes[gpus], placed=tally.by_gpus[gpus]) for gpus in sorted(sizes)],
            waiting=self._kinds_that_wait(refusals),
            moves=tally.moves,
            stuck=[
                f"{each.arrival.namespace}/{each.arrival.name} of {each.arrival.came_from}: "
                f"{_why(refusals[each.arrival.kind])}"
                for each in sorted(chain.from_iterable(self._waiting.kinds()), key=lambda one: one.number)
                if each.arrival.came_from
            ],
            delay=self._delay() if self._question.replays else None,
            samples=self._samples,
            homes=tally.homes,
        )

    def _come(self, number: int, now: float) -> None:
        arrival = self._arrivals[number]
        self._requested += self._kinds.asking(arrival).amount
        if not self._try(number, now, now):
            gpus = self._kinds.asking(arrival).gpus
            self._waiting.add(_Waiting(number=number, came=now, arrival=arrival, gpus=gpus))
        if self._at_capacity is None and self._requested >= self._kinds.gpus > 0:
            reading = self._gauge.read()
            self._at_capacity = percent(reading.allocated, reading.gpus)

    def _leave(self, number: int, now: float) -> None:
        self._engine.end(_uid(number), now)
        self._held -= self._kinds.asking(self._arrivals[number]).amount
        if not (self._events and self._events[0][:2] == (now, _LEAVES)):
            self._try_again(now)

    def _try_again(self, now: float) -> None:
        """Tries the most important first, then the oldest. Where one finds no room, none with the same request does."""
        firsts = [(pods[0].rank, pods[0].arrival.kind) for pods in self._waiting.kinds()]
        heapify(firsts)
        while firsts:
            _, kind = heappop(firsts)
            first = self._waiting.first(kind)
            if not self._try(first.number, first.came, now):
                continue
            following = self._waiting.remove_first(kind)
            if following is not None:
                heappush(firsts, (following.rank, kind))

    def _try(self, number: int, came: float, now: float) -> bool:
        """Returns whether the pod is placed."""
        arrival = self._arrivals[number]
        found = self._engine.place(arrival, _uid(number), now)
        if isinstance(found, PlanRefusal):
            return False
        asking, tally = self._kinds.asking(arrival), self._tally
        self._held += asking.amount
        tally.placed += 1
        tally.by_gpus[asking.gpus] += 1
        if arrival.came_from:
            tally.moves.append(home_of(self._engine, arrival, found))
        if asking.gpus:
            tally.waited.append(now - came)
            tally.at_once += now == came
            self._count_links(found, asking)
        if self._question.homes:
            tally.homes.append(home_of(self._engine, arrival, found, now - came))
        if self._question.replays and arrival.lasts < inf:
            heappush(self._events, (now + max(arrival.lasts, SHORTEST_SECONDS), _LEAVES, number))
        return True

    def _count_links(self, found: Placed, asking: Asking) -> None:
        self._tally.several += asking.several
        usage = self._engine.state.ledger.nodes.usages().get(found.node) if asking.several else None
        if usage is not None:
            gbps = self._question.cluster.links.pod_gbps(found.shares, usage.node.pair_scores)
            self._tally.gbps += [] if gbps is None else [gbps]

    def _pass(self, now: float) -> None:
        if self._waiting.with_gpus:
            self._busy += self._held * (now - self._since)
            self._crowded += now - self._since
        self._since = now

    def _sample(self, now: float) -> None:
        reading = self._gauge.read()
        sample = Sample(seconds=now, asked=self._requested, reading=reading, waiting=len(self._waiting))
        self._samples.append(sample)

    def _delay(self) -> Delay:
        waited = sorted(self._tally.waited) or [0.0]
        return Delay(
            mean=mean(waited),
            p95=waited[ceil(0.95 * len(waited)) - 1],
            longest=waited[-1],
            at_once=self._tally.at_once,
            placed=len(self._tally.waited),
            never=self._waiting.with_gpus,
            allocated=percent(self._busy / self._crowded, self._kinds.gpus) if self._crowded else 0.0,
        )

    def _refusals(self) -> Mapping[bytes, PlanRefusal]:
        """Returns why each kind of the pods that wait finds no room at the end."""
        found = {}
        for pods in self._waiting.kinds():
            last = pods[-1].arrival
            found[last.kind] = self._engine.refusal(last, _uid(pods[-1].number), self._since) or PlanRefusal()
        return found

    def _kinds_that_wait(self, refusals: Mapping[bytes, PlanRefusal]) -> list[Unplaced]:
        """Returns the most frequent first. Pods that request the same for the same reasons are one kind."""
        alike: dict[tuple[str, tuple[tuple[str, int], ...]], list[_Waiting]] = {}
        for each in self._waiting.kinds():
            arrival = each[-1].arrival
            asks, reasons = self._kinds.asking(arrival).text, tuple(_reasons(refusals[arrival.kind]))
            alike.setdefault((asks, reasons), []).extend(each)
        kinds = [
            Unplaced(
                asks=asks,
                pods=len(pods),
                gpus=pods[0].gpus,
                examples=list(
                    islice(dict.fromkeys(f"{one.arrival.namespace}/{one.arrival.name}" for one in pods), MOST_EXAMPLES)
                ),
                reasons=reasons,
            )
            for (asks, reasons), pods in alike.items()
        ]
        return sorted(kinds, key=lambda kind: (-kind.pods, kind.asks))


def home_of(engine: Engine, arrival: Arrival, found: Placed, waited: float = 0.0) -> Home:
    """Returns the place of a pod that was placed just now."""
    usage = engine.state.ledger.nodes.usages().get(found.node)
    held = {share.uuid for container in found.shares for share in container}
    gpus = [] if usage is None else [gpu.device.index for gpu in usage.gpus if gpu.device.uuid in held]
    name = f"{arrival.namespace}/{arrival.name}"
    return Home(pod=name, node=found.node, gpus=sorted(gpus), waited=waited, was=arrival.came_from)


def _reasons(refused: PlanRefusal) -> Sequence[tuple[str, int]]:
    return [(refused.error, 0)] if refused.error else counted(refused.nodes) or [("there is no node", 0)]


def _why(refused: PlanRefusal) -> str:
    return ", ".join(f"{reason} ({nodes})" if nodes else reason for reason, nodes in _reasons(refused))


def _uid(number: int) -> str:
    return f"plan-{number}"
