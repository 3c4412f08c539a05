"""The daemon as a process over the fake NVML library, between the kubelet stand-in and the embedded API server."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from proto.annotations.keys import NODE_ALLOCATION, NODE_REGISTER
from proto.annotations.node_register import decode_register
from proto.devices import Device, PodShares
from proto.kubernetes.client import ApiServer
from simulation import machines
from simulation.apiserver import EmbeddedApiServer
from simulation.kubelet.standin import KubeletStandIn
from simulation.nvml.build import build_library
from simulation.nvml.machine_file import write_machine_file, write_sysfs
from tests.deviceplugin.gpus import NODE, bound_annotations, share
from tests.deviceplugin.registration import kubelet_root, until

RESOURCE = "nvidia.com/gpu"


@dataclass
class Node:
    server: EmbeddedApiServer
    kubelet: KubeletStandIn
    options: tuple[str, ...]
    environment: Mapping[str, str]
    daemon: asyncio.subprocess.Process

    @property
    def cdi(self) -> Path:
        return self.kubelet.root / "cdi"

    def annotations(self) -> dict[str, str]:
        node: Any = self.server.store.get("nodes", "", NODE) or {"metadata": {}}
        found: dict[str, str] = node["metadata"].get("annotations", {})
        return found

    def annotation(self) -> str:
        return self.annotations().get(NODE_REGISTER, "")

    def writes(self, resource: str = "nodes") -> int:
        """Of the object itself; statuses are kubelet's."""
        return sum(
            request.verb == "patch" and request.resource == resource and not request.subresource
            for request in self.server.requests
        )

    def registrations(self) -> int:
        return self.kubelet.devices.calls.count(f"Register {RESOURCE}")

    def gpus(self) -> tuple[Device, ...]:
        return tuple(decode_register(self.annotation()))

    async def ready(self) -> None:
        await until(
            lambda: bool(self.annotation()) and self.kubelet.devices.capacity().get(RESOURCE, (0, 0))[1] > 0, 20
        )

    async def kill(self) -> None:
        self.daemon.kill()
        await self.daemon.wait()

    async def start(self) -> None:
        self.daemon = await _daemon(self.options, self.environment)

    def bind(self, name: str, gpu: int) -> str:
        """A pod whose one container was decided for this GPU; its UID."""
        return self.bind_shares(name, ((share(self.gpus()[gpu].uuid),),))

    def bind_shares(self, name: str, shares: PodShares, *, init: int = 0) -> str:
        """One container for each entry, the first `init` of them init containers."""
        containers = [
            {"name": f"c{n}", "image": "i", "resources": {"limits": {RESOURCE: str(len(held))}} if held else {}}
            for n, held in enumerate(shares)
        ]
        spec = {"nodeName": NODE, "initContainers": containers[:init], "containers": containers[init:]}
        metadata = {"name": name, "annotations": bound_annotations(shares)}
        made = self.server.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        return str(made["metadata"]["uid"])

    def status(self, name: str) -> dict[str, Any]:
        pod: Any = self.server.store.get("pods", "default", name)
        found: dict[str, Any] = pod["status"]
        return found

    def waiting(self, name: str) -> str:
        """What kubelet says of the first container, empty unless it waits."""
        statuses = self.status(name).get("containerStatuses", [])
        return str(statuses[0]["state"].get("waiting", {}).get("message", "")) if statuses else ""

    async def runs(self, *names: str) -> None:
        await until(lambda: all(self.status(name).get("phase") == "Running" for name in names), 15)

    def env(self, uid: str, position: int = 0) -> Mapping[str, str]:
        return self.kubelet.created[uid][position].env

    def visible(self, uid: str, position: int = 0) -> str:
        return self.env(uid, position)["NVIDIA_VISIBLE_DEVICES"]


@asynccontextmanager
async def running_node(
    runtime_version: str = "simulated://1", *, before: Callable[[EmbeddedApiServer, Path], None] = lambda *_: None
) -> AsyncIterator[Node]:
    """4 A100 80 GB. The daemon chooses by the runtime's version whether it serves by slots.

    `before` is called with the API server and the node's root once kubelet runs, before the daemon starts.
    """
    library = build_library()
    async with AsyncExitStack() as stack:
        root = Path(await stack.enter_async_context(kubelet_root()))
        server = await stack.enter_async_context(EmbeddedApiServer())
        config = root / "kubeconfig"
        config.write_text(server.kubeconfig())
        api = await ApiServer.connect(str(config))
        stack.push_async_callback(api.close)
        kubelet = KubeletStandIn(
            NODE,
            root,
            api,
            api_url=server.url,
            now=lambda: datetime(2030, 1, 1, tzinfo=UTC),
            cdi_directories=[root / "cdi"],
            runtime_version=runtime_version,
        )
        stack.push_async_callback(kubelet.stop)
        await kubelet.start()
        machine = machines.load("4x-a100-pcie-80g-bridged")
        write_machine_file(machine, root / "machine", NODE)
        write_sysfs(machine, root / "sys")
        flags = ["--node-name", NODE, "--kubeconfig", str(config), "--kubelet-root", str(root)]
        flags += ["--sysfs-root", str(root / "sys"), "--hook-path", str(root / "hook"), "--nvml-library", str(library)]
        flags += ["--cdi-directory", str(root / "cdi"), "--metrics-bind-address", ""]
        environment = {**os.environ, "TOPOGPU_FAKE_NVML_MACHINE": str(root / "machine")}
        before(server, root)
        node = Node(server, kubelet, tuple(flags), environment, await _daemon(flags, environment))
        try:
            await node.ready()
            yield node
        finally:
            if node.daemon.returncode is None:
                node.daemon.kill()
            await node.daemon.wait()


def is_by_slots(node: Node) -> bool:
    return node.annotations().get(NODE_ALLOCATION) == "slots"


async def _daemon(options: Sequence[str], environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "deviceplugin", "run", *options),
        env=dict(environment),
        stderr=asyncio.subprocess.DEVNULL,
    )
