"""Random steps of the pods of a simulated cluster: they come, go, end and start again (edge)."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any

import aiohttp

from simulation.cluster import SimulatedCluster
from simulation.kubelet.container import CdiError
from simulation.kubelet.device_manager import PreStartRefused
from simulation.workload import NAMESPACE, SHAPES, Ask, Shape, pod_object

MOST_PODS = 40


class PodSteps:
    """Each step takes some pod; `counts` gets how many starts were refused."""

    def __init__(
        self, cluster: SimulatedCluster, rng: Random, http: aiohttp.ClientSession, counts: Counter[str]
    ) -> None:
        self._cluster = cluster
        self._rng = rng
        self._http = http
        self._counts = counts
        self._created = 0

    def pods(self) -> list[dict[str, Any]]:
        return self._cluster.server.store.objects("pods")

    async def create_pod(self) -> None:
        if len(self.pods()) >= MOST_PODS:
            return await self.delete_pod()
        self._created += 1
        shape = self._rng.choice(SHAPES) if self._rng.random() < 0.5 else self._shape()
        pod = pod_object(f"soak-{self._created}", shape)
        if self._rng.random() < 0.15:
            pod["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": f"group-{self._created // 4}"}  # type: ignore[index]
        self._cluster.server.create(pod)
        return None

    def _shape(self) -> Shape:
        def ask(name: str) -> Ask:
            gpus = self._rng.choice((0, 1, 1, 1, 2, 4))
            part = gpus == 1 and self._rng.random() < 0.8
            memory, cores = self._rng.choice((1_000, 5_000, 13_000, 24_564)), self._rng.choice((5, 20, 50))
            return Ask(name=name, gpus=gpus, memory_mib=memory if part else None, cores=cores if part else None)

        init = tuple(ask(f"init-{place}") for place in range(self._rng.choice((0, 0, 0, 1, 2))))
        containers = tuple(ask(f"main-{place}") for place in range(self._rng.choice((1, 1, 1, 2, 3))))
        return Shape(name="random", why="a random pod", init=init, containers=containers)

    def _some_pod(self, *phases: str) -> dict[str, Any] | None:
        found = [pod for pod in self.pods() if not phases or pod.get("status", {}).get("phase") in phases]
        return self._rng.choice(found) if found else None

    async def delete_pod(self) -> None:
        if (pod := self._some_pod()) is not None:
            await self.delete(pod)

    async def delete(self, pod: Mapping[str, Any]) -> None:
        """Deletes it as `kubectl delete` does: kubelet ends the pod's containers first."""
        url = f"{self._cluster.server.url}/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}"
        async with self._http.delete(url) as answer:
            await answer.read()

    async def delete_by_force(self) -> None:
        if (pod := self._some_pod()) is not None:
            self._cluster.server.delete("pods", pod["metadata"]["name"], namespace=NAMESPACE)

    async def end_pod(self) -> None:
        """The pod's containers end by themselves."""
        if (pod := self._some_pod("Running")) is not None:
            phase = self._rng.choice(("Succeeded", "Failed"))
            name = pod["metadata"]["name"]
            body = {"status": {"phase": phase, "containerStatuses": []}}
            self._cluster.server.patch("pods", name, body, namespace=NAMESPACE, subresource="status")

    async def restart_container(self) -> None:
        if (pod := self._some_pod("Running")) is None:
            return
        uid = pod["metadata"]["uid"]
        kubelet = next((node.kubelet for node in self._cluster.nodes if uid in node.kubelet.created), None)
        names = [container["name"] for container in pod["spec"]["containers"]]
        if kubelet is not None:
            try:
                async with asyncio.timeout(15):
                    await kubelet.restart_container(uid, self._rng.choice(names))
            except (PreStartRefused, CdiError, KeyError):
                # The plugin is away, the GPU is ill, or the pod has just gone: kubelet would try again.
                self._counts["restarts refused"] += 1
