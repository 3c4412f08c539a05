"""The daemon as a process over the fake NVML library, with the kubelet stand-in and the embedded API server."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from proto.annotations.keys import NODE_REGISTER
from proto.annotations.node_register import decode_register
from proto.devices import Device
from proto.kubernetes.client import ApiServer
from simulation import machines
from simulation.apiserver import EmbeddedApiServer
from simulation.kubelet.standin import KubeletStandIn
from simulation.nvml.build import build_library
from simulation.nvml.machine_file import write_machine_file, write_sysfs
from tests.deviceplugin.gpus import NODE, bound_annotations, share
from tests.deviceplugin.registration import kubelet_root, until

pytestmark = pytest.mark.needs_compiler

RESOURCE = "nvidia.com/gpu"


@dataclass
class Node:
    server: EmbeddedApiServer
    kubelet: KubeletStandIn
    daemon: asyncio.subprocess.Process

    def annotation(self) -> str:
        node: Any = self.server.store.get("nodes", "", NODE) or {"metadata": {}}
        return str(node["metadata"].get("annotations", {}).get(NODE_REGISTER, ""))

    def writes(self) -> int:
        return sum(
            request.verb == "patch" and request.resource == "nodes" and not request.subresource
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

    def bind(self, name: str, gpu: int) -> str:
        """A pod whose one container was decided for this GPU; its UID."""
        annotations = bound_annotations(((share(self.gpus()[gpu].uuid),),))
        containers = [{"name": "c0", "image": "i", "resources": {"limits": {RESOURCE: "1"}}}]
        spec = {"nodeName": NODE, "containers": containers}
        metadata = {"name": name, "annotations": annotations}
        made = self.server.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        return str(made["metadata"]["uid"])

    def status(self, name: str) -> dict[str, Any]:
        pod: Any = self.server.store.get("pods", "default", name)
        found: dict[str, Any] = pod["status"]
        return found

    def visible(self, uid: str) -> str:
        return self.kubelet.created[uid][0].env["NVIDIA_VISIBLE_DEVICES"]


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    library = build_library()
    async with AsyncExitStack() as stack:
        root = Path(await stack.enter_async_context(kubelet_root()))
        server = await stack.enter_async_context(EmbeddedApiServer())
        config = root / "kubeconfig"
        config.write_text(server.kubeconfig())
        api = await ApiServer.connect(str(config))
        stack.push_async_callback(api.close)
        kubelet = KubeletStandIn(NODE, root, api, api_url=server.url, now=lambda: datetime(2030, 1, 1, tzinfo=UTC))
        stack.push_async_callback(kubelet.stop)
        await kubelet.start()
        machine = machines.load("4x-a100-pcie-80g-bridged")
        write_machine_file(machine, root / "machine", NODE)
        write_sysfs(machine, root / "sys")
        flags = ["--node-name", NODE, "--kubeconfig", str(config), "--kubelet-root", str(root)]
        flags += ["--sysfs-root", str(root / "sys"), "--hook-path", str(root / "hook"), "--nvml-library", str(library)]
        flags += ["--metrics-bind-address", "127.0.0.1:0"]
        daemon = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "deviceplugin", "run", *flags),
            env={**os.environ, "TOPOGPU_FAKE_NVML_MACHINE": str(root / "machine")},
            stderr=asyncio.subprocess.DEVNULL,
        )
        node = Node(server, kubelet, daemon)
        try:
            await node.ready()
            yield node
        finally:
            if daemon.returncode is None:
                daemon.kill()
            await daemon.wait()


async def test_it_registers_publishes_once_and_restores_what_was_taken(node: Node) -> None:
    first, writes = node.annotation(), node.writes()
    await asyncio.sleep(2)
    assert (node.writes(), node.registrations(), len(node.gpus())) == (writes, 1, 4)
    assert writes == 1
    node.server.patch("nodes", NODE, {"metadata": {"annotations": {NODE_REGISTER: None}}})
    await until(lambda: node.annotation() == first)
    made: Any = node.server.store.get("nodes", "", NODE)
    node.server.delete("nodes", NODE)
    node.server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}, "status": made["status"]})
    await until(lambda: node.annotation() == first)


async def test_it_registers_again_within_a_second_of_kubelets_restart(node: Node) -> None:
    await node.kubelet.restart()
    began = time.monotonic()
    await until(lambda: node.registrations() == 2)
    assert time.monotonic() - began < 1


async def test_two_equal_pods_at_once_are_never_guessed(node: Node) -> None:
    uids = {name: node.bind(name, gpu) for gpu, name in enumerate(("one", "two"))}
    await until(lambda: all(node.status(name)["phase"] in ("Running", "Failed") for name in uids), 10)
    for gpu, (name, uid) in enumerate(uids.items()):
        status = node.status(name)
        if status["phase"] == "Running":
            assert node.visible(uid) == node.gpus()[gpu].uuid
        else:
            assert "default/one and default/two" in status["message"]


async def test_it_outlives_the_api_server_and_serves_afterwards(node: Node) -> None:
    await node.server.go_offline()
    await asyncio.sleep(0.5)
    await node.server.go_online()
    assert node.daemon.returncode is None
    uid = node.bind("p", 2)
    await until(lambda: node.status("p")["phase"] == "Running", 10)
    assert node.visible(uid) == node.gpus()[2].uuid
