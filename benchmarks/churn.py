"""Measures pods that come and go: the extender's CPU per pod, and whether its memory grows.

`python -m benchmarks.churn --minutes 60`: a few clients work at the embedded API server, one pod after the other. Each
creates a pod of one of many shapes, calls `/filter`, then `/bind`, and lets the pod finish and deletes it. Extender and
API server are separate processes. It prints a line for each stretch of time.

`python -m benchmarks.churn --in-process --pods 1000000`: the same without sockets and with an API server that keeps
nothing, at several times the rate. It prints a line for each stretch of pods.
"""

import asyncio
import ctypes
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import click
import psutil

from benchmarks.api_servers import Peer, embedded
from benchmarks.cluster import node_json, node_name
from benchmarks.throughput import PODS_URL, Bench, Json, bench, pod
from proto.annotations import keys
from tests.scheduler_ext.in_process import in_process

RUNNING = 100
"""Pods of each client at any time."""
MIB = 1024 * 1024


@click.command(context_settings={"show_default": True})
@click.option("--minutes", default=10.0, help="Duration; with --in-process it follows from --pods.")
@click.option("--in-process", is_flag=True, help="Without sockets.")
@click.option("--pods", default=1_000_000, help="Number of pods, with --in-process.")
@click.option("--lines", default=20, help="Of the table.")
@click.option("--nodes", default=20, help="Nodes of eight GPUs, each shared by ten.")
@click.option(
    "--shapes", default=60, help="Number of different requests; every fifth has two containers and is topology-aware."
)
@click.option("--clients", default=4, help="Clients at the same time.")
def main(*, minutes: float, in_process: bool, pods: int, lines: int, nodes: int, shapes: int, clients: int) -> None:
    """Print pods, pods per second, the extender's CPU per pod and its memory, for each stretch."""
    churn = Churn(minutes * 60 / lines, pods // lines, lines, nodes, shapes, clients)
    if in_process:
        asyncio.run(_churn_in_process(churn))
        return
    click.echo("| pods | pods/s | extender's CPU ms a pod | memory MiB |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(prefix="tg") as folder, embedded(Path(folder)) as peer:
        asyncio.run(_churn(peer, Path(folder), churn))


@dataclass(frozen=True, slots=True)
class Churn:
    """`seconds`, or without sockets `pods`, of each of `lines`."""

    seconds: float
    pods: int
    lines: int
    nodes: int
    shapes: int
    clients: int


async def _churn(peer: Peer, folder: Path, churn: Churn) -> None:
    async with bench(peer, churn.nodes, folder) as on:
        ended, numbers = count(), count()
        clients = [asyncio.create_task(_client(on, churn, numbers, ended)) for _ in range(churn.clients)]
        done = 0
        for _ in range(churn.lines):
            cpu, began = on.cpu(), time.perf_counter()
            finished, _ = await asyncio.wait(clients, timeout=churn.seconds, return_when=asyncio.FIRST_EXCEPTION)
            for each in finished:
                each.result()
            # A counter shows its value only by counting on.
            pods, seconds = next(ended) - done, time.perf_counter() - began
            done += pods + 1
            memory = on.process.memory_info().rss / MIB
            milliseconds = (on.cpu() - cpu) * 1e3 / max(pods, 1)
            click.echo(f"| {done} | {pods / seconds:.0f} | {milliseconds:.2f} | {memory:.1f} |")
        for each in clients:
            each.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


async def _client(on: Bench, churn: Churn, numbers: Iterator[int], ended: Iterator[int]) -> None:
    """Creates one pod after the other; a few of them run at any time."""
    names = [node_name(number) for number in range(churn.nodes)]
    running: deque[str] = deque()
    for number in numbers:
        created = await on.send("POST", PODS_URL, _pod(number, number % churn.shapes))
        metadata = created["metadata"]
        answer = await on.ask("filter", {"Pod": created, "NodeNames": names}, [])
        if answer["NodeNames"]:
            body = {"PodName": metadata["name"], "PodNamespace": "default", "PodUID": metadata["uid"]}
            await on.ask("bind", body | {"Node": answer["NodeNames"][0]}, [])
        running.append(metadata["name"])
        if len(running) > RUNNING:
            await _end(on, running.popleft())
            next(ended)


async def _end(on: Bench, name: str) -> None:
    status = {"status": {"phase": "Succeeded"}}
    await on.send("PATCH", f"{PODS_URL}/{name}/status", status)
    await on.send("DELETE", f"{PODS_URL}/{name}?gracePeriodSeconds=0", {"gracePeriodSeconds": 0})


async def _churn_in_process(churn: Churn) -> None:
    """Does as all clients do. The rest of each pod's work is done before the next pod."""
    click.echo(
        "| pods | pods/s | CPU ms a pod | memory MiB | of it free | Python's blocks, thousands |\n" + "| --- " * 6 + "|"
    )
    names = [node_name(number) for number in range(churn.nodes)]
    running: deque[str] = deque()
    async with in_process([node_json(number) for number in range(churn.nodes)]) as on:
        for line in range(churn.lines):
            cpu, began = time.process_time(), time.perf_counter()
            for number in range(line * churn.pods, (line + 1) * churn.pods):
                made = _pod(number, number % churn.shapes)
                made["metadata"]["uid"] = f"uid-{number}"
                on.api.add(made)
                await on.place(made, names)
                running.append(made["metadata"]["name"])
                if len(running) > RUNNING * churn.clients:
                    name = running.popleft()
                    on.api.change(name, status={"phase": "Succeeded"})
                    on.api.delete(name)
                await on.api.all_seen()
            seconds, milliseconds = time.perf_counter() - began, (time.process_time() - cpu) * 1e3 / churn.pods
            memory, blocks = psutil.Process().memory_info().rss / MIB, sys.getallocatedblocks() / 1e3
            click.echo(
                f"| {(line + 1) * churn.pods} | {churn.pods / seconds:.0f} | {milliseconds:.2f} "
                f"| {memory:.1f} | {_free() / MIB:.1f} | {blocks:.0f} |"
            )


class _Mallinfo(ctypes.Structure):
    """mallinfo2 of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "used", "free", "keepcost")
    )


def _free() -> int:
    """Returns the bytes that the C library's allocator has and does not use."""
    told = ctypes.CDLL(None).mallinfo2
    told.restype = _Mallinfo
    return int(told().free)


def _pod(number: int, shape: int) -> Json:
    made = pod(f"churn-{number}")
    limits = {keys.RESOURCE_COUNT: "1", keys.RESOURCE_MEMORY: str(1000 + 10 * shape), keys.RESOURCE_CORES: "5"}
    made["spec"]["containers"][0]["resources"] = {"limits": limits}
    if shape % 5 == 0:
        several = limits | {keys.RESOURCE_COUNT: "2"}
        made["spec"]["containers"].append({"name": "second", "image": "x", "resources": {"limits": several}})
        made["metadata"]["annotations"] = {keys.GPU_POLICY: "topology-aware"}
    return made


if __name__ == "__main__":
    main()
