"""One extender put together: what ends it, what it finishes, and where it listens."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from program.address import ListenAddress
from proto.kubernetes.client import ApiServer
from scheduler_ext.extender_parts import made_parts
from scheduler_ext.http.server import listening, listening_to_kube_scheduler
from scheduler_ext.requests import RequestSettings
from scheduler_ext.running import Applications, running_extender
from scheduler_ext.settings import LeaseSettings, ServeSettings
from simulation.apiserver import EmbeddedApiServer, Fault
from tests.builders import node_json, pod_json
from tests.cluster.control_plane import free_port
from tests.polling import until
from tests.scheduler_ext.in_process import InMemory


@asynccontextmanager
async def extender(
    server: EmbeddedApiServer, folder: Path, certified: Callable[[], bool] = lambda: True
) -> AsyncIterator[tuple[ApiServer, Applications]]:
    (folder / "config").write_text(server.kubeconfig())
    api = await ApiServer.connect(str(folder / "config"))
    try:
        async with running_extender(api, ServeSettings(), RequestSettings(), certified=certified) as applications:
            yield api, applications
    finally:
        await api.close()


def test_the_parts_of_an_extender_are_made_before_anything_runs() -> None:
    """No event loop runs."""
    parts = made_parts(
        api=InMemory([]),
        settings=ServeSettings(),
        requests=RequestSettings(),
        lease=LeaseSettings(elects=True, name="sched", namespace="kube-system"),
        certified=lambda: True,
        files=None,
    )
    assert parts.readiness.problem() == "this replica does not lead: lease kube-system/sched has no holder"
    assert "/filter" in parts.private_routes()


async def test_a_watch_that_fails_by_a_fault_of_ours_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedApiServer() as server:
        (tmp_path / "config").write_text(server.kubeconfig())
        api = await ApiServer.connect(str(tmp_path / "config"))
        # Any answer that the code did not expect will do.
        api.list_page = None  # type: ignore[assignment,method-assign]
        async with running_extender(api, ServeSettings(), RequestSettings()) as applications:
            await asyncio.wait_for(applications.failed.wait(), 120)
        await api.close()
    assert "a part of the extender has failed" in caplog.text


async def test_an_extender_in_good_health_has_not_failed_when_it_stops(tmp_path: Path) -> None:
    async with EmbeddedApiServer() as server:
        async with extender(server, tmp_path) as (_, applications):
            await asyncio.sleep(0)
        assert not applications.failed.is_set()


@pytest.mark.parametrize("host", ["127.0.0.1", None])
async def test_a_bind_under_way_is_answered_before_its_connection_is_closed(tmp_path: Path, host: str | None) -> None:
    async with EmbeddedApiServer() as server:
        server.create(node_json("n"))
        uid = server.create(pod_json("p"))["metadata"]["uid"]
        args = json.dumps({"PodName": "p", "PodNamespace": "default", "PodUID": uid, "Node": "n"})
        server.inject(Fault(subresource="binding", latency_seconds=0.5))

        async def sent() -> bool:
            return any(request.subresource == "binding" for request in server.requests)

        async with aiohttp.ClientSession() as http, extender(server, tmp_path) as (_, applications):
            address = ListenAddress(host=host, port=free_port())
            async with listening_to_kube_scheduler(applications.verbs, address, "--flag"):
                answer = asyncio.create_task(http.post(f"http://127.0.0.1:{address.port}/bind", data=args))
                await until(sent)
            assert await (await answer).text() == '{"Error":""}'


async def test_a_webhook_without_a_certificate_is_not_ready(tmp_path: Path) -> None:
    has_certificate = asyncio.Event()
    async with (
        EmbeddedApiServer() as server,
        extender(server, tmp_path, has_certificate.is_set) as (_, applications),
        listening(applications.metrics, ListenAddress(host="127.0.0.1", port=0), "--flag") as url,
        aiohttp.ClientSession() as http,
    ):

        async def readyz() -> tuple[int, str]:
            async with http.get(f"{url}/readyz") as response:
                return response.status, await response.text()

        async def waits_for_it() -> bool:
            return await readyz() == (503, "the webhook has no certificate yet; the log has the reason\n")

        await until(waits_for_it)
        has_certificate.set()
        assert await readyz() == (200, "")


async def test_an_address_without_a_host_is_every_address_of_both_families() -> None:
    port = free_port()
    hosts = ["127.0.0.1"]
    if socket.has_ipv6 and _has_loopback_ipv6():
        hosts.append("[::1]")
    async with (
        listening(web.Application(), ListenAddress(host=None, port=port), "--flag"),
        aiohttp.ClientSession() as http,
    ):
        for host in hosts:
            async with http.get(f"http://{host}:{port}/") as response:
                assert response.status == 404


def _has_loopback_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False
