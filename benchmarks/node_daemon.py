"""The node daemon's budgets, measured on the daemon as a process: over the fake NVML, a real socket and a real watch.

python benchmarks/node_daemon.py            about a minute
python benchmarks/node_daemon.py --help
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click
import grpc
import psutil
from rich.console import Console
from rich.table import Table

from proto.annotations.keys import BIND_PHASE, DEVICES_ALLOCATED, DEVICES_TO_ALLOCATE, NODE_REGISTER, POD_NODE
from proto.annotations.node_register import decode_register
from proto.annotations.pod_devices import encode_pod_devices
from proto.devices import Device, DeviceShare
from proto.kubelet import deviceplugin_v1beta1_pb2 as pb
from proto.kubelet import deviceplugin_v1beta1_pb2_grpc as rpc
from simulation import machines
from simulation.apiserver import EmbeddedApiServer
from simulation.hook import install_placeholder
from simulation.nvml.build import build_library
from simulation.nvml.machine_file import MACHINE_FILE_VARIABLE, write_machine_file, write_sysfs

NODE = "node-1"
RESOURCE = "nvidia.com/gpu"
WARM_UP = 20


@dataclass(slots=True)
class Kubelet(rpc.RegistrationServicer):
    """Takes the registration; the rest of kubelet is the benchmark itself."""

    registered: asyncio.Event = field(default_factory=asyncio.Event)

    async def Register(self, request: pb.RegisterRequest, context: object) -> pb.Empty:  # noqa: ARG002, N802
        self.registered.set()
        return pb.Empty()


@dataclass(frozen=True, slots=True)
class Measured:
    """`idle_cpu` is a fraction of one core, times are seconds."""

    registered_after: float
    resident_mib: float
    resident_after_mib: float
    idle_cpu: float
    allocate: Sequence[float]
    prefer: Sequence[float]
    idle_writes: int
    writes_per_pod: float


@asynccontextmanager
async def plugin(root: Path) -> AsyncIterator["rpc.DevicePluginAsyncStub"]:
    async with grpc.aio.insecure_channel(f"unix:{root}/device-plugins/nvidia-gpu.sock") as channel:
        yield rpc.DevicePluginStub(channel)


async def measure(machine_name: str, pods: int, idle_seconds: float) -> Measured:
    async with AsyncExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tg")))
        server = await stack.enter_async_context(EmbeddedApiServer())
        server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        kubelet = await serve_kubelet(root, stack)
        began = time.perf_counter()
        daemon = await start_daemon(machine_name, root, server, stack)
        await asyncio.wait_for(kubelet.registered.wait(), 30)
        registered_after = time.perf_counter() - began
        gpus = await reported(server)
        process = psutil.Process(daemon.pid)
        resident_mib = process.memory_info().rss / 2**20

        writes, before, idle_from = count_writes(server), cpu_seconds(process), time.perf_counter()
        await asyncio.sleep(idle_seconds)
        idle_cpu = (cpu_seconds(process) - before) / (time.perf_counter() - idle_from)
        idle_writes = count_writes(server) - writes

        writes = count_writes(server)
        allocate, prefer = await allocations(server, root, gpus, pods)
        await asyncio.sleep(1.0)
        return Measured(
            registered_after=registered_after,
            resident_mib=resident_mib,
            resident_after_mib=process.memory_info().rss / 2**20,
            idle_cpu=idle_cpu,
            allocate=allocate[WARM_UP:],
            prefer=prefer[WARM_UP:],
            idle_writes=idle_writes,
            writes_per_pod=(count_writes(server) - writes) / (pods + WARM_UP),
        )


async def serve_kubelet(root: Path, stack: AsyncExitStack) -> Kubelet:
    (root / "device-plugins").mkdir()
    kubelet = Kubelet()
    server = grpc.aio.server()
    rpc.add_RegistrationServicer_to_server(kubelet, server)
    server.add_insecure_port(f"unix:{root}/device-plugins/kubelet.sock")
    await server.start()
    stack.push_async_callback(server.stop, None)
    return kubelet


async def start_daemon(
    machine_name: str, root: Path, server: EmbeddedApiServer, stack: AsyncExitStack
) -> asyncio.subprocess.Process:
    machine = machines.load(machine_name)
    write_machine_file(machine, root / "machine", NODE)
    write_sysfs(machine, root / "sys")
    install_placeholder(root / "hook")
    (root / "kubeconfig").write_text(server.kubeconfig())
    flags = {
        "--node-name": NODE,
        "--kubeconfig": root / "kubeconfig",
        "--kubelet-root": root,
        "--sysfs-root": root / "sys",
        "--hook-path": root / "hook",
        "--nvml-library": build_library(),
        "--metrics-bind-address": "127.0.0.1:0",
    }
    arguments = [str(word) for pair in flags.items() for word in pair]
    daemon = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "deviceplugin", "run", *arguments),
        env={**os.environ, MACHINE_FILE_VARIABLE: str(root / "machine")},
        stderr=asyncio.subprocess.DEVNULL,
    )

    async def stop() -> None:
        daemon.terminate()
        await daemon.wait()

    stack.push_async_callback(stop)
    return daemon


async def reported(server: EmbeddedApiServer) -> tuple[Device, ...]:
    async with asyncio.timeout(10):
        while True:
            node = server.store.get("nodes", "", NODE) or {"metadata": {}}
            value = node["metadata"].get("annotations", {}).get(NODE_REGISTER)
            if value is not None:
                return tuple(decode_register(value))
            await asyncio.sleep(0.01)


async def allocations(
    server: EmbeddedApiServer, root: Path, gpus: tuple[Device, ...], pods: int
) -> tuple[list[float], list[float]]:
    """One pod after the other, each asked for as kubelet does once the daemon's watch has brought it."""
    allocate, prefer = [], []
    async with plugin(root) as stub:
        for number in range(pods + WARM_UP):
            gpu = gpus[number % len(gpus)]
            bind(server, f"pod-{number}", gpu)
            wish = pb.ContainerPreferredAllocationRequest(available_deviceIDs=[f"{gpu.uuid}-0"], allocation_size=1)
            wishes = pb.PreferredAllocationRequest(container_requests=[wish])
            await stub.GetPreferredAllocation(wishes)
            began = time.perf_counter()
            await stub.GetPreferredAllocation(wishes)
            prefer.append(time.perf_counter() - began)
            request = pb.ContainerAllocateRequest(devices_ids=[f"{gpu.uuid}-0"])
            began = time.perf_counter()
            answer = await stub.Allocate(pb.AllocateRequest(container_requests=[request]))
            allocate.append(time.perf_counter() - began)
            visible = answer.container_responses[0].envs["NVIDIA_VISIBLE_DEVICES"]
            if visible != gpu.uuid:
                raise click.ClickException(f"pod-{number} was given {visible} instead of {gpu.uuid}")
            server.delete("pods", f"pod-{number}", namespace="default")
    return allocate, prefer


def bind(server: EmbeddedApiServer, name: str, gpu: Device) -> None:
    devices = encode_pod_devices(((DeviceShare(uuid=gpu.uuid, memory_mib=1000, cores=10),),))
    annotations = {
        POD_NODE: NODE,
        BIND_PHASE: "allocating",
        DEVICES_TO_ALLOCATE: devices,
        DEVICES_ALLOCATED: devices,
    }
    container = {"name": "main", "image": "i", "resources": {"limits": {RESOURCE: "1"}}}
    spec = {"nodeName": NODE, "containers": [container], "terminationGracePeriodSeconds": 0}
    server.create({"kind": "Pod", "metadata": {"name": name, "annotations": annotations}, "spec": spec})


def count_writes(server: EmbeddedApiServer) -> int:
    return sum(request.verb not in ("get", "list", "watch") for request in server.requests)


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def quantile(times: Sequence[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(share * len(times)))]


def table(measured: Measured) -> Table:
    found = Table("what", "measured", "budget")
    calls = {"Allocate": measured.allocate, "GetPreferredAllocation": measured.prefer}
    found.add_row("start to registered", f"{measured.registered_after:.2f} s", "≤ 2 s")
    found.add_row("resident, registered", f"{measured.resident_mib:.0f} MiB", "≤ 80 MB")
    found.add_row("resident, after the pods", f"{measured.resident_after_mib:.0f} MiB", "≤ 80 MB")
    found.add_row("idle CPU", f"{100 * measured.idle_cpu:.2f} % of a core", "≤ 0.5 %")
    found.add_row("API writes while idle", str(measured.idle_writes), "0")
    found.add_row("API writes per pod", f"{measured.writes_per_pod:.2f}", "")
    for name, times in calls.items():
        budget = "≤ 5 ms" if name == "Allocate" else ""
        found.add_row(f"{name} p50", f"{1000 * quantile(times, 0.5):.2f} ms", "")
        found.add_row(f"{name} p99", f"{1000 * quantile(times, 0.99):.2f} ms", budget)
    return found


@click.command(context_settings={"show_default": True})
@click.option("--machine", default="hgxh100-8x-h100-80g", help="One of simulation/machines.")
@click.option("--pods", default=500, type=click.IntRange(1), help="How many pods are allocated, one after the other.")
@click.option("--idle-seconds", default=30.0, type=click.FloatRange(1), help="How long the idle daemon is watched.")
def main(machine: str, pods: int, idle_seconds: float) -> None:
    """Measure the node daemon and print a table beside its budgets."""
    measured = asyncio.run(measure(machine, pods, idle_seconds))
    Console().print(table(measured))


if __name__ == "__main__":
    main()
