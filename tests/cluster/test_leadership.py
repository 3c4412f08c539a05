"""Two extenders and one Lease on the real API server, with a proxy before it that is slow with Bindings."""

import asyncio
import json
import os
import signal
import ssl
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web

from simulation.processes import ChildProcess
from tests.cluster.control_plane import ControlPlane
from tests.cluster.peers import Peer, real
from tests.cluster.scheduling import EXTENDER_RIGHTS, EXTENDER_USER, gpu_node, gpu_pod, grant_rights
from tests.polling import until

pytestmark = pytest.mark.cluster
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"


@pytest.fixture
async def api_server(plane: ControlPlane) -> AsyncIterator[Peer]:
    async with real(plane) as peer:
        yield peer


@dataclass
class Proxy:
    """Hands everything on to the API server, Bindings once `opened`; whether their sender is still there or not."""

    http: aiohttp.ClientSession
    server: str
    came: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    late: "list[asyncio.Task[tuple[int, bytes]]]" = field(default_factory=list)

    async def hand_on(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        kept = {name: request.headers[name] for name in ("Authorization", "Content-Type") if name in request.headers}
        if request.path.endswith("/binding"):
            self.came.set()
            task = asyncio.create_task(self._late(request, body, kept))
            self.late.append(task)
            status, answer = await asyncio.shield(task)
            return web.Response(status=status, body=answer, content_type="application/json")
        async with self.http.request(request.method, self.server + request.path_qs, data=body, headers=kept) as found:
            response = web.StreamResponse(status=found.status, headers={"Content-Type": "application/json"})
            # Who was killed reads nothing more.
            with suppress(ConnectionError):
                await response.prepare(request)
                async for chunk in found.content.iter_any():
                    await response.write(chunk)
        return response

    async def _late(self, request: web.Request, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        await self.opened.wait()
        async with self.http.post(self.server + request.path_qs, data=body, headers=headers) as found:
            return found.status, await found.read()


@asynccontextmanager
async def slow_with_bindings(plane: ControlPlane) -> AsyncIterator[tuple[Proxy, str]]:
    """The proxy and its URL."""
    tls = ssl.create_default_context(cafile=plane.certificate)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls, limit=0), timeout=timeout) as http:
        proxy = Proxy(http, plane.url)
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", proxy.hand_on)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield proxy, f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


def kubeconfig(plane: ControlPlane, folder: Path, server: str) -> str:
    """The extender's, by way of the proxy."""
    document = yaml.safe_load(Path(plane.kubeconfig(EXTENDER_USER)).read_text())
    document["clusters"][0]["cluster"] = {"server": server}
    path = folder / "slow.kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return str(path)


@dataclass
class Extender:
    url: str
    http: aiohttp.ClientSession
    process: ChildProcess

    async def post(self, path: str, body: object) -> dict[str, Any]:
        async with self.http.post(self.url + path, data=json.dumps(body)) as response:
            found: dict[str, Any] = json.loads(await response.read())
            return found

    async def filter(self, pod: dict[str, Any]) -> dict[str, Any]:
        return await self.post("/filter", {"Pod": pod, "Nodes": None, "NodeNames": ["n"]})

    async def bind(self, pod: dict[str, Any]) -> str:
        metadata = pod["metadata"]
        names = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
        return str((await self.post("/bind", names | {"Node": "n"}))["Error"])

    async def leads(self) -> bool:
        """Asked with a pod that fits nowhere, so that nothing is reserved."""
        wide = gpu_pod("wide", 200)
        wide["metadata"] |= {"namespace": "default", "uid": "wide"}
        return not (await self.filter(wide))["Error"]


@asynccontextmanager
async def extender(folder: Path, host: str, config: str) -> AsyncIterator[Extender]:
    elected = ("--leader-elect", "--leader-elect-resource-name=gpus", "--leader-elect-resource-namespace=kube-system")
    named = f"import socket, runpy; socket.gethostname = lambda: {host!r}"
    program = f"{named}; runpy.run_module('scheduler_ext', run_name='__main__')"
    arguments = [
        *(sys.executable, "-c", program, "serve", "--http_bind", "127.0.0.1:0", "--metrics-bind-address", ""),
        *("--kubeconfig", config, *elected),
    ]
    process = await ChildProcess.start(host, arguments, {}, folder / f"{host}.log")
    async with aiohttp.ClientSession() as http:
        try:
            url = (await process.wait_for_line(r"listening on (http://\S+)", 60.0))[1]
            yield Extender(url, http, process)
        finally:
            await process.stop()


@asynccontextmanager
async def stage(plane: ControlPlane, peer: Peer) -> AsyncIterator[str]:
    """A node `n` whose 8 GPUs one pod can have, the Lease, and a namespace."""
    namespace = await peer.namespace(f"test-{uuid.uuid4().hex[:8]}")
    await grant_rights(peer, EXTENDER_USER, EXTENDER_RIGHTS)
    await peer.create("/api/v1/nodes", gpu_node("n"))
    await peer.create(LEASES, {"metadata": {"name": "gpus"}, "spec": {}})
    try:
        yield namespace
    finally:
        for path in (f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0", "/api/v1/nodes", f"{LEASES}/gpus"):
            status, answer = await peer.send("DELETE", path)
            assert status == 200, answer


@pytest.mark.parametrize("crash", [False, True])
async def test_a_binding_of_the_leader_before_that_comes_late_books_no_gpu_twice(
    plane: ControlPlane, api_server: Peer, tmp_path: Path, *, crash: bool
) -> None:
    async with (
        stage(plane, api_server) as namespace,
        slow_with_bindings(plane) as (proxy, url),
        extender(tmp_path, "host-1", kubeconfig(plane, tmp_path, url)) as before,
        extender(tmp_path, "host-2", plane.kubeconfig(EXTENDER_USER)) as after,
    ):
        renewing = asyncio.create_task(renew(api_server, holder := ["host-1_a"]))
        pods = f"/api/v1/namespaces/{namespace}/pods"
        first, second = [await api_server.create(pods, gpu_pod(name, 8, gpucores=100)) for name in ("first", "second")]
        await until(before.leads)
        assert (await before.filter(first))["NodeNames"] == ["n"]
        binding = asyncio.create_task(before.bind(first))
        await proxy.came.wait()
        if crash:
            os.kill(before.process.pid, signal.SIGKILL)
        holder[0] = "host-2_b"
        await until(lambda: waits(after, second))
        proxy.opened.set()
        await asyncio.gather(binding, return_exceptions=True)
        await until(after.leads)
        assert (await after.filter(second))["NodeNames"] is None
        _, bound = await api_server.send("GET", f"{pods}/first")
        assert bound["spec"]["nodeName"] == "n"
        renewing.cancel()


async def renew(peer: Peer, holder: list[str]) -> None:
    for number in range(10_000):
        renewed = f"2030-01-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}.000000Z"
        spec = {"holderIdentity": holder[0], "leaseDurationSeconds": 3, "renewTime": renewed}
        status, answer = await peer.send("PATCH", f"{LEASES}/gpus", {"spec": spec}, "application/merge-patch+json")
        assert status == 200, answer
        await asyncio.sleep(0.3)


async def waits(successor: Extender, pod: dict[str, Any]) -> bool:
    answer = await successor.filter(pod)
    assert answer["NodeNames"] is None
    return "waits until nothing more is bound by host-1_" in answer["Error"]
