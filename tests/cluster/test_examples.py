"""The manifests of `examples/` on a real API server, their pods placed by the real kube-scheduler."""

import asyncio
from pathlib import Path

import pytest

from proto.admission import Json
from proto.annotations import keys
from proto.annotations.node_register import decode_register
from proto.annotations.pod_devices import decode_pod_devices
from tests.cluster.control_plane import ControlPlane
from tests.cluster.peers import real
from tests.cluster.scheduling import gpu_node, running
from tests.examples import FOLDER, NAMES, objects, pods
from tests.scheduler_ext.admission.pods import judged, patched

pytestmark = pytest.mark.cluster
GKE = "gke-critical-pods"
NOT_OURS = "mig"
"""Kubernetes itself counts what it asks for."""


async def test_kubectl_applies_every_example_and_its_pods_are_placed(plane: ControlPlane, tmp_path: Path) -> None:
    nodes = [gpu_node(f"n{number}", "hgxh100-8x-h100-80g") for number in range(3)]
    uuid = decode_register(nodes[1]["metadata"]["annotations"][keys.NODE_REGISTER])[5].uuid
    async with real(plane) as peer, running(plane, peer, tmp_path, *nodes) as cluster:
        await peer.send("POST", "/api/v1/namespaces", {"metadata": {"name": "topogpu-system"}})
        placed: list[str] = []
        for name in NAMES:
            # A namespace of its own: nothing but a controller would count what the example's quota allows.
            own = () if name == GKE else ("-n", await peer.namespace(f"{cluster.namespace}-{name}"))
            file = str(FOLDER / f"{name}.yaml")
            await asyncio.to_thread(plane.kubectl, "apply", "--validate=strict", *own, "-f", file)
            for pod in (pod for item in objects(name, uuid=uuid) for pod in pods(item) if name != NOT_OURS):
                await cluster.add(patched(pod, judged(pod)))
                placed.append(pod["metadata"]["name"])
        await cluster.bound(*placed)
        found = await cluster.pods()
    assert {name: _gpus(pod) for name, pod in found.items()} == {name: _asked(pod) for name, pod in found.items()}
    assert len(found) == len(placed)
    assert uuid in found["gpu-uuid"]["metadata"]["annotations"][keys.DEVICES_ALLOCATED]


def _containers(pod: Json) -> list[Json]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def _asked(pod: Json) -> list[int]:
    limits = [container["resources"].get("limits", {}) for container in _containers(pod)]
    return [int(each.get(keys.RESOURCE_COUNT, 0)) for each in limits]


def _gpus(pod: Json) -> list[int]:
    text = pod["metadata"]["annotations"][keys.DEVICES_ALLOCATED]
    return [len(shares) for shares in decode_pod_devices(keys.DEVICES_ALLOCATED, text, len(_containers(pod)))]
