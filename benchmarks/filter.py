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
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from urllib.parse import urlsplit

import click
import msgspec
import psutil
from aiohttp import web
from rich.console import Console
from rich.table import Table

from benchmarks.cluster import node_name
from benchmarks.filter_chart import chart
from proto.annotations import keys

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What each pod of a series asks for; `memory_mib` above 81 920 fits nowhere."""

    name: str
    gpus: int = 1
    memory_mib: int = 1024
    annotations: dict[str, str] = field(default_factory=dict)


FITS = Ask(name="fits")
FITS_NOWHERE = Ask(name="fits nowhere", memory_mib=100_000)
TOPOLOGY = Ask(name="4 GPUs, topology-aware", gpus=4, annotations={keys.GPU_POLICY: "topology-aware"})
ASKS = (FITS, FITS_NOWHERE, TOPOLOGY)
FLOOR = "empty handler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Times in ms. `first_ms` is of the first pod of its shape, when nothing about the shape is known yet."""

    nodes: int
    pods: int
    clients: int
    ask: str
    first_ms: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    rss_mib: float


@click.command()
@click.option("--nodes", default="100,1000,5000", show_default=True, help="Sizes of the cluster.")
@click.option("--pods", default="0,4,32", show_default=True, help="Running pods on each node.")
@click.option("--clients", default="1,4", show_default=True, help="Requests under way at the same time.")
@click.option("--requests", default=400, show_default=True, help="Requests of each series.")
@click.option("--quick", is_flag=True, help="100 and 1000 nodes, 4 pods a node, 150 requests.")
@click.option("--svg", type=click.Path(path_type=Path), help="Draw the p50 of one client at 4 pods a node here.")
def main(*, nodes: str, pods: str, clients: str, requests: int, quick: bool, svg: Path | None) -> None:
    """Print a table of `/filter` over HTTP, names only, with the floor of the transport in the same run."""
    if quick:
        nodes, pods, requests = "100,1000", "4", 150
    rows: list[Row] = []
    table = Table(
        "nodes", "pods a node", "clients", "pod", "first ms", "p50 ms", "p99 ms", "CPU ms", "RSS MiB", title="/filter"
    )
    for pods_a_node in _numbers(pods):
        for size in _numbers(nodes):
            found, started = _measured(size, pods_a_node, _numbers(clients), requests)
            for row in found:
                table.add_row(*_cells(row))
            table.add_section()
            rows += found
            click.echo(f"{size} nodes, {pods_a_node} pods a node: {started}", err=True)
    Console(width=120).print(table)
    if svg is not None:
        lines = {
            name: {row.nodes: row.p50_ms for row in rows if (row.ask, row.clients, row.pods) == (name, 1, 4)}
            for name in (FLOOR, *(ask.name for ask in ASKS))
        }
        svg.write_text(chart(lines))


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _cells(row: Row) -> tuple[str, ...]:
    times = (row.first_ms, row.p50_ms, row.p99_ms, row.cpu_ms)
    return (
        str(row.nodes),
        str(row.pods),
        str(row.clients),
        row.ask,
        *(f"{ms:.2f}" for ms in times),
        f"{row.rss_mib:.0f}",
    )


def _measured(nodes: int, pods: int, clients: Sequence[int], requests: int) -> tuple[list[Row], str]:
    """The rows of one cluster, and a sentence on how the extender came up."""
    rows = []
    with ExitStack() as stack:
        began = time.perf_counter()
        extender, url = stack.enter_context(_extender(nodes, pods))
        ready = time.perf_counter()
        floor, floor_url = stack.enter_context(_floor())
        warm_up = _series(url, Ask(name="", memory_mib=2048), nodes, 1, 1)
        started = (
            f"ready {ready - began:.1f} s after its start with {_rss(extender):.0f} MiB, "
            f"first answer {warm_up[0]:.1f} ms after that"
        )
        for number in clients:
            for ask, process, where in ((FLOOR, floor, floor_url), *((ask, extender, url) for ask in ASKS)):
                asked = FITS if isinstance(ask, str) else ask
                before = _cpu(process)
                times = _series(where, asked, nodes, number, requests)
                first, later = times[0], sorted(times[1:])
                rows.append(
                    Row(
                        nodes=nodes,
                        pods=pods,
                        clients=number,
                        ask=ask if isinstance(ask, str) else ask.name,
                        first_ms=first,
                        p50_ms=median(later),
                        p99_ms=later[int(len(later) * 0.99)],
                        cpu_ms=(_cpu(process) - before) * 1e3 / len(times),
                        rss_mib=_rss(process),
                    )
                )
    return rows, started


def _series(url: str, ask: Ask, nodes: int, clients: int, requests: int) -> list[float]:
    """Milliseconds of each answer, the first one alone and then the others by so many clients at once."""
    bodies = _bodies(ask, nodes, clients, requests + 1)
    times: list[float] = []
    _client(url, [next(bodies)], 0, times)
    rest, pause = list(bodies), PAUSE_SECONDS if clients == 1 else 0
    threads = [threading.Thread(target=_client, args=(url, rest[n::clients], pause, times)) for n in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


def _bodies(ask: Ask, nodes: int, clients: int, requests: int) -> Iterator[bytes]:
    rng = Random(0)
    names = [node_name(number) for number in range(nodes)]
    for number in range(requests):
        rng.shuffle(names)
        yield msgspec.json.encode({"Pod": _pod(ask, f"{clients}-{number}"), "Nodes": None, "NodeNames": names})


def _pod(ask: Ask, number: str) -> dict[str, object]:
    limits = {keys.RESOURCE_COUNT: str(ask.gpus), keys.RESOURCE_MEMORY: str(ask.memory_mib)}
    name = f"pod-{ask.name.replace(' ', '-')}-{number}"
    return {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}", "annotations": ask.annotations},
        "spec": {"containers": [{"name": "main", "image": "work", "resources": {"limits": limits}}]},
        "status": {"phase": "Pending"},
    }


def _client(url: str, bodies: Sequence[bytes], pause_seconds: float, times: list[float]) -> None:
    """One connection kept open. A bare socket: what the client itself needs would be counted in."""
    where = urlsplit(url)
    with socket.create_connection((where.hostname, where.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for body in bodies:
            head = f"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            began = time.perf_counter()
            connection.sendall(head.encode() + body)
            _read_answer(connection)
            times.append((time.perf_counter() - began) * 1e3)
            time.sleep(pause_seconds)


def _read_answer(connection: socket.socket) -> None:
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(1 << 20)
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise click.ClickException(f"the extender answered {answer.decode(errors='replace')}")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    missing = int(lengths[0].partition(b":")[2]) - len(body)
    while missing > 0:
        missing -= len(connection.recv(1 << 20))


@contextmanager
def _extender(nodes: int, pods: int) -> Iterator[tuple[psutil.Process, str]]:
    """The program as it is shipped, once it is ready."""
    with ExitStack() as stack:
        api = stack.enter_context(_process("benchmarks.cluster", str(nodes), str(pods)))
        kubeconfig = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "kubeconfig"
        kubeconfig.write_text(KUBECONFIG.format(url=_first_line(api)))
        arguments = ("--kubeconfig", str(kubeconfig), "--http-bind", "127.0.0.1:0", "--metrics-bind-address", "")
        served = ("scheduler_ext", "serve", *arguments, "--log-level", "error")
        extender = stack.enter_context(_process(*served))
        url = _first_line(extender).rpartition(" ")[2]
        where = urlsplit(url)
        until = time.monotonic() + LONGEST_START_SECONDS
        while not _is_ready(where.hostname or "", where.port or 0):
            if time.monotonic() > until:
                raise click.ClickException(f"the extender is not ready after {LONGEST_START_SECONDS} s")
            time.sleep(0.02)
        yield psutil.Process(extender.pid), url


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
def _floor() -> Iterator[tuple[psutil.Process, str]]:
    ports: multiprocessing.Queue[int] = multiprocessing.Queue()
    process = multiprocessing.Process(target=lambda: asyncio.run(_serve_constant(ports)), daemon=True)
    process.start()
    try:
        yield psutil.Process(process.pid), f"http://127.0.0.1:{ports.get(timeout=20)}"
    finally:
        process.terminate()


async def _serve_constant(ports: "multiprocessing.Queue[int]") -> None:
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=ANSWER, content_type="application/json")

    application = web.Application(client_max_size=64 * MIB)
    application.add_routes([web.post("/filter", answer)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    ports.put(runner.addresses[0][1])
    await asyncio.Event().wait()


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _rss(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / MIB


if __name__ == "__main__":
    main()
