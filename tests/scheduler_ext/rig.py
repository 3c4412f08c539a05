"""A whole extender before an embedded API server: real HTTP on both sides."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from tempfile import NamedTemporaryFile
from typing import Any, Literal

import aiohttp

from program.address import ListenAddress
from proto.annotations import keys
from proto.kubernetes.client import SILENT_SECONDS, ApiServer
from scheduler_ext.http.server import listening, listening_to_kube_scheduler
from scheduler_ext.requests import RequestSettings
from scheduler_ext.running import running_extender
from scheduler_ext.settings import LeaseSettings, ServeSettings
from scheduler_ext.verbs.journal import JournalFiles
from simulation.apiserver import EmbeddedApiServer, Fault
from tests.builders import pod_json
from tests.polling import until

ANY_PORT = ListenAddress(host="127.0.0.1", port=0)
API_SECONDS = 30.0
"""Nobody gives up on an answer that is on its way, however busy the machine is."""
_WATCHES = 4
"""Nodes, pods, quotas and disruption budgets."""
DEFAULT_REQUESTS = RequestSettings()
FAST = ServeSettings(sync_wait_seconds=0.3, binding_seconds=API_SECONDS)


@dataclass(frozen=True)
class Rig:
    server: EmbeddedApiServer
    url: str
    metrics_url: str
    http: aiohttp.ClientSession

    async def post(self, path: str, body: object) -> Any:
        async with self.http.post(self.url + path, data=json.dumps(body)) as response:
            assert response.status == 200, await response.text()
            return json.loads(await response.read())

    async def filter(self, pod: dict[str, Any], *nodes: str) -> dict[str, Any]:
        answer: dict[str, Any] = await self.post("/filter", {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})
        return answer

    async def bind(self, pod: dict[str, Any], node: str) -> str:
        metadata = pod["metadata"]
        args = {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": node,
        }
        return str((await self.post("/bind", args))["Error"])

    async def status(self, path: str) -> tuple[int, str]:
        async with self.http.get(self.url + path) as response:
            return response.status, await response.text()

    def add_pod(self, name: str, *, gpus: int = 1, memory_mib: int = 1000) -> dict[str, Any]:
        return self.server.create(pod_json(name, gpus=gpus, memory_mib=memory_mib))

    def pod(self, name: str) -> dict[str, Any]:
        found = self.server.store.get("pods", "default", name)
        assert found is not None
        return found

    async def bind_without_an_answer(self, pod: dict[str, Any], node: str, drop: Literal["before", "after"]) -> None:
        """The bind fails after a Binding that the API server never saw, or, with "after", has carried out."""
        for fault in (
            Fault(subresource="binding", drop=drop, times=1),
            Fault(subresource="binding", status=403, times=1),
        ):
            self.server.inject(fault)
        assert "403 Forbidden" in await self.bind(pod, node)

    def lock(self, node: str) -> str | None:
        found = self.server.store.get("nodes", "", node)
        assert found is not None
        value: str | None = found["metadata"].get("annotations", {}).get(keys.NODE_LOCK)
        return value

    def set_phase(self, pod: str, phase: str) -> None:
        body = {"metadata": {"annotations": {keys.BIND_PHASE: phase}}}
        self.server.patch("pods", pod, body, namespace="default")

    def writes(self) -> list[tuple[str, str, str]]:
        """Everything written through HTTP, events apart."""
        return [
            (request.verb, request.resource, request.subresource)
            for request in self.server.requests
            if request.verb in ("create", "patch", "update", "delete") and request.resource != "events"
        ]


@asynccontextmanager
async def running(
    *nodes: dict[str, Any],
    settings: ServeSettings = FAST,
    requests: RequestSettings = DEFAULT_REQUESTS,
    synced: bool = True,
    files: JournalFiles | None = None,
    **changes: Any,
) -> AsyncIterator[Rig]:
    async with EmbeddedApiServer() as server:
        for node in nodes:
            server.create(node)
        changed = replace(settings, **changes)
        async with extender_for(server, changed, requests=requests, synced=synced, files=files) as rig:
            if synced:
                # A watch that is still being opened would escape what a test does to watches.
                await until(lambda: _watches(server))
            yield rig


@asynccontextmanager
async def extender_for(
    server: EmbeddedApiServer,
    settings: ServeSettings,
    *,
    synced: bool,
    requests: RequestSettings = DEFAULT_REQUESTS,
    lease: LeaseSettings | None = None,
    api_url: str = "",
    api_seconds: float = API_SECONDS,
    silent_seconds: float = SILENT_SECONDS,
    files: JournalFiles | None = None,
) -> AsyncIterator[Rig]:
    """`api_url` is where the extender finds the server, if not at the server's own."""
    with NamedTemporaryFile("w") as kubeconfig:
        kubeconfig.write(server.kubeconfig().replace(server.url, api_url or server.url))
        kubeconfig.flush()
        api = await ApiServer.connect(kubeconfig.name, timeout_seconds=api_seconds, silent_seconds=silent_seconds)
    try:
        async with (
            running_extender(api, settings, requests, lease, files=files) as applications,
            listening_to_kube_scheduler(applications.verbs, ANY_PORT, "--http_bind") as url,
            listening(applications.metrics, ANY_PORT, "--metrics-bind-address") as metrics_url,
            aiohttp.ClientSession() as http,
        ):
            rig = Rig(server=server, url=url, metrics_url=metrics_url, http=http)
            if synced:
                await until(lambda: _ready(rig))
            yield rig
    finally:
        await api.close()


async def _watches(server: EmbeddedApiServer) -> bool:
    return server.open_watches >= _WATCHES


async def _ready(rig: Rig) -> bool:
    return (await rig.status("/readyz"))[0] == 200


def now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)
