"""Measures how long pods of eight whole GPUs wait among smaller ones, with nodes set aside for them and without.

`python -m benchmarks.large_jobs` makes a stream of pods, `--trace FOLDER` replays the trace that `benchmarks.openb`
reads, with departures. Time is simulated, and kube-scheduler's part with it: after each end it tries the waiting pods,
the oldest first. The decisions are the extender's own.
"""

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil
from pathlib import Path
from statistics import mean, quantiles

import click

from benchmarks.openb import read_nodes, read_pods
from proto.annotations.keys import RESOURCE_COUNT
from proto.devices import Device, DeviceUUID
from proto.kubernetes.objects import Node, Pod
from proto.kubernetes.requests import HostAmount, host_amount
from scheduler_ext.policies import parse_gpu_policy, parse_node_policy
from scheduler_ext.requests import RequestSettings
from tests.builders import container, node, pod
from tests.scheduler_ext.job_stream import BEGINNING, JobStream

HOUR = 3600.0
GPUS = 8
"""GPUs of a node, and of a large pod."""
LARGE_PART = 0.1
"""The large pods' part of all GPU-hours of the stream. Its pods run for an hour on average."""
HOURS, WARM_HOURS = 120.0, 8.0
TURN_SECONDS = 60.0
RETRY_SECONDS = 60.0
DEADLINE = 1.5
"""The deadline of each pod with `--deadlines`, as a multiple of its time."""
EVERY, TIMES = 10, 3
"""Of the trace every tenth node is there, and each pod comes three times."""
LONGEST_SECONDS = 6 * HOUR
"""A pod of the trace that runs longer counts as this."""


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float
    lasts: float
    pod: Pod
    host: HostAmount
    gpus: int
    taken: float
    """The GPUs that the pod takes."""


@dataclass(frozen=True, slots=True)
class Run:
    """`after` is in seconds; 0 sets no node aside. A `trace` has its own nodes."""

    nodes: int
    policy: str
    load: float
    after: float
    seed: int
    trace: Path | None = None
    deadlines: bool = False

    def waits(self) -> "Waits":
        node_policy, _, gpu_policy = self.policy.partition("/")
        settings = RequestSettings(
            node_policy=parse_node_policy(node_policy), gpu_policy=parse_gpu_policy(gpu_policy or "spread")
        )
        rng = random.Random(self.seed)
        if self.trace is None:
            nodes = [_node(f"n{number:02}") for number in range(self.nodes)]
            arrivals = sorted(_stream(self, rng), key=lambda each: each.at)
            return _Replay(JobStream(nodes, settings, after=self.after), nodes).through(arrivals, WARM_HOURS * HOUR)
        nodes = list(read_nodes(self.trace))[::EVERY]
        arrivals = _of_trace(self.trace, nodes, self.load, rng)
        return _Replay(JobStream(nodes, settings, after=self.after), nodes).through(arrivals, 0.0)


def _node(name: str) -> Node:
    devices = [
        Device(
            uuid=DeviceUUID(f"{name}-{number}"),
            index=number,
            replicas=10,
            memory_mib=81_559,
            cores=100,
            type="NVIDIA H100",
            numa=number // 4,
            mode="hami-core",
            healthy=True,
        )
        for number in range(GPUS)
    ]
    pairs = {(a.uuid, b.uuid): 100 if a.numa == b.numa else 20 for a in devices for b in devices if a.uuid != b.uuid}
    scores = {a.uuid: {b.uuid: pairs[a.uuid, b.uuid] for b in devices if b.uuid != a.uuid} for a in devices}
    return node(name, devices, scores)


def _stream(run: Run, rng: random.Random) -> Iterator[Arrival]:
    busy = run.nodes * GPUS * run.load
    for gpus, per_hour in ((1, busy * (1 - LARGE_PART)), (GPUS, busy * LARGE_PART / GPUS)):
        at, number = 0.0, 0
        while (at := at + rng.expovariate(per_hour / HOUR)) < HOURS * HOUR:
            lasts = rng.expovariate(1 / HOUR)
            deadline = ceil(lasts * DEADLINE) if run.deadlines else None
            made = pod(container(gpu=gpus), name=f"p{gpus}-{number}", active_deadline_seconds=deadline)
            yield Arrival(at, lasts, made, HostAmount(0, 0), gpus, gpus)
            number += 1


def _of_trace(folder: Path, nodes: Sequence[Node], load: float, rng: random.Random) -> list[Arrival]:
    comes = [each for each in read_pods(folder, "default") if each.asked.gpus for _ in range(TIMES)]
    rng.shuffle(comes)
    capacity = 1000 * sum(int(each.status.allocatable[RESOURCE_COUNT]) // 100 for each in nodes)
    lasts = [min(max(each.lasts, 1.0), LONGEST_SECONDS) for each in comes]
    span = sum(each.asked.amount * seconds for each, seconds in zip(comes, lasts, strict=True)) / (load * capacity)
    times = sorted(rng.uniform(0, span) for _ in comes)
    return [
        Arrival(at, seconds, each.asked.pod(f"p{number}"), each.asked.host, each.asked.gpus, each.asked.amount / 1000)
        for number, (at, seconds, each) in enumerate(zip(times, lasts, comes, strict=True))
    ]


@dataclass(frozen=True, slots=True)
class Waits:
    """Hours of waiting; pods that still wait count with what they have waited. `used` is the part of all GPUs in use on
    average, `set_aside` the GPUs that were free on set-aside nodes on average, and `left` the large pods that wait at
    the end.
    """

    large: tuple[float, ...]
    small: tuple[float, ...]
    used: float
    set_aside: float
    left: int


class _Replay:
    def __init__(self, played: JobStream, nodes: Sequence[Node]) -> None:
        self._played = played
        self._left = {each.metadata.name: host_amount(each.status.allocatable) for each in nodes}
        self._counts_hosts = any(total.cpu_milli for total in self._left.values())
        self._gpus = sum(len(usage.gpus) for usage in played.cluster.ledger.nodes.usages().values())
        self._leaving: list[tuple[float, str, str, Arrival]] = []
        self._waiting: dict[str, Arrival] = {}
        self._waits: list[tuple[Arrival, float]] = []
        self._retried = self._turned = self._busy = 0.0
        self._used_hours = self._idle_hours = 0.0
        self._now = 0.0
        self._from = 0.0

    def through(self, arrivals: Sequence[Arrival], warm: float) -> Waits:
        self._from = warm
        for each in arrivals:
            while self._leaving and self._leaving[0][0] <= each.at:
                self._leave()
            self._pass(each.at)
            uid = self._played.come(each.pod)
            if not self._tried(uid, each):
                self._waiting[uid] = each
            self._turn()
        still = [(each, self._now - each.at) for each in self._waiting.values()]
        counted = [(each.gpus, waited / HOUR) for each, waited in (*self._waits, *still) if each.at >= warm]
        seconds = (self._now - warm) * self._gpus
        return Waits(
            large=tuple(waited for gpus, waited in counted if gpus == GPUS),
            small=tuple(waited for gpus, waited in counted if gpus != GPUS),
            used=self._used_hours / seconds,
            set_aside=self._idle_hours / (self._now - warm),
            left=sum(each.gpus == GPUS for each in self._waiting.values()),
        )

    def _pass(self, now: float) -> None:
        passed = max(now - max(self._now, self._from), 0.0)
        self._used_hours += passed * self._busy
        usages, asides = self._played.cluster.ledger.nodes.usages(), self._played.cluster.ledger.set_asides.nodes()
        self._idle_hours += passed * sum(not gpu.replicas for name in asides for gpu in usages[name].gpus)
        self._now, self._played.now = now, BEGINNING + now

    def _leave(self) -> None:
        at, uid, where, each = heappop(self._leaving)
        self._pass(at)
        self._played.leave(uid)
        self._left[where] = self._left[where].plus(each.host)
        self._busy -= each.taken
        if at - self._retried >= (RETRY_SECONDS if self._counts_hosts else 0.0):
            self._retry()
        self._turn()

    def _retry(self) -> None:
        self._retried, hopeless = self._now, set[tuple[object, ...]]()
        for uid, each in list(self._waiting.items()):
            kind = tuple(str(one.resources) for one in each.pod.spec.containers), str(each.pod.metadata.annotations)
            if kind in hopeless:
                continue
            if self._tried(uid, each):
                del self._waiting[uid]
            elif not self._played.cluster.ledger.set_asides.every().get(uid):
                hopeless.add(kind)

    def _tried(self, uid: str, each: Arrival) -> bool:
        offered = None
        if self._counts_hosts:
            cpu, memory = each.host
            offered = [name for name, left in self._left.items() if left[0] >= cpu and left[1] >= memory]
        where = self._played.place(uid, offered) if offered is None or offered else ""
        if not where:
            return False
        self._left[where] = self._left[where].minus(each.host)
        self._busy += each.taken
        heappush(self._leaving, (self._now + each.lasts, uid, where, each))
        self._waits.append((each, self._now - each.at))
        return True

    def _turn(self) -> None:
        if self._now - self._turned >= TURN_SECONDS:
            self._turned = self._now
            self._played.turn()


HEAD = (
    *("nodes", "policy", "load", "set aside after", "8 GPUs: mean h", "p95 h", "longest h", "wait at the end"),
    *("others: mean min", "p95 min", "GPUs in use", "idle on set-aside nodes"),
)


def _row(run: Run, found: Sequence[Waits]) -> str:
    large = [each for one in found for each in one.large] or [0.0]
    small = [each for one in found for each in one.small]
    cells = (
        "openb" if run.trace is not None else str(run.nodes),
        run.policy,
        f"{run.load:.0%}",
        f"{run.after / 60:.0f} min" if run.after else "never",
        f"{mean(large):.2f}",
        f"{_p95(large):.2f}",
        f"{max(large):.1f}",
        str(sum(one.left for one in found)),
        f"{60 * mean(small):.2f}",
        f"{60 * _p95(small):.1f}",
        f"{mean(one.used for one in found):.1%}",
        f"{mean(one.set_aside for one in found):.2f}",
    )
    return _line(cells)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _p95(values: Sequence[float]) -> float:
    return quantiles(values, n=20)[-1] if len(values) > 1 else values[0]


@click.command()
@click.option("--nodes", default="4,16", show_default=True)
@click.option("--policy", default="binpack,spread,binpack/topology-aware", show_default=True, help="node or node/GPU")
@click.option("--load", default="0.8,0.9,0.95", show_default=True)
@click.option("--after", default="0,30", show_default=True, help="Minutes; 0 never sets a node aside.")
@click.option("--seeds", default=4, show_default=True)
@click.option("--processes", default=2, show_default=True)
@click.option("--deadlines", is_flag=True, help="The pods of the stream have activeDeadlineSeconds.")
@click.option("--trace", type=click.Path(path_type=Path, exists=True), help="The folder of openb.")
def main(
    *, nodes: str, policy: str, load: str, after: str, seeds: int, processes: int, deadlines: bool, trace: Path | None
) -> None:
    """Print a table, each row as soon as its runs are done."""
    rows = [
        [Run(int(size), one, float(part), float(minutes) * 60, seed, trace, deadlines) for seed in range(seeds)]
        for size in (nodes.split(",") if trace is None else ["0"])
        for one in policy.split(",")
        for part in load.split(",")
        for minutes in after.split(",")
    ]
    click.echo(_line(HEAD))
    with ProcessPoolExecutor(processes) as pool:
        begun = [[pool.submit(run.waits) for run in runs] for runs in rows]
        for runs, results in zip(rows, begun, strict=True):
            click.echo(_row(runs[0], [one.result() for one in results]))


if __name__ == "__main__":
    main()
