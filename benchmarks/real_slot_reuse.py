"""Passes replicas from pod to pod on a real container runtime: does a container ever get another's GPUs?

The daemon is a process and containerd (or CRI-O) a real one, on an isolated node as in `make test-node`. The benchmark
does what kubelet does between them: Allocate, PreStartContainer, and CreateContainer at once. Each container has a
memory limit that no container near it has. The benchmark reads back what the runtime would start it with.

`python -m benchmarks.real_slot_reuse --uses 10000` as root takes about 15 minutes on two cores.
"""

import asyncio
import json
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import grpc
from rich.console import Console
from rich.table import Table

from benchmarks.full_node import CONTAINER, Kubelet
from benchmarks.node_daemon import NODE, RUNTIME, bind, plugin, quantile, registered, reported, start_daemon
from proto.devices import Device
from proto.kubelet import deviceplugin_v1beta1_pb2 as pb
from simulation.apiserver import EmbeddedApiServer
from tests.cluster.binaries import BuildFailed, NoBinaries
from tests.node import binaries, image
from tests.node.cri import Cri
from tests.node.cri import pb as cri
from tests.node.machine import Machine, make_device_files, missing
from tests.node.runtimes import runtime_for

SPEC = "topogpu.io-slot.json"
UNRESOLVED = "unresolvable CDI devices"
RETRY_SECONDS = 0.01
"""Kubelet sends its request again after a second or later."""
MIB = range(1000, 20_000)
LIMIT = "CUDA_DEVICE_MEMORY_LIMIT_0"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
SANDBOX = cri.PodSandboxConfig(
    metadata=cri.PodSandboxMetadata(name="sandbox", uid="sandbox", namespace="default"),
    log_directory="/var/log/pods/sandbox",
    linux=cri.LinuxPodSandboxConfig(
        security_context=cri.LinuxSandboxSecurityContext(namespace_options=cri.NamespaceOption(network=cri.NODE))
    ),
)


@dataclass(slots=True)
class Seen:
    """The owners of GPUs that all containers had at creation, and seconds from the last write of the specs until the
    runtime got its request (`asked`) and had answered (`answered`).
    """

    whose: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    asked: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Uses:
    """One replica after another passes from pod to pod."""

    server: EmbeddedApiServer
    kubelet: Kubelet
    gpus: tuple[Device, ...]
    cri: Cri
    sandbox: str
    spec: Path
    left: int
    seen: Seen = field(default_factory=Seen)

    async def work(self, stub: Any, worker: int) -> None:
        """Work with one replica until all uses are done."""
        gpu = self.gpus[worker % len(self.gpus)]
        while self.left > 0:
            self.left -= 1
            await self._use(stub, gpu, (f"{gpu.uuid}-{worker}",), self.left)

    async def _use(self, stub: Any, gpu: Device, ids: tuple[str, ...], number: int) -> None:
        name, mib = f"pod-{number}", MIB[number % len(MIB)]
        bind(self.server, name, gpu, mib)
        pod: Any = self.server.store.get("pods", "default", name)
        uid = str(pod["metadata"]["uid"])
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        answer = (await stub.Allocate(request)).container_responses[0]
        self.kubelet.admit(name, uid, ids, answer.SerializeToString())
        await stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=ids))
        container = await asyncio.to_thread(self._create, name, answer)
        given = await asyncio.to_thread(self._given, container)
        own = {LIMIT: f"{mib}m", VISIBLE: gpu.uuid}
        self.seen.whose["own" if given == own else "none" if LIMIT not in given else "another's"] += 1
        status = {"name": CONTAINER, "containerID": f"containerd://{container}", "state": {"running": {}}}
        body = {"status": {"phase": "Running", "containerStatuses": [status]}}
        self.server.patch("pods", name, body, namespace="default", subresource="status")
        await asyncio.to_thread(self.cri.remove, cri.RemoveContainerRequest(container_id=container))
        self.kubelet.release(uid)
        self.server.delete("pods", name, namespace="default")

    def _create(self, name: str, answer: pb.ContainerAllocateResponse) -> str:
        """Returns the container's id, as soon as the runtime finds its devices."""
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=name),
            image=cri.ImageSpec(image=image.NAME),
            envs=[cri.KeyValue(key=key, value=value) for key, value in answer.envs.items()],
            log_path=f"{name}.log",
            cdi_devices=[cri.CDIDevice(name=device.name) for device in answer.cdi_devices],
        )
        request = cri.CreateContainerRequest(pod_sandbox_id=self.sandbox, config=config, sandbox_config=SANDBOX)
        written = self.spec.stat().st_mtime
        self.seen.asked.append(time.time() - written)
        while True:
            try:
                made: str = self.cri.create(request).container_id
            except grpc.RpcError as error:
                if UNRESOLVED not in str(error):
                    raise
                self.seen.refused += 1
                time.sleep(RETRY_SECONDS)
            else:
                self.seen.answered.append(time.time() - written)
                return made

    def _given(self, container: str) -> dict[str, str]:
        """Returns the part of its environment with which the runtime would start it."""
        answer = self.cri.status(cri.ContainerStatusRequest(container_id=container, verbose=True))
        specification = json.loads(answer.info["info"])["runtimeSpec"]
        pairs = dict(each.split("=", 1) for each in specification["process"]["env"])
        return {name: value for name, value in pairs.items() if name in (LIMIT, VISIBLE)}


async def measure(machine: Machine, found: binaries.NodeBinaries, uses: int, workers: int) -> Seen:
    async with AsyncExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tg")))
        archive = image.write_image(root)
        runtime = runtime_for(machine, found, archive)
        runtime.configure()
        machine.power_on()
        process = machine.start("runtime", runtime.command, runtime.environment)
        stack.callback(process.stop, signal.SIGTERM)
        socket = machine.folder / runtime.socket.lstrip("/")
        process.wait_for(socket.exists)
        runtime.load_image()
        cdi = machine.folder / "run" / "cdi"
        server = await stack.enter_async_context(EmbeddedApiServer())
        info = {"kubeletVersion": "v1.37.1", "containerRuntimeVersion": RUNTIME}
        server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        server.patch("nodes", NODE, {"status": {"nodeInfo": info}}, subresource="status")
        kubelet = Kubelet(root)
        await kubelet.start()
        stack.push_async_callback(kubelet.stop)
        make_device_files(root / "driver" / "dev", 8)
        flags = {"--cdi-directory": cdi, "--dev-root": root / "driver"}
        daemon = await start_daemon("hgxh100-8x-h100-80g", "slots", root, server, stack, more=flags)
        await registered(kubelet, daemon, root / "daemon.log")
        channel = stack.enter_context(grpc.insecure_channel(f"unix:{socket}"))
        asked = Cri(channel)
        sandbox = asked.run_sandbox(cri.RunPodSandboxRequest(config=SANDBOX)).pod_sandbox_id
        work = Uses(server, kubelet, await reported(server), asked, sandbox, cdi / SPEC, uses)
        async with plugin(root) as stub, asyncio.TaskGroup() as group:
            for worker in range(workers):
                group.create_task(work.work(stub, worker))
        return work.seen


def table(runtime: str, seen: Seen) -> Table:
    found = Table("what", runtime)
    found.add_row("uses of a replica", str(seen.whose.total()))
    for whose in ("own", "another's", "none"):
        found.add_row(f"containers with GPUs and limits: {whose}", str(seen.whose[whose]))
    found.add_row("refused, because the runtime had not read the spec yet", str(seen.refused))
    for name, seconds in (("asked", seen.asked), ("created", seen.answered)):
        found.add_row(f"from the spec's write until the runtime {_past[name]}", _histogram(seconds))
    return found


_past = {"asked": "was asked", "created": "had created the container"}


def _histogram(seconds: Sequence[float]) -> str:
    shares = {"least": 0.0, "p1": 0.01, "p50": 0.5, "p99": 0.99, "most": 1.0}
    return ", ".join(f"{name} {1000 * quantile(seconds, share):.1f} ms" for name, share in shares.items())


@click.command(context_settings={"show_default": True})
@click.option("--runtime", default=binaries.NEWEST_CONTAINERD, type=click.Choice(binaries.RUNTIMES), help="Which.")
@click.option("--uses", default=10_000, type=click.IntRange(1), help="Number of pods, one after another.")
@click.option("--workers", default=8, type=click.IntRange(1, 64), help="Replicas in use at a time.")
def main(runtime: str, uses: int, workers: int) -> None:
    """Pass replicas from pod to pod and print whose GPUs the containers had."""
    lacking = missing()
    if lacking:
        raise click.ClickException(f"this machine cannot run an isolated node: {lacking}")
    try:
        found = binaries.build("", runtime)
    except (NoBinaries, BuildFailed) as problem:
        raise click.ClickException(str(problem)) from problem
    machine = Machine()
    try:
        Console().print(table(runtime, asyncio.run(measure(machine, found, uses, workers))))
    finally:
        machine.discard()


if __name__ == "__main__":
    main()
