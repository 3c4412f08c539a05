"""The extender as a process before an embedded API server, every port of it open on loopback."""

import asyncio
import os
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from scheduler_ext.admission.containers import AdmissionSettings
from simulation.apiserver import EmbeddedApiServer
from simulation.processes import ChildProcess
from tests.scheduler_ext.admission.webhook_configuration import webhook_configuration

NAMESPACE = "topogpu-system"
NAME = "topogpu-scheduler"
WEBHOOK = "topogpu-webhook"
LEASE = "topogpu-scheduler"
_LONGEST_SECONDS = 60.0
_FLAGS = (
    *("--http_bind", "127.0.0.1:0", "--metrics-bind-address", "127.0.0.1:0", "--webhook-bind-address", "127.0.0.1:0"),
    *("--webhook-secret", f"{NAMESPACE}/{WEBHOOK}"),
)
"""As the chart gives them, but for the ports."""


@dataclass(frozen=True)
class Extender:
    server: EmbeddedApiServer
    process: ChildProcess
    verbs: str
    metrics: str
    webhook: str
    """URLs without a path."""
    http: aiohttp.ClientSession

    @property
    def urls(self) -> tuple[str, ...]:
        return self.verbs, self.metrics, self.webhook

    async def post(self, path: str, body: Any) -> Any:
        async with self.http.post(self.verbs + path, json=body) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    def pod(self, name: str, namespace: str = "default") -> dict[str, Any]:
        found = self.server.store.get("pods", namespace, name)
        assert found is not None
        return found

    def annotations(self, name: str) -> dict[str, str]:
        annotations: dict[str, str] = self.pod(name)["metadata"].get("annotations", {})
        return annotations

    def events(self, reason: str) -> list[str]:
        return [event["message"] for event in self.server.store.objects("events") if event["reason"] == reason]

    async def well(self) -> None:
        """It still answers, on every port, and nobody's mistake became a traceback."""
        assert "Traceback" not in self.process.log.read_text()
        for url in (f"{self.verbs}/readyz", f"{self.metrics}/metrics"):
            async with self.http.get(url) as response:
                assert response.status == 200, await response.text()
        async with self.http.get(f"{self.webhook}/nothing") as response:
            assert response.status == 404


def prepare(server: EmbeddedApiServer) -> None:
    """What the manifests bring: an empty Secret and the webhook's configuration."""
    metadata = {"name": WEBHOOK, "namespace": NAMESPACE}
    server.create({"kind": "Secret", "apiVersion": "v1", "type": "Opaque", "metadata": metadata})
    client = {"service": {"namespace": NAMESPACE, "name": WEBHOOK}}
    server.create(webhook_configuration(WEBHOOK, client, AdmissionSettings()))


@asynccontextmanager
async def extender(server: EmbeddedApiServer, folder: Path, *flags: str) -> AsyncIterator[Extender]:
    """Ready when the block begins; `prepare` was called before."""
    kubeconfig = folder / "extender.kubeconfig"
    kubeconfig.write_text(server.kubeconfig())
    arguments = (*(sys.executable, "-m", "scheduler_ext", "serve"), *_FLAGS, "--kubeconfig", str(kubeconfig), *flags)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "POD_NAME": NAME, "POD_NAMESPACE": NAMESPACE}
    process = await ChildProcess.start("extender", arguments, environment, folder / "extender.log")
    try:
        verbs = await _url(process, "listening on")
        metrics, webhook = await _url(process, "metrics are served on"), await _url(process, "webhook is served on")
        trust = ssl.create_default_context()
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust, limit=0)) as http:
            found = Extender(server, process, verbs, metrics, webhook, http)
            await until_ready(found)
            yield found
    finally:
        await process.stop()


async def until_ready(found: Extender) -> None:
    async with asyncio.timeout(_LONGEST_SECONDS):
        while True:
            async with found.http.get(f"{found.verbs}/readyz") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.02)


async def _url(process: ChildProcess, words: str) -> str:
    found = await process.wait_for_line(rf"{words} (https?://[^/\s]+)", _LONGEST_SECONDS)
    return found[1]
