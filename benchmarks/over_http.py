"""The extender and its client over HTTP, for benchmarks: separate processes around generated clusters."""

import asyncio
import multiprocessing
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import click
import psutil

from program.address import ListenAddress
from scheduler_ext.http.messages import Endpoints, HttpAnswer, HttpRequest
from scheduler_ext.http.server import listening_to_kube_scheduler

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
clusters: [{{name: c, cluster: {{server: "{url}"}}}}]
users: [{{name: u, user: {{token: t}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
"""
ANSWER = b'{"Nodes":null,"NodeNames":["x"],"FailedNodes":null,"FailedAndUnresolvableNodes":null,"Error":""}'
PAUSE_SECONDS = 0.003
"""Pause after each answer: kube-scheduler itself needs that long for a pod."""
LONGEST_START_SECONDS = 120


def client(url: str, asked: Iterable[bytes], pause_seconds: float, times: list[float]) -> None:
    """Runs a client with one open connection. It is a bare socket: a client's own time would be measured too."""
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
def running_extender(
    nodes: int, pods: int, *, different: bool = False, more: Sequence[str] = ()
) -> Iterator[tuple[psutil.Process, str, str]]:
    """Starts the program as it is shipped, with `more` settings. Yields its addresses for kube-scheduler and for
    Prometheus.
    """
    with ExitStack() as stack:
        cluster = (str(nodes), str(pods), *["different"] * different)
        api = stack.enter_context(_process("benchmarks.cluster", *cluster))
        metrics = f"127.0.0.1:{free_port()}"
        kubeconfig = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "kubeconfig"
        kubeconfig.write_text(KUBECONFIG.format(url=_first_line(api)))
        arguments = ("--kubeconfig", str(kubeconfig), "--http-bind", "127.0.0.1:0", "--metrics-bind-address", metrics)
        served = ("scheduler_ext", "serve", *arguments, *more, "--log-level", "error")
        extender = stack.enter_context(_process(*served))
        url = _first_line(extender).rpartition(" ")[2]
        where = urlsplit(url)
        until = time.monotonic() + LONGEST_START_SECONDS
        while not _is_ready(where.hostname or "", where.port or 0):
            if time.monotonic() > until:
                raise click.ClickException(f"the extender is not ready after {LONGEST_START_SECONDS} s")
            time.sleep(0.02)
        yield psutil.Process(extender.pid), url, f"http://{metrics}"


def free_port() -> int:
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
    ports: multiprocessing.Queue[str] = multiprocessing.Queue()
    process = multiprocessing.Process(target=lambda: asyncio.run(_serve_constant(ports)), daemon=True)
    process.start()
    try:
        yield psutil.Process(process.pid), ports.get(timeout=20)
    finally:
        process.terminate()


async def _serve_constant(ports: "multiprocessing.Queue[str]") -> None:
    async def answer(_: HttpRequest) -> HttpAnswer:
        return HttpAnswer(ANSWER)

    async def finish() -> None:
        pass

    verbs = Endpoints(private={"/filter": {"POST": answer}}, public={}, finish=finish)
    async with listening_to_kube_scheduler(verbs, ListenAddress(host="127.0.0.1", port=0), "--port") as url:
        ports.put(url)
        await asyncio.Event().wait()
