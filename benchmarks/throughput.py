"""Measures pods per second from creation to their node; extender, API server and scheduler are separate processes.

Run it with `python -m benchmarks.throughput`. It has three parts.

1. Clients each create a pod, call `/filter`, then `/bind`, one pod after the other, as kube-scheduler does.

2. The same without an extender: the client itself writes each Binding. This is what API server and clients need alone.

3. A scheduler finds all pods waiting. Its rate is taken from the first pod that gets a node to the last.

If etcd, kube-apiserver and kube-scheduler are available ($KUBEBUILDER_ASSETS, or what `make test-cluster` built), all
of it runs once more with them. kube-scheduler then runs with and without the extender by turns.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import click
import msgspec
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.api_servers import Peer, Writes, embedded, real
from benchmarks.cluster import node_json, node_name
from proto.annotations import keys
from proto.kubernetes.client import ApiServer
from simulation.kube_scheduler import KubeSchedulerStandIn
from simulation.processes import ChildProcess
from tests.cluster.binaries import Binaries, NoBinaries, find
from tests.cluster.control_plane import ControlPlane
from tests.cluster.scheduling import scheduler_configuration

PODS_URL = "/api/v1/namespaces/default/pods"
SCHEDULER_NAME = "topogpu-scheduler"
LONGEST_SECONDS = 300.0
CREATORS = 8
ASKED = {keys.RESOURCE_COUNT: "1", keys.RESOURCE_MEMORY: "4096", keys.RESOURCE_CORES: "5"}
SERIES = ("clients", "stand-in", "kube-scheduler")

Json = dict[str, Any]
Start = Callable[[AsyncExitStack], Awaitable[None]]
"""Starts a scheduler that runs as long as the stack."""


@dataclass(slots=True, kw_only=True)
class Row:
    """One series; times are in seconds."""

    peer: str
    who: str
    pods: int
    seconds: float = 0.0
    extender_cpu: float = 0.0
    writes: Writes = field(default_factory=dict)
    filters: list[float] = field(default_factory=list)
    binds: list[float] = field(default_factory=list)


# The measurements


@dataclass(frozen=True, slots=True)
class Bench:
    """One extender before one API server, and the client beside them."""

    peer: Peer
    http: aiohttp.ClientSession
    extender: str
    process: psutil.Process

    async def send(self, method: str, path: str, body: object = None) -> Json:
        url, data = self.peer.url + path, None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else _JSON
        async with self.http.request(method, url, data=data, headers=headers) as response:
            answer: Json = msgspec.json.decode(await response.read())
            if response.status >= 300:
                raise click.ClickException(f"{method} {path}: {answer.get('message')}")
            return answer

    async def ask(self, verb: str, body: Json, times: list[float]) -> Json:
        data, began = msgspec.json.encode(body), time.perf_counter()
        async with self.http.post(f"{self.extender}/{verb}", data=data) as response:
            answer: Json = msgspec.json.decode(await response.read())
        times.append(time.perf_counter() - began)
        if answer.get("Error"):
            raise click.ClickException(f"/{verb}: {answer['Error']}")
        return answer

    def cpu(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)


_JSON = {"Content-Type": "application/json"}


@asynccontextmanager
async def bench(peer: Peer, nodes: int, folder: Path, *, metrics: str = "") -> AsyncIterator[Bench]:
    """Yields nodes, and an extender that knows them. It answers about its metrics at this address."""
    arguments = [
        *(sys.executable, "-m", "scheduler_ext", "serve", "--http_bind", "127.0.0.1:0"),
        *("--metrics-bind-address", metrics, "--kubeconfig", peer.kubeconfig, "--log-level", "error"),
    ]
    async with AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(limit=0, ssl=peer.tls)
        session = aiohttp.ClientSession(connector=connector, headers=peer.headers)
        http = await stack.enter_async_context(session)
        log = folder / "extender.log"
        log.unlink(missing_ok=True)  # it names the address of the extender before
        process = await ChildProcess.start("extender", arguments, dict(os.environ), log)
        stack.push_async_callback(process.stop)
        extender = (await process.wait_for_line(r"listening on (http://\S+)", 20))[1]
        found = Bench(peer, http, extender, psutil.Process(process.pid))
        if not (await found.send("GET", "/api/v1/nodes?limit=1"))["items"]:
            numbers = iter(range(nodes))
            await asyncio.gather(*(_add_nodes(found, numbers) for _ in range(CREATORS)))
        await _ready(found, nodes)
        yield found


async def _add_nodes(on: Bench, numbers: Iterator[int]) -> None:
    for number in numbers:
        await _add_node(on, number)


async def _add_node(on: Bench, number: int) -> None:
    node = {"apiVersion": "v1", "kind": "Node", **node_json(number)}
    status: Json = node["status"]  # type: ignore[assignment]
    status["allocatable"] |= {"pods": "110"} | dict.fromkeys(map(_not_ours, ASKED), "1000000")
    status["capacity"] = status["allocatable"]
    node["metadata"].pop("uid")  # type: ignore[attr-defined]
    await on.send("POST", "/api/v1/nodes", node)
    # kube-controller-manager would remove the taint of a young node.
    path = f"/api/v1/nodes/{node_name(number)}"
    async with on.http.patch(
        on.peer.url + path, data=b'{"spec":{"taints":null}}', headers={"Content-Type": "application/merge-patch+json"}
    ) as response:
        await response.read()


async def _ready(on: Bench, nodes: int) -> None:
    """Wait until the extender has seen the last node."""
    names, probe = [node_name(number) for number in range(nodes)], pod("probe")
    async with asyncio.timeout(60):
        while True:
            async with on.http.post(
                f"{on.extender}/filter", data=msgspec.json.encode({"Pod": probe, "NodeNames": names})
            ) as response:
                answer = msgspec.json.decode(await response.read())
            if answer["NodeNames"] and not answer["FailedNodes"] and not answer["FailedAndUnresolvableNodes"]:
                return
            await asyncio.sleep(0.1)


def pod(name: str, *, scheduler: str = "nobody", gpu: bool = True) -> Json:
    """Requests, without `gpu`, as many resources of other names: at each node kube-scheduler parses each name."""
    limits = ASKED if gpu else {_not_ours(name): amount for name, amount in ASKED.items()}
    container = {"name": "main", "image": "example.com/work:1", "resources": {"limits": limits}}
    metadata = {"name": name, "namespace": "default"}
    spec = {"schedulerName": scheduler, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _not_ours(resource: str) -> str:
    return resource.replace("nvidia.com", "example.com")


async def by_clients(on: Bench, nodes: int, pods: int, clients: int, *, extender: bool) -> Row:
    """Each client works on one pod after the other."""
    who = f"{clients} client{'s' * (clients > 1)}" + ("" if extender else ", no extender")
    row = Row(peer=on.peer.name, who=who, pods=pods)
    names, numbers = [node_name(number) for number in range(nodes)], iter(range(pods))

    async def client() -> None:
        for number in numbers:
            created = await on.send("POST", PODS_URL, pod(f"{'with' if extender else 'bare'}-{clients}-{number}"))
            metadata = created["metadata"]
            if not extender:
                await _bind(on, metadata, names[number % nodes])
                continue
            answer = await on.ask("filter", {"Pod": created, "NodeNames": names}, row.filters)
            if not answer["NodeNames"]:
                raise click.ClickException("the pods do not fit: fewer --pods, or more --nodes")
            body = {"PodName": metadata["name"], "PodNamespace": "default", "PodUID": metadata["uid"]}
            await on.ask("bind", body | {"Node": answer["NodeNames"][0]}, row.binds)

    async with _measured(on, row):
        await asyncio.gather(*(client() for _ in range(clients)))
    await clear(on)
    return row


async def _bind(on: Bench, metadata: Json, node: str) -> None:
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    own = {"name": metadata["name"], "namespace": "default", "uid": metadata["uid"]}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": own, "target": target}
    await on.send("POST", f"{PODS_URL}/{metadata['name']}/binding", binding)


@asynccontextmanager
async def _measured(on: Bench, row: Row) -> AsyncIterator[None]:
    """Time, CPU of the extender, and writes. Events are written later and are waited for."""
    writes, cpu, began = on.peer.writes(), on.cpu(), time.perf_counter()
    yield
    row.seconds = row.seconds or time.perf_counter() - began
    row.extender_cpu = on.cpu() - cpu
    await asyncio.sleep(1.0)
    row.writes = Counter(on.peer.writes()) - Counter(writes) - Counter({"create pods": row.pods})


async def by_scheduler(on: Bench, pods: int, who: str, scheduler: Start, *, gpu: bool = True) -> Row:
    """The pods wait already when the scheduler starts."""
    row, kind = Row(peer=on.peer.name, who=who, pods=pods), "gpu" if gpu else "plain"
    numbers = iter(range(pods))

    async def create() -> None:
        for number in numbers:
            await on.send("POST", PODS_URL, pod(f"{kind}-{number}", scheduler=SCHEDULER_NAME, gpu=gpu))

    await asyncio.gather(*(create() for _ in range(CREATORS)))
    listed = await on.send("GET", f"{PODS_URL}?limit=1")
    watching = asyncio.create_task(bound(on, listed["metadata"]["resourceVersion"], pods))
    async with _measured(on, row), AsyncExitStack() as stack:
        await scheduler(stack)
        row.seconds = await asyncio.wait_for(watching, LONGEST_SECONDS)
    await clear(on)
    return row


async def bound(on: Bench, version: str, pods: int) -> float:
    """Returns the seconds from the first pod that gets a node to the last."""
    seen: dict[str, float] = {}
    # kube-apiserver ends the watch of a reader that is slow for a moment.
    while len(seen) < pods:
        url = f"{on.peer.url}{PODS_URL}?watch=true&resourceVersion={version}"
        async with on.http.get(url, timeout=aiohttp.ClientTimeout(total=None), read_bufsize=2**24) as response:
            async for line in response.content:
                event = msgspec.json.decode(line)
                if event["type"] == "ERROR":
                    raise click.ClickException(f"the pods cannot be watched: {event['object'].get('message')}")
                item = event["object"]
                version = item["metadata"]["resourceVersion"]
                if item.get("spec", {}).get("nodeName"):
                    seen.setdefault(item["metadata"]["name"], time.perf_counter())
                if len(seen) == pods:
                    break
    return max(seen.values()) - min(seen.values())


async def clear(on: Bench) -> None:
    """Delete all pods: the next series finds the nodes empty."""
    await on.send("DELETE", f"{PODS_URL}?gracePeriodSeconds=0", {"gracePeriodSeconds": 0})
    await asyncio.sleep(1.0)


def stand_in(on: Bench) -> Start:
    async def start(stack: AsyncExitStack) -> None:
        api = await ApiServer.connect(on.peer.kubeconfig)
        stack.push_async_callback(api.close)
        await stack.enter_async_context(KubeSchedulerStandIn(api, on.extender, SCHEDULER_NAME))

    return start


def kube_scheduler(on: Bench, plane: ControlPlane, *, extender: bool) -> Start:
    configuration = dict(scheduler_configuration(on.extender, {}))
    if not extender:
        configuration.pop("extenders")

    async def start(stack: AsyncExitStack) -> None:
        await asyncio.to_thread(stack.enter_context, plane.scheduler(configuration, f"scheduler-{extender}"))

    return start


# The program


@click.command(context_settings={"show_default": True})
@click.option("--nodes", default=50, help="Nodes of eight GPUs, each shared by ten.")
@click.option("--pods", default=2000, help="Pods of each series of clients and of kube-scheduler.")
@click.option("--stand-in-pods", default=500, help="Pods of the series of the stand-in, which is slow with many.")
@click.option("--clients", default="1,4,16", help="Clients at the same time, one series each.")
@click.option("--rounds", default=2, help="Rounds of kube-scheduler with and without the extender by turns.")
@click.option("--only", multiple=True, default=SERIES, type=click.Choice(SERIES), help="Run only this series.")
@click.option("--kubebuilder-assets", envvar="KUBEBUILDER_ASSETS", type=click.Path(exists=True), metavar="DIR",
              help="Folder with etcd, kube-apiserver, kube-scheduler and kubectl.")  # fmt: skip
def main(
    *,
    nodes: int,
    pods: int,
    stand_in_pods: int,
    clients: str,
    rounds: int,
    only: tuple[str, ...],
    kubebuilder_assets: str | None,
) -> None:
    """Print pods per second, times, writes per pod, and the extender's CPU time."""
    numbers = [int(word) for word in clients.split(",")] if "clients" in only else []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tg")))
        rows: list[Row] = []
        for number in numbers:
            with embedded(folder) as peer:
                rows += asyncio.run(_clients(peer, nodes, pods, [number], folder))
        if "stand-in" in only:
            with embedded(folder) as peer:
                rows.append(asyncio.run(_stand_in(peer, nodes, stand_in_pods, folder)))
        turns: list[tuple[Row, Row]] = []
        try:
            binaries = binaries_in(kubebuilder_assets)
        except NoBinaries as error:
            click.echo(f"No real API server and scheduler were measured: {error}.", err=True)
        else:
            peer, plane = stack.enter_context(real(binaries, folder))
            if numbers:
                rows += asyncio.run(_clients(peer, nodes, pods, numbers, folder))
            if "kube-scheduler" in only:
                turns = asyncio.run(_kube_scheduler(peer, plane, nodes, pods, rounds=rounds, folder=folder))
                rows += [row for turn in turns for row in turn]
    console = Console(width=150)
    console.print(table(rows))
    if turns:
        shares = [alone.seconds / ours.seconds for ours, alone in turns]
        each = ", ".join(f"{share:.0%}" for share in shares)
        console.print(f"kube-scheduler with the extender: {sum(shares) / len(shares):.0%} of its rate alone ({each})")


def binaries_in(folder: str | None) -> Binaries:
    """Raises NoBinaries."""
    if folder is not None:
        os.environ["KUBEBUILDER_ASSETS"] = folder
    return find()


async def _clients(peer: Peer, nodes: int, pods: int, numbers: list[int], folder: Path) -> list[Row]:
    async with bench(peer, nodes, folder) as on:
        return [
            await by_clients(on, nodes, pods, number, extender=extender)
            for number in numbers
            for extender in (True, False)
        ]


async def _stand_in(peer: Peer, nodes: int, pods: int, folder: Path) -> Row:
    async with bench(peer, nodes, folder) as on:
        return await by_scheduler(on, pods, "scheduler stand-in", stand_in(on))


async def _kube_scheduler(
    peer: Peer, plane: ControlPlane, nodes: int, pods: int, *, rounds: int, folder: Path
) -> list[tuple[Row, Row]]:
    """Measures with and without the extender, by turns."""
    async with bench(peer, nodes, folder) as on:
        ours, alone = (kube_scheduler(on, plane, extender=extender) for extender in (True, False))
        return [
            (
                await by_scheduler(on, pods, "kube-scheduler", ours),
                await by_scheduler(on, pods, "kube-scheduler, no extender", alone, gpu=False),
            )
            for _ in range(rounds)
        ]


def table(rows: list[Row]) -> Table:
    found = Table("API server", "who", "pods", "pods/s", "filter p50/p99 ms", "bind p50/p99 ms", "writes a pod",
                  "extender CPU ms a pod")  # fmt: skip
    for row in rows:
        writes = ", ".join(f"{count / row.pods:.2f} {what}" for what, count in sorted(row.writes.items()))
        cpu = f"{row.extender_cpu * 1e3 / row.pods:.2f}"
        rate = f"{row.pods / row.seconds:.0f}"
        found.add_row(row.peer, row.who, str(row.pods), rate, _times(row.filters), _times(row.binds), writes, cpu)
    return found


def _times(times: list[float]) -> str:
    if not times:
        return ""
    ordered = sorted(times)
    return " / ".join(f"{ordered[int(len(ordered) * share)] * 1e3:.1f}" for share in (0.5, 0.99))


if __name__ == "__main__":
    main()
