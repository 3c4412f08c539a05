"""Measures the node daemon's budgets on the daemon as a process: over the fake NVML, a real socket and a real watch.

It runs once with slots and once with immediate allocation. The node is full of pods when kubelet's calls are measured,
and one pod leaves for each new one.

`python -m benchmarks.node_daemon` takes about two minutes; `--help` lists options.
"""

import asyncio
import compileall
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
import grpc
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.full_node import CONTAINER, RESOURCE, Kubelet
from deviceplugin.plugin_sockets import plugin_socket
from proto.annotations.keys import (
    BIND_PHASE,
    DEVICES_ALLOCATED,
    DEVICES_TO_ALLOCATE,
    NODE_ALLOCATION,
    NODE_REGISTER,
    POD_NODE,
)
from proto.annotations.node_register import decode_register
from proto.annotations.pod_devices import encode_pod_devices
from proto.devices import Device, DeviceShare
from proto.kubelet import deviceplugin_v1beta1_pb2 as pb
from proto.kubelet import deviceplugin_v1beta1_pb2_grpc as rpc
from simulation import machines
from simulation.apiserver import EmbeddedApiServer
from simulation.hami_core import install_placeholder
from simulation.nvml.build import build_library
from simulation.nvml.machine_file import MACHINE_FILE_VARIABLE, write_machine_file, write_sysfs

NODE = "node-1"
RUNTIME = "containerd://2.4.2"
REPLICAS = 128
"""Replicas of each GPU: room for a thousand pods on eight."""
SETTLE_SECONDS = 5.0
"""Work right after the registration belongs to the start: reading links, searching hooks, opening the first watch."""


@dataclass(slots=True)
class Calls:
    """Seconds of each."""

    prefer: list[float] = field(default_factory=list)
    allocate: list[float] = field(default_factory=list)
    pre_start: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Measured:
    """CPU and times are in seconds; `idle_cpu` is a fraction of one core."""

    mode: str
    registered_after: float
    start_cpu: float
    resident_mib: float
    resident_after_mib: float
    idle_cpu: float
    calls: Calls
    idle_writes: int
    writes_per_pod: float


@asynccontextmanager
async def plugin(root: Path) -> AsyncIterator["rpc.DevicePluginAsyncStub"]:
    async with grpc.aio.insecure_channel(
        f"unix:{plugin_socket(f'{root}/device-plugins', 'nvidia.com/gpu')}"
    ) as channel:
        yield rpc.DevicePluginStub(channel)


async def measure(machine_name: str, allocation: str, standing: int, pods: int, idle_seconds: float) -> Measured:
    async with AsyncExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tg")))
        server = await stack.enter_async_context(EmbeddedApiServer())
        info = {"kubeletVersion": "v1.37.1", "containerRuntimeVersion": RUNTIME}
        server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        server.patch("nodes", NODE, {"status": {"nodeInfo": info}}, subresource="status")
        kubelet = Kubelet(root)
        await kubelet.start()
        stack.push_async_callback(kubelet.stop)
        began = time.perf_counter()
        daemon = await start_daemon(machine_name, allocation, root, server, stack)
        await registered(kubelet, daemon, root / "daemon.log")
        registered_after = time.perf_counter() - began
        process = psutil.Process(daemon.pid)
        start_cpu = cpu_seconds(process)
        gpus = await reported(server)
        resident_mib = process.memory_info().rss / 2**20
        await asyncio.sleep(SETTLE_SECONDS)

        writes, before, idle_from = count_writes(server), cpu_seconds(process), time.perf_counter()
        await asyncio.sleep(idle_seconds)
        idle_cpu = (cpu_seconds(process) - before) / (time.perf_counter() - idle_from)
        idle_writes = count_writes(server) - writes

        node = FullNode(server, kubelet, gpus, root)
        async with plugin(root) as stub:
            await node.fill(stub, standing)
            writes = count_writes(server)
            calls = await node.turn_over(stub, pods)
        await asyncio.sleep(1.0)
        told: Any = server.store.get("nodes", "", NODE)
        return Measured(
            mode=told["metadata"]["annotations"][NODE_ALLOCATION],
            registered_after=registered_after,
            start_cpu=start_cpu,
            resident_mib=resident_mib,
            resident_after_mib=process.memory_info().rss / 2**20,
            idle_cpu=idle_cpu,
            calls=calls,
            idle_writes=idle_writes,
            writes_per_pod=(count_writes(server) - writes) / pods,
        )


async def start_daemon(
    machine_name: str,
    allocation: str,
    root: Path,
    server: EmbeddedApiServer,
    stack: AsyncExitStack,
    *,
    more: Mapping[str, object] = MappingProxyType({}),
) -> asyncio.subprocess.Process:
    """`more` flags may replace others."""
    machine = machines.load(machine_name)
    write_machine_file(machine, root / "machine", NODE)
    write_sysfs(machine, root / "sys")
    install_placeholder(root / "hook")
    (root / "kubeconfig").write_text(server.kubeconfig())
    flags = {
        "--node-name": NODE,
        "--kubeconfig": root / "kubeconfig",
        "--kubelet-root": root,
        "--host-root": root,
        "--hook-path": root / "hook",
        "--cdi-directory": root / "cdi",
        "--nvml-library": build_library(),
        "--metrics-bind-address": "127.0.0.1:0",
        "--device-split-count": REPLICAS,
        "--allocation": allocation,
        **more,
    }
    arguments = [str(word) for pair in flags.items() for word in pair]
    daemon = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "deviceplugin", "run", *arguments),
        env={**os.environ, MACHINE_FILE_VARIABLE: str(root / "machine")},
        stderr=stack.enter_context((root / "daemon.log").open("wb")),
    )

    async def stop() -> None:
        if daemon.returncode is None:
            daemon.terminate()
        await daemon.wait()

    stack.push_async_callback(stop)
    return daemon


async def registered(kubelet: Kubelet, daemon: asyncio.subprocess.Process, log: Path) -> None:
    tasks = [asyncio.create_task(kubelet.registered.wait()), asyncio.create_task(daemon.wait())]
    await asyncio.wait(tasks, timeout=30, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    if not kubelet.registered.is_set():
        raise click.ClickException(f"the daemon did not register; the end of its log: {log.read_text()[-500:]}")  # noqa: ASYNC240 - the end


async def reported(server: EmbeddedApiServer) -> tuple[Device, ...]:
    async with asyncio.timeout(10):
        while True:
            node = server.store.get("nodes", "", NODE) or {"metadata": {}}
            value = node["metadata"].get("annotations", {}).get(NODE_REGISTER)
            if value is not None:
                return tuple(decode_register(value))
            await asyncio.sleep(0.01)


@dataclass(slots=True)
class FullNode:
    """Pods come one after the other. Each is allocated as kubelet does, once the daemon's watch has shown it."""

    server: EmbeddedApiServer
    kubelet: Kubelet
    gpus: tuple[Device, ...]
    root: Path
    _names: list[str] = field(default_factory=list)
    _served: int = 0

    async def fill(self, stub: "rpc.DevicePluginAsyncStub", pods: int) -> None:
        for _ in range(pods):
            await self._serve(stub, Calls())

    async def turn_over(self, stub: "rpc.DevicePluginAsyncStub", pods: int) -> Calls:
        """One leaves for each that comes."""
        calls = Calls()
        for _ in range(pods):
            leaving = self._names.pop(0)
            self.kubelet.release(self._uid(leaving))
            self.server.delete("pods", leaving, namespace="default")
            await self._serve(stub, calls)
        return calls

    async def _serve(self, stub: "rpc.DevicePluginAsyncStub", calls: Calls) -> None:
        number = self._served
        self._served += 1
        name, gpu = f"pod-{number}", self.gpus[number % len(self.gpus)]
        ids = (f"{gpu.uuid}-{number // len(self.gpus) % REPLICAS}",)
        bind(self.server, name, gpu)
        wish = pb.ContainerPreferredAllocationRequest(available_deviceIDs=ids, allocation_size=1)
        wishes = pb.PreferredAllocationRequest(container_requests=[wish])
        # The first call waits until the watch has shown the pod; measured is the daemon's own work.
        await stub.GetPreferredAllocation(wishes)
        with timed(calls.prefer):
            await stub.GetPreferredAllocation(wishes)
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        with timed(calls.allocate):
            answer = (await stub.Allocate(request)).container_responses[0]
        visible = answer.envs["NVIDIA_VISIBLE_DEVICES"]
        if not answer.cdi_devices and visible != gpu.uuid:
            raise click.ClickException(f"{name} was given {visible} instead of {gpu.uuid}")
        self.kubelet.admit(name, self._uid(name), ids, answer.SerializeToString())
        if answer.cdi_devices:
            with timed(calls.pre_start):
                await stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=ids))
            if gpu.uuid not in (self.root / "cdi" / "topogpu.io-slot.json").read_text():
                raise click.ClickException(f"{name} has no slot on {gpu.uuid}")
        self._run(name)
        self._names.append(name)

    def _run(self, name: str) -> None:
        status = {"name": CONTAINER, "containerID": f"containerd://{name}", "ready": True, "state": {"running": {}}}
        body = {"status": {"phase": "Running", "containerStatuses": [status]}}
        self.server.patch("pods", name, body, namespace="default", subresource="status")

    def _uid(self, name: str) -> str:
        pod: Any = self.server.store.get("pods", "default", name)
        return str(pod["metadata"]["uid"])


@contextmanager
def timed(seconds: list[float]) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - began)


def bind(server: EmbeddedApiServer, name: str, gpu: Device, memory_mib: int = 600) -> None:
    devices = encode_pod_devices(((DeviceShare(uuid=gpu.uuid, memory_mib=memory_mib, cores=1),),))
    annotations = {
        POD_NODE: NODE,
        BIND_PHASE: "allocating",
        DEVICES_TO_ALLOCATE: devices,
        DEVICES_ALLOCATED: devices,
    }
    container = {"name": CONTAINER, "image": "i", "resources": {"limits": {RESOURCE: "1"}}}
    spec = {"nodeName": NODE, "containers": [container], "terminationGracePeriodSeconds": 0}
    server.create({"kind": "Pod", "metadata": {"name": name, "annotations": annotations}, "spec": spec})


def count_writes(server: EmbeddedApiServer) -> int:
    return sum(request.verb not in ("get", "list", "watch") for request in server.requests)


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def quantile(times: Sequence[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(share * len(times)))]


def table(runs: Sequence[Measured]) -> Table:
    found = Table("what", *(run.mode for run in runs), "budget")
    found.add_row("start to registered", *(f"{run.registered_after:.2f} s" for run in runs), "≤ 1 s")
    found.add_row("CPU until then", *(f"{run.start_cpu:.2f} s" for run in runs), "")
    found.add_row("resident, registered", *(f"{run.resident_mib:.0f} MiB" for run in runs), "≤ 80 MB")
    found.add_row("resident, after the pods", *(f"{run.resident_after_mib:.0f} MiB" for run in runs), "≤ 80 MB")
    found.add_row("idle CPU", *(f"{100 * run.idle_cpu:.2f} % of a core" for run in runs), "≤ 0.5 %")
    found.add_row("API writes while idle", *(str(run.idle_writes) for run in runs), "0")
    found.add_row("API writes per pod", *(f"{run.writes_per_pod:.2f}" for run in runs), "")
    add_calls(found, "GetPreferredAllocation", [run.calls.prefer for run in runs], "")
    add_calls(found, "Allocate", [run.calls.allocate for run in runs], "≤ 5 ms")
    add_calls(found, "PreStartContainer", [run.calls.pre_start for run in runs], "")
    return found


def add_calls(found: Table, name: str, runs: Sequence[Sequence[float]], budget: str) -> None:
    for share, label, limit in ((0.5, "p50", ""), (0.99, "p99", budget)):
        found.add_row(
            f"{name} {label}", *(f"{1000 * quantile(times, share):.2f} ms" if times else "–" for times in runs), limit
        )


@click.command(context_settings={"show_default": True})
@click.option("--machine", default="hgxh100-8x-h100-80g", help="One of simulation/machines.")
@click.option("--standing", default=500, type=click.IntRange(1, 960), help="Pods on the full node.")
@click.option("--pods", default=500, type=click.IntRange(1), help="Pods that come then, one for each that leaves.")
@click.option(
    "--idle-seconds", default=30.0, type=click.FloatRange(1), help="Seconds for which the idle daemon is measured."
)
def main(machine: str, standing: int, pods: int, idle_seconds: float) -> None:
    """Measure the node daemon and print a table beside its budgets."""
    # The image has bytecode of everything.
    for package in ("program", "proto", "deviceplugin"):
        compileall.compile_dir(Path(__file__).parents[1] / package, quiet=1)
    modes = ("slots", "immediate")
    runs = [asyncio.run(measure(machine, mode, standing, pods, idle_seconds)) for mode in modes]
    Console().print(table(runs))


if __name__ == "__main__":
    main()
