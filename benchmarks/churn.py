"""Pods that come and go, for as long as you like: the extender's CPU for each, and whether its memory grows.

Run it with `python -m benchmarks.churn --minutes 60`. A few clients each create a pod of one of many shapes, ask
`/filter`, then `/bind`, let it finish and delete it, one pod after the other, at the embedded API server. Extender and
API server are processes of their own. A line is printed for each stretch of time.
"""

import asyncio
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import click

from benchmarks.api_servers import Peer, embedded
from benchmarks.cluster import node_name
from benchmarks.throughput import PODS_URL, Bench, Json, bench, pod
from proto.annotations import keys

RUNNING = 100
"""Pods of each client at any time."""
MIB = 1024 * 1024


@click.command(context_settings={"show_default": True})
@click.option("--minutes", default=10.0, help="How long.")
@click.option("--lines", default=10, help="Of the table.")
@click.option("--nodes", default=20, help="Nodes of eight GPUs, each shared by ten.")
@click.option("--shapes", default=60, help="Different requests; every fifth of two containers, topology-aware.")
@click.option("--clients", default=4, help="At the same time.")
def main(*, minutes: float, lines: int, nodes: int, shapes: int, clients: int) -> None:
    """Print pods, pods per second, the extender's CPU for each and its memory, at the end of each stretch of time."""
    click.echo("| pods | pods/s | extender's CPU ms a pod | memory MiB |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(prefix="tg") as folder, embedded(Path(folder)) as peer:
        asyncio.run(_churn(peer, Path(folder), Churn(minutes * 60 / lines, lines, nodes, shapes, clients)))


@dataclass(frozen=True, slots=True)
class Churn:
    """`seconds` of each of `lines`."""

    seconds: float
    lines: int
    nodes: int
    shapes: int
    clients: int


async def _churn(peer: Peer, folder: Path, churn: Churn) -> None:
    async with bench(peer, churn.nodes, folder, split=False) as on:
        ended, numbers = count(), count()
        clients = [asyncio.create_task(_client(on, churn, numbers, ended)) for _ in range(churn.clients)]
        done = 0
        for _ in range(churn.lines):
            cpu, began = on.cpu(), time.perf_counter()
            finished, _ = await asyncio.wait(clients, timeout=churn.seconds, return_when=asyncio.FIRST_EXCEPTION)
            for each in finished:
                each.result()
            # A count tells its number by being counted on.
            pods, seconds = next(ended) - done, time.perf_counter() - began
            done += pods + 1
            memory = on.process.memory_info().rss / MIB
            milliseconds = (on.cpu() - cpu) * 1e3 / max(pods, 1)
            click.echo(f"| {done} | {pods / seconds:.0f} | {milliseconds:.2f} | {memory:.1f} |")
        for each in clients:
            each.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


async def _client(on: Bench, churn: Churn, numbers: Iterator[int], ended: Iterator[int]) -> None:
    """One pod after the other, a few of them running at any time."""
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
