"""Measures `/filter` over HTTP against clusters of thousands of nodes: latency, memory and CPU of the real program.

Run it with `python -m benchmarks.filter`. For each cluster three processes run: an API server that generates the
cluster, the extender, and a server that reads a request and answers a constant (the floor of the transport). This
process plays kube-scheduler. Every request is for another pod and names all nodes, shuffled. A single client waits 3 ms
between two pods, the least that kube-scheduler itself needs for one. Several clients send requests without a pause.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from statistics import median

import click
import psutil

from benchmarks import shapes
from benchmarks.asks import ASKS, Ask, bodies
from benchmarks.over_http import PAUSE_SECONDS, client, running_extender, running_floor

FLOOR = Ask(name="empty handler", containers=lambda _: [(1, 1024)])
MIB = 1024 * 1024
SHAPES_PODS = 4
ROUNDS = 10
"""Series take turns, so that other work on the machine slows all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Times in ms. `first_ms` is for the first pod of its shape, when nothing about the shape is known yet."""

    first_ms: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    rss_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One cluster. `rows` are by number of clients and kind of request. `answer_ms` is for the very first pod."""

    nodes: int
    pods: int
    ready_seconds: float
    ready_mib: float
    answer_ms: float
    rows: Mapping[tuple[int, str], Row]


@click.command()
@click.option("--nodes", default="100,1000,5000", show_default=True, help="Sizes of the cluster.")
@click.option("--pods", default="0,4,32", show_default=True, help="Running pods on each node.")
@click.option("--clients", default="1,4", show_default=True, help="Requests under way at the same time.")
@click.option("--requests", type=click.IntRange(min=ROUNDS), default=400, show_default=True,
              help="Requests of each series.")  # fmt: skip
@click.option("--quick", is_flag=True, help="100 and 1000 nodes, 4 pods a node, 150 requests.")
@click.option("--only", type=click.Choice(["series", "shapes"]), help="Only this half of the tables.")
def main(*, nodes: str, pods: str, clients: str, requests: int, quick: bool, only: str | None) -> None:
    """Print Markdown tables of `/filter` over HTTP with node names only, and the floor of the transport in the same
    run.
    """
    if quick:
        nodes, pods, requests = "100,1000", "4", 150
    if only != "shapes":
        _print_series(_numbers(nodes), _numbers(pods), _numbers(clients), requests)
    if only != "series":
        clusters = [(size, different) for different in (False, True) for size in _numbers(nodes)]
        lines = chain.from_iterable(
            shapes.rows(size, SHAPES_PODS, requests, different=different) for size, different in clusters
        )
        _print(f"Each pod a shape of its own, {SHAPES_PODS} pods a node", shapes.HEAD, lines)


def _print_series(nodes: Sequence[int], pods: Sequence[int], clients: Sequence[int], requests: int) -> None:
    found = []
    for pods_a_node in pods:
        for size in nodes:
            click.echo(f"{size} nodes, {pods_a_node} pods a node …", err=True)
            found.append(_measured(size, pods_a_node, clients, requests))
    for number in clients:
        _print(f"Clients: {number}", HEAD, [_cells(each, number) for each in found])
    _print("Start", START_HEAD, [_start_cells(each) for each in found])


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _print(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    click.echo(f"\n{title}\n")
    for row in chain((head, ["---"] * len(head)), rows):
        click.echo(f"| {' | '.join(row)} |")


HEAD = ("nodes", "pods a node", "floor p50 / p99", "fits: p50 / p99", "× floor", "fits nowhere: first / p50 / p99",
        "4 GPUs, topology-aware: first / p50 / p99", "CPU for one that fits", "memory MiB")  # fmt: skip
START_HEAD = ("nodes", "pods a node", "ready after start", "first answer after ready", "memory then")


def _cells(found: Measured, clients: int) -> list[str]:
    floor, fits, nowhere, topology = (found.rows[clients, ask.name] for ask in (FLOOR, *ASKS))
    return [
        str(found.nodes),
        str(found.pods),
        _times(floor.p50_ms, floor.p99_ms),
        _times(fits.p50_ms, fits.p99_ms),
        f"{fits.p50_ms / floor.p50_ms:.1f}",
        _times(nowhere.first_ms, nowhere.p50_ms, nowhere.p99_ms),
        _times(topology.first_ms, topology.p50_ms, topology.p99_ms),
        f"{fits.cpu_ms:.2f}",
        f"{topology.rss_mib:.0f}",
    ]


def _start_cells(found: Measured) -> list[str]:
    ready = (f"{found.ready_seconds:.1f} s", f"{found.answer_ms:.0f} ms", f"{found.ready_mib:.0f} MiB")
    return [str(found.nodes), str(found.pods), *ready]


def _times(*ms: float) -> str:
    return " / ".join(f"{each:.2f}" for each in ms)


def _measured(nodes: int, pods: int, clients: Sequence[int], requests: int) -> Measured:
    with ExitStack() as stack:
        began = time.perf_counter()
        extender, url, _ = stack.enter_context(running_extender(nodes, pods))
        ready_seconds, ready_mib = time.perf_counter() - began, _rss(extender)
        floor, floor_url = stack.enter_context(running_floor())
        answer_ms = _Series(
            extender, url, Ask(name="", containers=lambda _: [(1, 2048)]), nodes=nodes, clients=1, requests=0
        ).first_ms
        rows: dict[tuple[int, str], Row] = {}
        for number in clients:
            size = {"nodes": nodes, "clients": number, "requests": requests}
            series = {ask.name: _Series(extender, url, ask, **size) for ask in ASKS}
            series[FLOOR.name] = _Series(floor, floor_url, FLOOR, **size)
            for _ in range(ROUNDS):
                for each in series.values():
                    each.ask(requests // ROUNDS)
            rows |= {(number, name): each.row() for name, each in series.items()}
    return Measured(
        nodes=nodes, pods=pods, ready_seconds=ready_seconds, ready_mib=ready_mib, answer_ms=answer_ms, rows=rows
    )


class _Series:
    """Pods of one kind and the number of clients that send requests about them at once; the first pod's goes alone."""

    def __init__(self, process: psutil.Process, url: str, ask: Ask, *, nodes: int, clients: int, requests: int) -> None:
        self._process = process
        self._url = url
        self._clients = clients
        self._bodies = bodies(ask, nodes, requests + 1, f"{clients}")
        self._times: list[float] = []
        self._cpu_seconds = 0.0
        first: list[float] = []
        client(url, [next(self._bodies)], 0, first)
        self.first_ms = first[0]

    def ask(self, requests: int) -> None:
        batch, pause, before = list(islice(self._bodies, requests)), 0.0, _cpu(self._process)
        if self._clients == 1:
            pause = PAUSE_SECONDS
        with ThreadPoolExecutor(self._clients) as clients:
            shares = [batch[n :: self._clients] for n in range(self._clients)]
            list(clients.map(lambda share: client(self._url, share, pause, self._times), shares))
        self._cpu_seconds += _cpu(self._process) - before

    def row(self) -> Row:
        times = sorted(self._times)
        return Row(
            first_ms=self.first_ms,
            p50_ms=median(times),
            p99_ms=times[int(len(times) * 0.99)],
            cpu_ms=self._cpu_seconds * 1e3 / len(times),
            rss_mib=_rss(self._process),
        )


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _rss(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / MIB


if __name__ == "__main__":
    main()
