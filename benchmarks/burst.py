"""Starts a burst of one-slot pods on one node, by slots and by the node lock, side by side.

Each part is a real process or uses the real protocol: extender, node daemon over the fake NVML, an embedded API
server, and stand-ins for kube-scheduler and kubelet.

`python -m benchmarks.burst` starts 100 pods and takes about a minute; `--help` lists options.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import click
from rich.console import Console
from rich.table import Table

from proto.annotations.keys import DEVICES_ALLOCATED, NODE_ALLOCATION
from proto.annotations.pod_devices import decode_pod_devices
from proto.kubernetes.client import ApiServer
from simulation import machines
from simulation.apiserver import EmbeddedApiServer
from simulation.hami_core import install_placeholder
from simulation.kube_scheduler import KubeSchedulerStandIn
from simulation.kubelet.runtime import StandInSettings
from simulation.kubelet.standin import KubeletStandIn
from simulation.nvml.build import build_library
from simulation.nvml.machine_file import MACHINE_FILE_VARIABLE, write_machine_file, write_sysfs
from simulation.processes import ChildProcess

NODE = "node-1"
RESOURCE = "nvidia.com/gpu"
SCHEDULER = "topogpu-scheduler"
RUNTIME = "containerd://2.4.2"
MACHINE = "hgxh100-8x-h100-80g"
POLL_SECONDS = 0.005
READS = ("get", "list", "watch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """`ready` has, for every pod, the seconds from its creation until it runs; `last` counts from the first creation.

    `writes` counts write requests to the API server by verb and resource. `pre_starts` counts PreStartContainer calls,
    one for every attempt to start a container.
    """

    mode: str
    last: float
    ready: Sequence[float]
    failed: int
    writes: Mapping[str, int]
    refusals: Mapping[str, int]
    pre_starts: int
    mismatches: int


@dataclass(slots=True)
class Cluster:
    server: EmbeddedApiServer
    kubelet: KubeletStandIn

    def phase(self, name: str) -> str:
        pod: Any = self.server.store.get("pods", "default", name) or {}
        return str(pod.get("status", {}).get("phase", ""))

    def node(self) -> Any:
        return self.server.store.get("nodes", "", NODE) or {"metadata": {}, "status": {}}


async def measure(allocation: str, pods: int, replicas: int, limit_seconds: float) -> Measured:
    async with AsyncExitStack() as stack:
        cluster = await start_cluster(allocation, replicas, pods, stack)
        names = [f"burst-{number}" for number in range(pods)]
        before = len(cluster.server.requests)
        created: dict[str, float] = {}
        ready: dict[str, float] = {}
        watching = asyncio.create_task(watch(cluster, names, created, ready, limit_seconds))
        async with aiohttp.ClientSession() as session:
            for name in names:
                created[name] = time.perf_counter()
                url = f"{cluster.server.url}/api/v1/namespaces/default/pods"
                async with session.post(url, json=pod_object(name)) as answer:
                    answer.raise_for_status()
        await watching
        await asyncio.sleep(1.0)
        annotations = cluster.node()["metadata"]["annotations"]
        return Measured(
            mode=annotations[NODE_ALLOCATION],
            last=max(ready.values()) - min(created.values()),
            ready=[ready[name] - created[name] for name in ready],
            failed=sum(cluster.phase(name) == "Failed" for name in names),
            writes=writes(cluster.server, before),
            refusals=refusals(cluster.server),
            pre_starts=sum(call.startswith("PreStartContainer") for call in cluster.kubelet.devices.calls),
            mismatches=mismatches(cluster, names),
        )


async def watch(
    cluster: Cluster, names: Sequence[str], created: Mapping[str, float], ready: dict[str, float], seconds: float
) -> None:
    """Wait until every pod runs or has failed."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                now, phases = time.perf_counter(), {name: cluster.phase(name) for name in names if name not in ready}
                ready.update({name: now for name, phase in phases.items() if phase == "Running"})
                if len(created) == len(names) and all(phase in ("Running", "Failed") for phase in phases.values()):
                    return
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError as error:
        missing = [name for name in names if name not in ready]
        raise click.ClickException(f"{len(missing)} pods did not run within {seconds:g} s") from error


async def start_cluster(allocation: str, replicas: int, pods: int, stack: AsyncExitStack) -> Cluster:
    root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tg")))
    server = await stack.enter_async_context(EmbeddedApiServer())
    config = root / "kubeconfig"
    config.write_text(server.kubeconfig())
    api = await ApiServer.connect(str(config))
    stack.push_async_callback(api.close)
    kubelet = KubeletStandIn(
        NODE,
        root,
        api,
        StandInSettings(api_url=server.url, cdi_directories=[root / "cdi"], runtime_version=RUNTIME),
        now=_now,
    )
    stack.push_async_callback(kubelet.stop)
    await kubelet.start()
    cluster = Cluster(server, kubelet)
    await start_daemon(allocation, replicas, root, stack)
    async with asyncio.timeout(30):
        while int(cluster.node()["status"].get("allocatable", {}).get(RESOURCE, 0)) < pods:  # noqa: ASYNC110 - a poll
            await asyncio.sleep(POLL_SECONDS)
    extender = await start_extender(root, stack)
    await stack.enter_async_context(KubeSchedulerStandIn(api, extender, SCHEDULER))
    return cluster


async def start_daemon(allocation: str, replicas: int, root: Path, stack: AsyncExitStack) -> None:
    description = machines.load(MACHINE)
    write_machine_file(description, root / "machine", NODE)
    write_sysfs(description, root / "sys")
    install_placeholder(root / "hook")
    flags = {
        "--node-name": NODE,
        "--kubeconfig": root / "kubeconfig",
        "--kubelet-root": root,
        "--host-root": root,
        "--hook-path": root / "hook",
        "--nvml-library": build_library(),
        "--metrics-bind-address": "",
        "--cdi-directory": root / "cdi",
        "--device-split-count": replicas,
        "--allocation": allocation,
    }
    await start_program("deviceplugin", "run", flags, root, stack)


async def start_extender(root: Path, stack: AsyncExitStack) -> str:
    """Returns its address, once it is ready."""
    flags = {
        "--http_bind": "127.0.0.1:0",
        "--kubeconfig": root / "kubeconfig",
        "--scheduler-name": SCHEDULER,
        "--metrics-bind-address": "",
    }
    program = await start_program("scheduler_ext", "serve", flags, root, stack)
    found = await program.wait_for_line(r"listening on (http://[\d.]+:\d+)", 30)
    async with asyncio.timeout(30), aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{found[1]}/readyz") as answer:
                if answer.status == 200:
                    return found[1]
            await asyncio.sleep(POLL_SECONDS)


async def start_program(
    module: str, command: str, flags: Mapping[str, object], root: Path, stack: AsyncExitStack
) -> ChildProcess:
    arguments = [sys.executable, "-m", module, command, *(str(word) for pair in flags.items() for word in pair)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", MACHINE_FILE_VARIABLE: str(root / "machine")}
    process = await ChildProcess.start(module, arguments, environment, root / f"{module}.log")
    stack.push_async_callback(process.stop)
    return process


def pod_object(name: str) -> Mapping[str, object]:
    """Returns a pod with a share of one GPU. Each pod has another size, so that a mix-up is visible."""
    number = int(name.rpartition("-")[2])
    limits = {RESOURCE: "1", "nvidia.com/gpumem": str(3000 + number), "nvidia.com/gpucores": "5"}
    container = {"name": "main", "image": "i", "resources": {"limits": limits}}
    spec = {"schedulerName": SCHEDULER, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def writes(server: EmbeddedApiServer, before: int) -> Mapping[str, int]:
    """Writes other than the creation of the pods."""
    requests = [request for request in server.requests[before:] if request.verb not in READS]
    names = (f"{r.verb} {r.resource}{'/' + r.subresource if r.subresource else ''}" for r in requests)
    return Counter(name for name in names if name != "create pods")


def refusals(server: EmbeddedApiServer) -> Mapping[str, int]:
    """Counts warnings about pods, by reason."""
    events: Any = server.store.objects("events")
    return Counter(event["reason"] for event in events if event.get("type") == "Warning")


def mismatches(cluster: Cluster, names: Sequence[str]) -> int:
    """Counts running containers whose GPU or limit differs from the annotation."""
    wrong = 0
    for name in names:
        pod: Any = cluster.server.store.get("pods", "default", name)
        made = cluster.kubelet.created.get(pod["metadata"]["uid"], ())
        ((share,),) = decode_pod_devices(DEVICES_ALLOCATED, pod["metadata"]["annotations"][DEVICES_ALLOCATED], 1)
        given = [(one.env["NVIDIA_VISIBLE_DEVICES"], one.env["CUDA_DEVICE_MEMORY_LIMIT_0"]) for one in made]
        wrong += any(each != (share.uuid, f"{share.memory_mib}m") for each in given)
    return wrong


def quantile(times: Sequence[float], part: float) -> float:
    return sorted(times)[min(len(times) - 1, int(part * len(times)))]


def table(runs: Sequence[Measured], pods: int) -> Table:
    found = Table("what", *(run.mode for run in runs))
    kinds = sorted({kind for run in runs for kind in run.writes})
    reasons = sorted({reason for run in runs for reason in run.refusals})
    found.add_row("last container ready", *(f"{run.last:.2f} s" for run in runs))
    found.add_row("pod to ready, p50", *(f"{quantile(run.ready, 0.5):.2f} s" for run in runs))
    found.add_row("pod to ready, p95", *(f"{quantile(run.ready, 0.95):.2f} s" for run in runs))
    found.add_row("pods running", *(str(len(run.ready)) for run in runs))
    found.add_row("pods refused by kubelet", *(str(run.failed) for run in runs))
    found.add_row("containers with another pod's GPU", *(str(run.mismatches) for run in runs))
    found.add_row("PreStartContainer calls", *(str(run.pre_starts) for run in runs), end_section=not reasons)
    for reason in reasons:
        last = reason == reasons[-1]
        found.add_row(f"warnings {reason}", *(str(run.refusals.get(reason, 0)) for run in runs), end_section=last)
    for kind in kinds:
        found.add_row(f"API writes: {kind}", *(_count(run.writes.get(kind, 0), pods) for run in runs))
    found.add_row("API writes in total", *(_count(sum(run.writes.values()), pods) for run in runs))
    return found


def _count(number: int, pods: int) -> str:
    return f"{number} ({number / pods:.2f} per pod)"


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - the stand-in's clock


@click.command(context_settings={"show_default": True})
@click.option("--pods", default=100, type=click.IntRange(1), help="Pods created at once.")
@click.option("--replicas", default=13, type=click.IntRange(1), help="Containers that may share one of the 8 GPUs.")
@click.option("--limit-seconds", default=300.0, help="Longest time for a run.")
def main(pods: int, replicas: int, limit_seconds: float) -> None:
    """Start a burst of pods on one node of 8 GPUs, once by slots and once by the node lock, and compare."""
    runs = [asyncio.run(measure(mode, pods, replicas, limit_seconds)) for mode in ("auto", "immediate")]
    Console().print(table(runs, pods))


if __name__ == "__main__":
    main()
