"""Measures the real kube-scheduler on a large cluster, with the extender and alone by turns, and where the time goes.

Run it with `python -m benchmarks.scale`. Nodes are objects only. All pods wait when kube-scheduler starts; its rate is
taken from the first pod that gets a node to the last. The second series has groups of eight pods among the others,
which kube-scheduler 1.37 schedules as a whole. It needs what `make test-cluster` built, or $KUBEBUILDER_ASSETS.
"""

import asyncio
import tempfile
import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path

import click
import psutil
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from benchmarks.api_servers import Peer, real
from benchmarks.throughput import (
    CREATORS,
    PODS_URL,
    SCHEDULER_NAME,
    Bench,
    Json,
    bench,
    binaries_in,
    bound,
    clear,
    kube_scheduler,
    pod,
)
from tests.cluster.binaries import NoBinaries
from tests.cluster.control_plane import ControlPlane, free_port
from tests.cluster.groups import GROUPS

GROUP_PODS = 8
GROUPS_URL = f"/apis/{GROUPS}/namespaces/default/podgroups"
LONGEST_SECONDS = 1800.0
VERBS = ("filter", "bind")
DURATION = "topogpu_extender_call_duration_seconds"
PROGRAMS = ("kube-scheduler", "extender", "kube-apiserver", "etcd")

Buckets = dict[str, dict[float, float]]
"""Calls by verb that took at most so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One run of kube-scheduler; CPU in seconds of each program, memory in MiB."""

    who: str
    pods: int
    seconds: float
    cpu: Mapping[str, float]
    memory: Mapping[str, float]
    calls: Buckets

    @property
    def rate(self) -> float:
        return self.pods / self.seconds


async def run(on: Bench, plane: ControlPlane, metrics: str, *, pods: int, groups: int, extender: bool) -> Series:
    """The first `groups` × 8 pods are in groups. Without the extender all pods request resources that it does not
    know.
    """
    # A deleted PodGroup stays until kube-controller-manager, which does not run here, removes its finalizer.
    names = [f"group-{uuid.uuid4().hex[:8]}" for _ in range(groups)]
    numbers = iter(range(pods))

    async def create() -> None:
        for number in numbers:
            body = pod(f"pod-{number}", scheduler=SCHEDULER_NAME, gpu=extender)
            if number < groups * GROUP_PODS:
                body["spec"]["schedulingGroup"] = {"podGroupName": names[number // GROUP_PODS]}
            await on.send("POST", PODS_URL, body)

    for name in names:
        spec: Json = {"schedulingPolicy": {"gang": {"minCount": GROUP_PODS}}}
        group = {"apiVersion": GROUPS, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}
        await on.send("POST", GROUPS_URL, group)
    await asyncio.gather(*(create() for _ in range(CREATORS)))
    listed = await on.send("GET", f"{PODS_URL}?limit=1")
    watching = asyncio.create_task(bound(on, listed["metadata"]["resourceVersion"], pods))
    calls = await _calls(on, metrics)
    async with AsyncExitStack() as stack:
        await kube_scheduler(on, plane, extender=extender)(stack)
        before = _cpu(on)
        seconds = await asyncio.wait_for(watching, LONGEST_SECONDS)
        cpu = {name: used - before[name] for name, used in _cpu(on).items()}
        memory = {name: process.memory_info().rss / 2**20 for name, process in _programs(on).items()}
    found = {
        verb: {most: count - calls[verb].get(most, 0.0) for most, count in buckets.items()}
        for verb, buckets in (await _calls(on, metrics)).items()
    }
    await clear(on)
    if groups:
        await on.send("DELETE", GROUPS_URL)
    who = "with the extender" if extender else "alone"
    return Series(who=who, pods=pods, seconds=seconds, cpu=cpu, memory=memory, calls=found)


def _programs(on: Bench) -> dict[str, psutil.Process]:
    found = {process.name(): process for process in psutil.Process().children(recursive=True)}
    return {name: on.process if name == "extender" else found[name] for name in PROGRAMS}


def _cpu(on: Bench) -> dict[str, float]:
    return {name: sum(process.cpu_times()[:2]) for name, process in _programs(on).items()}


async def _calls(on: Bench, metrics: str) -> Buckets:
    async with on.http.get(f"http://{metrics}/metrics") as response:
        text = await response.text()
    found: Buckets = {verb: {} for verb in VERBS}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == f"{DURATION}_bucket" and sample.labels["verb"] in found:
                found[sample.labels["verb"]][float(sample.labels["le"])] = sample.value
    return found


def quantile(buckets: Mapping[float, float], share: float) -> str:
    """Returns the milliseconds that this share of the calls took at most: the end of its bucket."""
    counts = sorted(buckets.items())
    if not counts or not counts[-1][1]:
        return ""
    most = next(most for most, count in counts if count >= share * counts[-1][1])
    return f"≤ {most * 1e3:g}"


def table(rows: list[Series]) -> Table:
    found = Table("kube-scheduler", "pods/s", *(f"/{verb} p50, p99 ms" for verb in VERBS),
                  *(f"{name}: CPU ms a pod, MiB" for name in PROGRAMS))  # fmt: skip
    for row in rows:
        times = [", ".join(quantile(row.calls[verb], share) for share in (0.5, 0.99)) for verb in VERBS]
        costs = [f"{row.cpu[name] * 1e3 / row.pods:.2f}, {row.memory[name]:.0f}" for name in PROGRAMS]
        found.add_row(row.who, f"{row.rate:.0f}", *times, *costs)
    return found


@click.command(context_settings={"show_default": True})
@click.option("--nodes", default=5000, help="Nodes of eight GPUs, each shared by ten.")
@click.option("--pods", default=10_000, help="Pods of each run.")
@click.option("--groups", default=125, help="Groups of eight pods in the second series; 0 leaves it out.")
@click.option("--rounds", default=2, help="Rounds with and without the extender by turns.")
@click.option("--kubebuilder-assets", envvar="KUBEBUILDER_ASSETS", type=click.Path(exists=True), metavar="DIR",
              help="Folder with etcd, kube-apiserver, kube-scheduler and kubectl.")  # fmt: skip
def main(*, nodes: int, pods: int, groups: int, rounds: int, kubebuilder_assets: str | None) -> None:
    """Print pods per second with and without the extender, and what each program needs for a pod."""
    try:
        binaries = binaries_in(kubebuilder_assets)
    except NoBinaries as error:
        raise click.ClickException(f"no kube-scheduler to measure: {error}") from None
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tg")))
        peer, plane = stack.enter_context(real(binaries, folder, gates="GenericWorkload=true", apis=f"{GROUPS}=true"))
        asyncio.run(
            _series(peer, plane, folder, nodes=nodes, pods=pods, kinds=[0, groups] if groups else [0], rounds=rounds)
        )


async def _series(
    peer: Peer, plane: ControlPlane, folder: Path, *, nodes: int, pods: int, kinds: list[int], rounds: int
) -> None:
    metrics = f"127.0.0.1:{free_port()}"
    async with bench(peer, nodes, folder, metrics=metrics) as on:
        for groups in kinds:
            rows = [
                await run(on, plane, metrics, pods=pods, groups=groups, extender=extender)
                for _ in range(rounds)
                for extender in (True, False)
            ]
            console = Console(width=150)
            console.print(f"{nodes} nodes, {pods} pods, of these {groups * GROUP_PODS} in groups of {GROUP_PODS}")
            console.print(table(rows))
            shares = [ours.rate / alone.rate for ours, alone in zip(rows[::2], rows[1::2], strict=True)]
            console.print("With the extender, of the rate alone: " + ", ".join(f"{share:.0%}" for share in shares))


if __name__ == "__main__":
    main()
