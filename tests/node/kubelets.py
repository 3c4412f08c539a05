"""A kubelet under test, the stand-in or the real one, with what only its machine can do for it."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from grpc import aio

from proto.kubernetes.client import ApiServer
from proto.podresources import podresources_v1_pb2 as wire
from proto.podresources.podresources_v1_pb2_grpc import PodResourcesListerStub
from simulation.kubelet.runtime import StandInSettings
from simulation.kubelet.standin import KubeletStandIn
from tests.cluster.control_plane import ControlPlane
from tests.cluster.peers import Peer, embedded, real
from tests.node import image
from tests.node.pods import node_is_ready
from tests.node.real_node import NODE, RealNode
from tests.polling import until
from tests.simulation.kubelet.plugin import RESOURCE

JsonObject = dict[str, Any]
Container = tuple[str, int]
"""Its name, and how many devices it asks for."""


class Runner(Protocol):
    """What differs between the two."""

    @property
    def root(self) -> Path:
        """`/var/lib/kubelet`."""

    @property
    def cdi(self) -> Path:
        """Where its container runtime looks for CDI specs."""

    async def environments(self, pod: JsonObject, container: str) -> list[Mapping[str, str]]:
        """What each start of the container saw in its environment, the first first."""

    async def end(self, pod: JsonObject, container: str) -> None:
        """The container's process ends, and its pod's restart policy has it run again."""

    async def restart(self) -> None:
        """Kubelet's process; returns once its sockets are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubelet:
    """With a namespace for one test's pods."""

    runner: Runner
    peer: Peer
    namespace: str

    @property
    def plugins(self) -> Path:
        """The folder of the plugins' sockets."""
        return self.runner.root / "device-plugins"

    async def add(
        self, name: str, *containers: Container, init: tuple[Container, ...] = (), sidecars: tuple[Container, ...] = ()
    ) -> str:
        """A pod that is on the node already; its UID."""
        spec = {
            "nodeName": NODE,
            "hostNetwork": True,
            "terminationGracePeriodSeconds": 1,
            "initContainers": [_container(one, "0") for one in init]
            + [_container(one) | {"restartPolicy": "Always"} for one in sidecars],
            "containers": [_container(one) for one in containers],
        }
        made = await self.peer.create(self._pods, {"metadata": {"name": name}, "spec": spec})
        return str(made["metadata"]["uid"])

    async def pod(self, name: str) -> JsonObject:
        return (await self.peer.send("GET", f"{self._pods}/{name}"))[1]

    async def running(self, name: str) -> JsonObject:
        """Its status, once all its containers run."""

        async def runs() -> bool:
            status = (await self.pod(name))["status"]
            containers = status.get("containerStatuses") or [{}]
            return status["phase"] == "Running" and all("running" in one.get("state", {}) for one in containers)

        await until(runs)
        status: JsonObject = (await self.pod(name))["status"]
        return status

    async def refused(self, name: str) -> tuple[str, str]:
        """Reason and message of a pod that was not admitted."""

        async def failed() -> bool:
            return str((await self.pod(name))["status"]["phase"]) == "Failed"

        await until(failed)
        status = (await self.pod(name))["status"]
        return status["reason"], status["message"]

    async def waiting(self, name: str) -> JsonObject:
        """What keeps its first container, once something but its beginning does."""

        async def found() -> JsonObject:
            [one, *_] = (await self.pod(name))["status"].get("containerStatuses") or [{}]
            state: JsonObject = one.get("state", {}).get("waiting", {})
            return state

        async def waits() -> bool:
            return (await found()).get("reason", "") not in {"", "ContainerCreating", "PodInitializing"}

        await until(waits)
        return await found()

    async def remove(self, name: str) -> None:
        """Returns once kubelet has let it go."""
        await self.peer.send("DELETE", f"{self._pods}/{name}?gracePeriodSeconds=1")

        async def gone() -> bool:
            return bool((await self.pod(name))["kind"] == "Status")

        await until(gone)

    async def clear(self) -> None:
        _, found = await self.peer.send("GET", self._pods)
        for pod in found["items"]:
            await self.remove(pod["metadata"]["name"])

    async def warnings(self, name: str) -> set[tuple[str, str]]:
        """Reason and message of the warnings about the pod."""
        query = f"fieldSelector=involvedObject.name%3D{name},type%3DWarning"
        _, found = await self.peer.send("GET", f"/api/v1/namespaces/{self.namespace}/events?{query}")
        return {(event["reason"], event["message"]) for event in found["items"]}

    async def counts(self, capacity: int, allocatable: int) -> None:
        """The Node says so."""

        async def so_many() -> bool:
            _, node = await self.peer.send("GET", f"/api/v1/nodes/{NODE}")
            held = [int(node["status"][part].get(RESOURCE, -1)) for part in ("capacity", "allocatable")]
            return held == [capacity, allocatable]

        await until(so_many)

    async def listed(self, name: str) -> dict[str, list[tuple[int, list[str]]]]:
        """By container: each entry's NUMA node (-1 without) and ids, as pod-resources lists them."""
        async with aio.insecure_channel(f"unix:{self._pod_resources}") as channel:
            answer = await PodResourcesListerStub(channel).List(wire.ListPodResourcesRequest())
        for pod in answer.pod_resources:
            if (pod.namespace, pod.name) == (self.namespace, name):
                return {one.name: sorted(_entry(entry) for entry in one.devices) for one in pod.containers}
        return {}

    async def allocatable_ids(self) -> list[str]:
        """What pod-resources says could be allocated."""
        async with aio.insecure_channel(f"unix:{self._pod_resources}") as channel:
            answer = await PodResourcesListerStub(channel).GetAllocatableResources(wire.AllocatableResourcesRequest())
        return sorted(name for entry in answer.devices if entry.resource_name == RESOURCE for name in entry.device_ids)

    def checkpoint(self) -> JsonObject:
        content: JsonObject = json.loads((self.plugins / "kubelet_internal_checkpoint").read_text())
        return content

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    @property
    def _pod_resources(self) -> Path:
        return self.runner.root / "pod-resources" / "kubelet.sock"


def _entry(entry: wire.ContainerDevices) -> tuple[int, list[str]]:
    return next((node.ID for node in entry.topology.nodes), -1), sorted(entry.device_ids)


def _container(asked: Container, *words: str) -> JsonObject:
    """It tells its environment and sleeps, or ends with a status."""
    name, devices = asked
    return {
        "name": name,
        "image": image.NAME,
        "imagePullPolicy": "Never",
        "command": [image.PROGRAM, "show", *words],
        "env": [{"name": "OWN", "value": "from-pod"}],
        "resources": {"limits": {RESOURCE: str(devices)}} if devices else {},
    }


@dataclass(frozen=True, slots=True)
class _StandIn:
    kubelet: KubeletStandIn
    cdi: Path

    @property
    def root(self) -> Path:
        return self.kubelet.root

    async def environments(self, pod: JsonObject, container: str) -> list[Mapping[str, str]]:
        made = self.kubelet.created.get(pod["metadata"]["uid"], [])
        return [one.env for one in made if one.name == container]

    async def end(self, pod: JsonObject, container: str) -> None:
        await self.kubelet.restart_container(pod["metadata"]["uid"], container)

    async def restart(self) -> None:
        await self.kubelet.restart()


@dataclass(frozen=True, slots=True)
class _Real:
    node: RealNode

    @property
    def root(self) -> Path:
        return self.node.root

    @property
    def cdi(self) -> Path:
        return self.node.cdi

    async def environments(self, pod: JsonObject, container: str) -> list[Mapping[str, str]]:
        return [start.env for start in await asyncio.to_thread(self.node.starts, pod, container)]

    async def end(self, pod: JsonObject, container: str) -> None:
        # By its image's program: no other container of the test's pods runs.
        await asyncio.to_thread(self.node.machine.run, "pkill", "-f", f"{image.PROGRAM} show")

    async def restart(self) -> None:
        await asyncio.to_thread(self.node.stop_kubelet)
        await asyncio.to_thread(self.node.start_kubelet)


@asynccontextmanager
async def stand_in(folder: Path) -> AsyncIterator[Kubelet]:
    async with embedded(folder) as peer:
        api = await ApiServer.connect(peer.kubeconfig("kubelet"))
        cdi = folder / "cdi"
        kubelet = KubeletStandIn(
            NODE,
            folder / "k",
            api,
            StandInSettings(api_url=peer.url, cdi_directories=[cdi]),
            now=lambda: datetime.now(UTC),  # noqa: TID251 - it is kubelet's clock
        )
        await kubelet.start()
        try:
            yield Kubelet(runner=_StandIn(kubelet, cdi), peer=peer, namespace=await peer.namespace("test"))
        finally:
            await kubelet.stop()
            await api.close()


@asynccontextmanager
async def real_one(node: RealNode, plane: ControlPlane, namespace: str) -> AsyncIterator[Kubelet]:
    await asyncio.to_thread(node.ensure_kubelet)
    async with real(plane) as peer:
        await node_is_ready(peer)
        kubelet = Kubelet(runner=_Real(node), peer=peer, namespace=await peer.namespace(namespace))
        try:
            yield kubelet
        finally:
            await kubelet.clear()
