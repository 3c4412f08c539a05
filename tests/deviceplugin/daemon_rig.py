"""The daemon as a process over the fake NVML library, between the kubelet stand-in and the embedded API server."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import grpc

from deviceplugin.machine.description import MachineDescription, gpu_uuid
from deviceplugin.replicas import split_replica
from proto.annotations.keys import NODE_LOCK, NODE_REGISTER, NODE_SCORE
from proto.annotations.node_lock import NodeLock, encode_lock
from proto.annotations.node_register import decode_register
from proto.annotations.node_score import decode_scores
from proto.devices import Device, DeviceUUID, PairScores, PodShares
from proto.kubelet import deviceplugin_v1beta1_pb2 as pb
from proto.kubelet import deviceplugin_v1beta1_pb2_grpc as rpc
from proto.kubernetes.client import ApiServer
from simulation import machines
from simulation.apiserver import EmbeddedApiServer
from simulation.kubelet.standin import KubeletStandIn
from simulation.nvml.build import build_library
from simulation.nvml.machine_file import Fault, Usage, write_machine_file, write_sysfs
from tests.deviceplugin.gpus import NODE, bound_annotations, share
from tests.deviceplugin.registration import kubelet_root, until

RESOURCE = "nvidia.com/gpu"
BRIDGED = machines.load("4x-a100-pcie-80g-bridged")
_SERIES = re.compile(r"([^\s#][^\s{]*(?:\{.*\})?) (\S+)")
_PORT = re.compile(r"metrics are served on port (\d+)")
_TROUBLE = ("Traceback", " ERROR ", " CRITICAL ", "Warning:", "never retrieved", "never awaited")
T0 = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass
class DaemonRig:
    """`log` is what the daemon has written so far, line by line."""

    server: EmbeddedApiServer
    kubelet: KubeletStandIn
    process: asyncio.subprocess.Process
    description: MachineDescription
    log: list[str] = field(default_factory=list)

    def machine(self, *faults: Fault, usage: Sequence[Usage] = ()) -> None:
        """What the driver shows from now on."""
        write_machine_file(self.description, self.kubelet.root / "machine", NODE, faults, usage)

    def uuid(self, gpu: int) -> DeviceUUID:
        return DeviceUUID(gpu_uuid(self.description.id, gpu, NODE))

    def annotation(self, key: str = NODE_REGISTER) -> str:
        node: Any = self.server.store.get("nodes", "", NODE) or {"metadata": {}}
        return str(node["metadata"].get("annotations", {}).get(key, ""))

    def gpus(self) -> tuple[Device, ...]:
        return tuple(decode_register(self.annotation())) if self.annotation() else ()

    def ill(self) -> set[int]:
        """Indices of the GPUs that the node's annotation does not call healthy."""
        return {gpu.index for gpu in self.gpus() if not gpu.healthy}

    def scores(self) -> PairScores:
        return decode_scores(self.annotation(NODE_SCORE))

    def capacity(self, resource: str = RESOURCE) -> tuple[int, int]:
        """All replicas and the healthy ones, as kubelet counts them."""
        return self.kubelet.devices.capacity().get(resource, (0, 0))

    def registrations(self) -> int:
        return self.kubelet.devices.calls.count(f"Register {RESOURCE}")

    def writes(self) -> int:
        return sum(
            request.verb == "patch" and request.resource == "nodes" and not request.subresource
            for request in self.server.requests
        )

    def events(self, reason: str) -> list[str]:
        return [event["message"] for event in self.server.store.objects("events") if event["reason"] == reason]

    def said(self, text: str) -> bool:
        return any(text in line for line in self.log)

    def problems(self) -> list[str]:
        """What no daemon should ever log."""
        return [line for line in self.log if any(mark in line for mark in _TROUBLE)]

    async def ready(self) -> None:
        await until(lambda: bool(self.annotation()) and self.capacity()[1] > 0, 20)

    def lock(self, pod: str) -> None:
        lock = encode_lock(NodeLock(taken_at=T0, namespace="default", pod=pod))
        self.server.patch("nodes", NODE, {"metadata": {"annotations": {NODE_LOCK: lock}}})

    def bind(self, name: str, *gpus: int, resource: str = RESOURCE, lent: PodShares | None = None) -> str:
        """A pod whose one container was decided for these GPUs, or for what `lent` says; its UID."""
        shares = (tuple(share(self.uuid(gpu)) for gpu in gpus),) if lent is None else lent
        asked = {resource: str(max(1, len(gpus)))}
        containers = [{"name": "c0", "image": "i", "resources": {"limits": asked}}]
        metadata = {"name": name, "annotations": bound_annotations(shares) if shares else {}}
        spec = {"nodeName": NODE, "containers": containers}
        made = self.server.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        return str(made["metadata"]["uid"])

    def status(self, name: str) -> dict[str, Any]:
        pod: Any = self.server.store.get("pods", "default", name)
        found: dict[str, Any] = pod["status"]
        return found

    async def started(self, name: str) -> None:
        await until(lambda: self.status(name).get("phase") in ("Running", "Failed"), 10)
        assert self.status(name)["phase"] == "Running", self.status(name)

    def visible(self, uid: str) -> str:
        return self.kubelet.created[uid][0].env["NVIDIA_VISIBLE_DEVICES"]

    @asynccontextmanager
    async def plugin(self) -> AsyncIterator["rpc.DevicePluginAsyncStub"]:
        target = f"unix:{self.kubelet.root}/device-plugins/nvidia-gpu.sock"
        async with grpc.aio.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            yield rpc.DevicePluginStub(channel)

    async def allocate(self, *ids: str, seconds: float) -> dict[str, str]:
        """As kubelet calls it. Raises grpc.aio.AioRpcError, also when it takes longer."""
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        async with self.plugin() as plugin:
            answer = await plugin.Allocate(request, timeout=seconds)
        return dict(answer.container_responses[0].envs)

    async def unhealthy(self) -> set[int]:
        """Indices of the GPUs of which kubelet is told that every replica is unhealthy; of others none may be."""
        async with self.plugin() as plugin:
            stream = plugin.ListAndWatch(pb.Empty())
            told = (await anext(aiter(stream))).devices
            stream.cancel()
        words: dict[str, set[str]] = {}
        for replica in told:
            words.setdefault(split_replica(replica.ID)[0], set()).add(replica.health)
        assert all(len(word) == 1 for word in words.values()), words
        return {gpu for gpu in range(len(self.description.gpus)) if words.get(self.uuid(gpu)) == {"Unhealthy"}}

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text of the daemon's own HTTP server."""
        await until(lambda: any(map(_PORT.search, self.log)), 10)
        port = next(found[1] for found in map(_PORT.search, self.log) if found)
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, await answer.text()

    async def series(self) -> dict[str, float]:
        """The metrics by name and labels."""
        _, text = await self.get("/metrics")
        found = (_SERIES.fullmatch(line) for line in text.splitlines())
        return {match[1]: float(match[2]) for match in found if match}


@asynccontextmanager
async def daemon(
    *flags: str,
    description: MachineDescription = BRIDGED,
    faults: Sequence[Fault] = (),
    library: Path | None = None,
    ready: bool = True,
    under: Callable[[Path], Sequence[str]] = lambda root: (),
) -> AsyncIterator[DaemonRig]:
    """With `ready` it has registered and reported when the block begins. `under`: the words before the daemon's
    command, for the folder that it may write to.
    """
    library = library or build_library()
    async with AsyncExitStack() as stack:
        root = Path(await stack.enter_async_context(kubelet_root()))
        server = await stack.enter_async_context(EmbeddedApiServer())
        config = root / "kubeconfig"
        config.write_text(server.kubeconfig())
        api = await ApiServer.connect(str(config))
        stack.push_async_callback(api.close)
        kubelet = KubeletStandIn(NODE, root, api, api_url=server.url, now=lambda: T0)
        stack.push_async_callback(kubelet.stop)
        await kubelet.start()
        write_machine_file(description, root / "machine", NODE, faults)
        write_sysfs(description, root / "sys")
        own = ["--node-name", NODE, "--kubeconfig", str(config), "--kubelet-root", str(root)]
        own += ["--sysfs-root", str(root / "sys"), "--hook-path", str(root / "hook"), "--nvml-library", str(library)]
        own += ["--metrics-bind-address", "127.0.0.1:0"]
        process = await asyncio.create_subprocess_exec(
            *(*under(root), sys.executable, "-m", "deviceplugin", "run", *own, *flags),
            env={**os.environ, "TOPOGPU_FAKE_NVML_MACHINE": str(root / "machine")},
            stderr=asyncio.subprocess.PIPE,
        )
        rig = DaemonRig(server, kubelet, process, description)
        reading = asyncio.create_task(_read(process, rig.log))
        try:
            if ready:
                await rig.ready()
            yield rig
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await reading


async def _read(process: asyncio.subprocess.Process, log: list[str]) -> None:
    assert process.stderr is not None
    async for line in process.stderr:
        log.append(line.decode().rstrip("\n"))  # noqa: PERF401 - read while it grows
