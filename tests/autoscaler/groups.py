"""Groups of machines that the real cluster-autoscaler makes larger, on nodes that exist as objects only.

The provider kwok creates a machine's Node as a cloud does: with what the group's template names. `_daemons` then writes
what our daemon and kubelet write once they run there.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from deviceplugin.node.totals import node_sums, node_totals
from deviceplugin.settings import TotalNames
from proto.annotations import keys
from proto.annotations.node_register import decode_register
from tests.cluster.control_plane import ControlPlane, Program, free_port
from tests.cluster.peers import Peer
from tests.cluster.scheduling import Cluster, JsonObject, gpu_node, running
from tests.cluster.shipped import STRATEGIC_MERGE_PATCH
from tests.polling import until

GROUP = "cluster-autoscaler.kwok.nodegroup/name"
GPU_LABEL = "example.com/accelerator"
"""The provider's label of machines with GPUs. Such a Node counts as started once it has GPUs."""
_LONG_READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
"""The autoscaler takes a node as a template once it has been ready for a minute."""
_BARE = {"cpu": "128", "memory": "1Ti", "pods": "110"}
_IDLE = "No unschedulable pods"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """`described` is what the provider's template of an empty group adds to CPUs and memory."""

    name: str
    described: Mapping[str, str]

    def node(self, name: str, amounts: Mapping[str, str] | None = None) -> JsonObject:
        """Returns a Node of the group with these amounts of GPUs, or as the template describes it."""
        amounts = _BARE | dict(self.described if amounts is None else amounts)
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "annotations": {GROUP: self.name},
                "labels": {GPU_LABEL: "a100", "group": self.name, "kubernetes.io/hostname": name},
            },
            "spec": {"providerID": f"kwok:{name}"},
            "status": {"capacity": amounts, "allocatable": amounts, "conditions": [_LONG_READY]},
        }


def gpu_amounts(name: str = "any") -> dict[str, str]:
    """What our daemon and kubelet write into the status of a Node with eight GPUs of 40 GB."""
    node = gpu_node(name)
    devices = decode_register(node["metadata"]["annotations"][keys.NODE_REGISTER])
    totals = {**node_totals(TotalNames(), devices, ()), **node_sums(devices, (), ())}
    count = node["status"]["capacity"][keys.RESOURCE_COUNT]
    return {keys.RESOURCE_COUNT: count, **{resource: str(total) for resource, total in totals.items()}}


def running_node(group: Group, name: str) -> JsonObject:
    """Returns a Node of the group on which our daemon runs."""
    node = group.node(name, gpu_amounts(name))
    node["metadata"]["annotations"] |= gpu_node(name)["metadata"]["annotations"]
    return node


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    cluster: Cluster
    log: Path

    async def nodes(self, group: Group) -> list[str]:
        _, found = await self.cluster.peer.send("GET", "/api/v1/nodes")
        nodes = [node["metadata"] for node in found["items"]]
        return [node["name"] for node in nodes if node.get("annotations", {}).get(GROUP) == group.name]

    async def idle(self) -> None:
        """Returns once the autoscaler has looked again and wants no more nodes."""
        looks = self._looks()
        await until(lambda: self._looks() > looks)

    def _looks(self) -> int:
        return self.log.read_text(errors="replace").count(_IDLE)

    async def events(self, reason: str) -> list[str]:
        """Messages of the autoscaler's events about pods."""
        _, found = await self.cluster.peer.send("GET", f"/api/v1/namespaces/{self.cluster.namespace}/events")
        return [event["message"] for event in found["items"] if event["reason"] == reason]


@asynccontextmanager
async def scaling(
    program: Path, plane: ControlPlane, peer: Peer, folder: Path, *groups: Group, nodes: Sequence[JsonObject] = ()
) -> AsyncIterator[Scaled]:
    """The autoscaler, kube-scheduler and our extender, with these groups and nodes."""
    async with running(plane, peer, folder, *nodes) as cluster:
        await _configure(cluster, groups)
        log = folder / "cluster-autoscaler.log"
        autoscaler = Program(_command(program, plane, cluster.namespace), log)
        daemons = asyncio.create_task(_daemons(peer))
        try:
            yield Scaled(cluster=cluster, log=log)
            autoscaler.check_running()
        finally:
            daemons.cancel()
            with suppress(asyncio.CancelledError):
                await daemons
            await asyncio.to_thread(autoscaler.stop)


async def _configure(cluster: Cluster, groups: Sequence[Group]) -> None:
    settings = {
        "apiVersion": "v1alpha1",
        "readNodesFrom": "configmap",
        "configmap": {"name": "groups"},
        "nodegroups": {"fromNodeAnnotationKey": GROUP},
        "nodes": {"skipTaint": True, "gpuConfig": {"gpuLabelKey": GPU_LABEL, "availableGPUTypes": {"a100": {}}}},
    }
    templates = {"apiVersion": "v1", "kind": "List", "items": [group.node(f"of-{group.name}") for group in groups]}
    for name, data in (("settings", {"config": settings}), ("groups", {"templates": templates})):
        written = {key: json.dumps(value) for key, value in data.items()}
        path = f"/api/v1/namespaces/{cluster.namespace}/configmaps"
        await cluster.peer.create(path, {"metadata": {"name": name}, "data": written})


def _command(program: Path, plane: ControlPlane, namespace: str) -> list[str]:
    kubeconfig = plane.kubeconfig()
    environment = {
        "KUBECONFIG": kubeconfig,
        "KWOK_PROVIDER_MODE": "local",
        "KWOK_PROVIDER_CONFIGMAP": "settings",
        "POD_NAMESPACE": namespace,
    }
    flags = {
        "cloud-provider": "kwok",
        "kubeconfig": kubeconfig,
        "namespace": namespace,
        "address": f"127.0.0.1:{free_port()}",
        "leader-elect": "false",
        "scale-down-enabled": "false",
        "scan-interval": "1s",
        "kube-client-qps": "500",
        "kube-client-burst": "1000",
        "v": "1",
    }
    return [
        "env",
        *(f"{name}={value}" for name, value in environment.items()),
        str(program),
        *(f"--{name}={value}" for name, value in flags.items()),
    ]


async def _daemons(peer: Peer) -> None:
    """Writes for each new Node of a group what our daemon and kubelet write, until it is cancelled."""
    while True:
        _, found = await peer.send("GET", "/api/v1/nodes")
        for node in found["items"]:
            name, annotations = node["metadata"]["name"], node["metadata"].get("annotations", {})
            if GROUP not in annotations or keys.NODE_REGISTER in annotations:
                continue
            amounts = gpu_amounts(name)
            status = {"status": {"capacity": amounts, "allocatable": amounts}}
            await peer.send("PATCH", f"/api/v1/nodes/{name}/status", status, STRATEGIC_MERGE_PATCH)
            written = {"metadata": {"annotations": gpu_node(name)["metadata"]["annotations"]}}
            await peer.send("PATCH", f"/api/v1/nodes/{name}", written, STRATEGIC_MERGE_PATCH)
        await asyncio.sleep(0.1)
