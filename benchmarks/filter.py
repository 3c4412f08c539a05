"""`/filter` over HTTP against clusters of thousands of nodes: latency, memory and CPU of the real program.

Run it with `python -m benchmarks.filter`. For each cluster an API server that generates it, the extender, and a server
that only reads a request and answers a constant (the floor of the transport) run as processes of their own; this
process is kube-scheduler. Every request is for another pod and names all nodes, shuffled. A single client waits 3 ms
between two pods, as long as kube-scheduler itself needs for one at its best; several ask without a pause.
"""

import asyncio
import multiprocessing
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from statistics import median
from urllib.parse import urlsplit

import click
import msgspec
import psutil

from benchmarks.cluster import node_name
from benchmarks.filter_chart import chart
from proto.annotations import keys
from scheduler_ext import loopback
from scheduler_ext.exchange import Answer, Asked, Verbs

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
clusters: [{{name: c, cluster: {{server: "{url}"}}}}]
users: [{{name: u, user: {{token: t}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
"""
ANSWER = b'{"Nodes":null,"NodeNames":["x"],"FailedNodes":null,"FailedAndUnresolvableNodes":null,"Error":""}'
MIB = 1024 * 1024
PAUSE_SECONDS = 0.003
LONGEST_START_SECONDS = 120
ROUNDS = 10
"""Series take turns, so that what else the machine does slows all of them down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What each pod of a series asks for; `memory_mib` above 81 920 fits nowhere."""

    name: str
    gpus: int = 1
    memory_mib: int = 1024
    policy: str = ""


FITS = Ask(name="fits")
FITS_NOWHERE = Ask(name="fits nowhere", memory_mib=100_000)
TOPOLOGY = Ask(name="4 GPUs, topology-aware", gpus=4, policy="topology-aware")
ASKS = (FITS, FITS_NOWHERE, TOPOLOGY)
FLOOR = Ask(name="empty handler")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Times in ms. `first_ms` is of the first pod of its shape, when nothing about the shape is known yet."""

    first_ms: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    rss_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One cluster. `rows` are by the number of clients and what was asked; `answer_ms` is of the first pod of all."""

    nodes: int
    pods: int
    ready_seconds: float
    ready_mib: float
    answer_ms: float
    rows: Mapping[tuple[int, Ask], Row]


@click.command()
@click.option("--nodes", default="100,1000,5000", show_default=True, help="Sizes of the cluster.")
@click.option("--pods", default="0,4,32", show_default=True, help="Running pods on each node.")
@click.option("--clients", default="1,4", show_default=True, help="Requests under way at the same time.")
@click.option("--requests", type=click.IntRange(min=ROUNDS), default=400, show_default=True,
              help="Requests of each series.")  # fmt: skip
@click.option("--quick", is_flag=True, help="100 and 1000 nodes, 4 pods a node, 150 requests.")
@click.option("--svg", type=click.Path(path_type=Path), help="Draw the p50 of one client at 4 pods a node here.")
def main(*, nodes: str, pods: str, clients: str, requests: int, quick: bool, svg: Path | None) -> None:
    """Print Markdown tables of `/filter` over HTTP, names only, with the floor of the transport in the same run."""
    if quick:
        nodes, pods, requests = "100,1000", "4", 150
    numbers, found = _numbers(clients), []
    for pods_a_node in _numbers(pods):
        for size in _numbers(nodes):
            click.echo(f"{size} nodes, {pods_a_node} pods a node …", err=True)
            found.append(_measured(size, pods_a_node, numbers, requests))
    for number in numbers:
        _print(f"Clients: {number}", HEAD, [_cells(each, number) for each in found])
    _print("Start", START_HEAD, [_start_cells(each) for each in found])
    if svg is not None and 1 in numbers:
        lines = {
            ask.name: {each.nodes: each.rows[1, ask].p50_ms for each in found if each.pods == 4}
            for ask in (FLOOR, *ASKS)
        }
        svg.write_text(chart(lines))


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _print(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    click.echo(f"\n{title}\n")
    for row in (head, ["---"] * len(head), *rows):
        click.echo(f"| {' | '.join(row)} |")


HEAD = ("nodes", "pods a node", "floor p50 / p99", "fits: p50 / p99", "× floor", "fits nowhere: first / p50 / p99",
        "4 GPUs, topology-aware: first / p50 / p99", "CPU of one that fits", "memory MiB")  # fmt: skip
START_HEAD = ("nodes", "pods a node", "ready after its start", "first answer after that", "memory then")


def _cells(found: Measured, clients: int) -> list[str]:
    floor, fits, nowhere, topology = (found.rows[clients, ask] for ask in (FLOOR, *ASKS))
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
        answer_ms = _Series(extender, url, Ask(name="", memory_mib=2048), nodes=nodes, clients=1, requests=0).first_ms
        rows: dict[tuple[int, Ask], Row] = {}
        for number in clients:
            size = {"nodes": nodes, "clients": number, "requests": requests}
            series = {ask: _Series(extender, url, ask, **size) for ask in ASKS}
            series[FLOOR] = _Series(floor, floor_url, FLOOR, **size)
            for _ in range(ROUNDS):
                for each in series.values():
                    each.ask(requests // ROUNDS)
            rows |= {(number, ask): each.row() for ask, each in series.items()}
    return Measured(
        nodes=nodes, pods=pods, ready_seconds=ready_seconds, ready_mib=ready_mib, answer_ms=answer_ms, rows=rows
    )


class _Series:
    """Pods of one kind, asked about by so many clients at once; the first of all alone."""

    def __init__(self, process: psutil.Process, url: str, ask: Ask, *, nodes: int, clients: int, requests: int) -> None:
        self._process = process
        self._url = url
        self._clients = clients
        self._bodies = bodies(ask, nodes, clients, requests + 1)
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


def bodies(ask: Ask, nodes: int, clients: int, requests: int) -> Iterator[bytes]:
    rng = Random(0)
    names = [node_name(number) for number in range(nodes)]
    for number in range(requests):
        rng.shuffle(names)
        yield msgspec.json.encode({"Pod": _pod(ask, f"{clients}-{number}"), "Nodes": None, "NodeNames": names})


def _pod(ask: Ask, number: str) -> dict[str, object]:
    limits = {keys.RESOURCE_COUNT: str(ask.gpus), keys.RESOURCE_MEMORY: str(ask.memory_mib)}
    annotations = {keys.GPU_POLICY: ask.policy} if ask.policy else {}
    name = f"pod-{ask.name.replace(' ', '-')}-{number}"
    return {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}", "annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": "work", "resources": {"limits": limits}}]},
        "status": {"phase": "Pending"},
    }


def client(url: str, asked: Sequence[bytes], pause_seconds: float, times: list[float]) -> None:
    """One connection kept open. A bare socket: what the client itself needs would be counted in."""
    where = urlsplit(url)
    with socket.create_connection((where.hostname, where.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for body in asked:
            head = f"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            began = time.perf_counter()
            connection.sendall(head.encode() + body)
            _read_answer(connection)
            times.append((time.perf_counter() - began) * 1e3)
            time.sleep(pause_seconds)


def _read_answer(connection: socket.socket) -> None:
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += _received(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise click.ClickException(f"the extender answered {answer.decode(errors='replace')}")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    missing = int(lengths[0].partition(b":")[2]) - len(body)
    while missing > 0:
        missing -= len(_received(connection))


def _received(connection: socket.socket) -> bytes:
    found = connection.recv(1 << 20)
    if not found:
        raise click.ClickException("the extender closed the connection in the middle of an answer")
    return found


@contextmanager
def running_extender(nodes: int, pods: int, *, different: bool = False) -> Iterator[tuple[psutil.Process, str, str]]:
    """The program as it is shipped, once it is ready: where kube-scheduler asks it, and where Prometheus does."""
    with ExitStack() as stack:
        cluster = (str(nodes), str(pods), *["different"] * different)
        api = stack.enter_context(_process("benchmarks.cluster", *cluster))
        metrics = f"127.0.0.1:{_free_port()}"
        kubeconfig = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "kubeconfig"
        kubeconfig.write_text(KUBECONFIG.format(url=_first_line(api)))
        arguments = ("--kubeconfig", str(kubeconfig), "--http-bind", "127.0.0.1:0", "--metrics-bind-address", metrics)
        served = ("scheduler_ext", "serve", *arguments, "--log-level", "error")
        extender = stack.enter_context(_process(*served))
        url = _first_line(extender).rpartition(" ")[2]
        where = urlsplit(url)
        until = time.monotonic() + LONGEST_START_SECONDS
        while not _is_ready(where.hostname or "", where.port or 0):
            if time.monotonic() > until:
                raise click.ClickException(f"the extender is not ready after {LONGEST_START_SECONDS} s")
            time.sleep(0.02)
        yield psutil.Process(extender.pid), url, f"http://{metrics}"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def _is_ready(host: str, port: int) -> bool:
    with socket.create_connection((host, port)) as connection:
        connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return connection.recv(1000).startswith(b"HTTP/1.1 200")


@contextmanager
def _process(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def _first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise click.ClickException("a process of the benchmark did not come up; its output is above")
    return line


@contextmanager
def running_floor() -> Iterator[tuple[psutil.Process, str]]:
    ports: multiprocessing.Queue[int] = multiprocessing.Queue()
    process = multiprocessing.Process(target=lambda: asyncio.run(_serve_constant(ports)), daemon=True)
    process.start()
    try:
        yield psutil.Process(process.pid), f"http://127.0.0.1:{ports.get(timeout=20)}"
    finally:
        process.terminate()


async def _serve_constant(ports: "multiprocessing.Queue[int]") -> None:
    async def answer(_: Asked) -> Answer:
        return Answer(ANSWER)

    async def finish() -> None:
        pass

    verbs = Verbs(private={"/filter": {"POST": answer}}, public={}, finish=finish)
    async with loopback.serving(verbs, "127.0.0.1", 0, shutdown_seconds=0.0) as (_, port):
        ports.put(port)
        await asyncio.Event().wait()


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _rss(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / MIB


if __name__ == "__main__":
    main()
