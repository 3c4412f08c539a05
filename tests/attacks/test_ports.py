"""Oversized and malformed bodies, slow clients and floods, at every port of both programs.

What stops them: limits on bodies, decoders that answer with a sentence, and `program.listening`. Whatever was sent, the
program answers everybody else afterwards, on every port.
"""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import grpc
import pytest

from proto.kubelet import deviceplugin_v1beta1_pb2 as pb
from scheduler_ext import exchange, webhook_server
from simulation.apiserver import EmbeddedApiServer
from tests.attacks.extender import Extender, extender, prepare
from tests.deviceplugin.daemon_rig import daemon
from tests.scheduler_ext.rig import node_json, pod_json

MIB = 1024 * 1024
VERBS = ("/filter", "/prioritize", "/preempt", "/bind")
MALFORMED = (
    b"",
    b"{",
    b"null",
    b"[]",
    b"0",
    b'"text"',
    b"{} trailing",
    b"\xff\xfe\x00",
    b"\x00" * 64,
    b"[" * 200_000,
    b'{"Pod":' * 50_000,
    b'{"Pod": {"metadata": {"name": 7}}}',
    b'{"Pod": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": {}}}}]}}, "NodeNames": ["a"]}',
    b'{"Pod": null, "NodeNames": [null]}',
    b'{"request": {"uid": {}, "object": []}}',
    b'{"request": {"uid": "u", "operation": "CREATE", "object": {"spec": {"containers": "x"}}}}',
    b'{"PodName": "../..", "PodNamespace": "..", "PodUID": "u", "Node": "../../nodes/a?x=1#"}',
    json.dumps({"a": "b" * MIB}).encode(),
)
GARBAGE = (
    b"\x00" * 4096,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xff" * 500,
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 50_000 + b"\r\n",
    b"POST /filter HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    b"POST /filter HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"POST /filter HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / ",
    b"POST /filter HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nZZZZ\r\n",
    b"POST /filter HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)
SLOW = (
    b"",
    b"G",
    b"POST /filter HTTP/1.1\r\nHost: a\r\nX-",
    b"POST /webhook HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{",
)


@asynccontextmanager
async def a_scheduler(folder: Path) -> AsyncIterator[Extender]:
    async with EmbeddedApiServer() as server:
        prepare(server)
        server.create(node_json("a"))
        async with extender(server, folder) as found:
            yield found


async def sends(url: str, data: bytes) -> asyncio.StreamWriter | None:
    """A connection that has said `data`, by TLS where the URL does; None if it was dropped already."""
    parts = urlsplit(url)
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    with suppress(ConnectionError, ssl.SSLError):
        tls = trust if parts.scheme == "https" else None
        _, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=tls)
        writer.write(data)
        await writer.drain()
        return writer
    return None


async def hold(stack: AsyncExitStack, url: str, data: bytes, times: int) -> None:
    """So many connections that say this and nothing more, until the stack is left."""
    for writer in await asyncio.gather(*(sends(url, data) for _ in range(times))):
        if writer is not None:
            stack.callback(writer.transport.abort)


async def test_the_verbs_answer_nobody_from_elsewhere_whatever_address_they_listen_on(tmp_path: Path) -> None:
    own = _own_address()
    async with EmbeddedApiServer() as server:
        prepare(server)
        async with extender(server, tmp_path, "--http_bind", "0.0.0.0:0") as found:
            elsewhere = f"http://{own}:{urlsplit(found.verbs).port}"
            for path in (*VERBS, "/debug/snapshot"):
                method = "GET" if path.startswith("/debug") else "POST"
                async with found.http.request(method, elsewhere + path) as response:
                    assert (response.status, (await response.text())[:13]) == (403, "only answered")
            async with found.http.get(f"{elsewhere}/readyz") as response:
                assert response.status == 200


def _own_address() -> str:
    """Of this host, not on loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this host has no address but loopback's")
        address: str = probe.getsockname()[0]
        return address


async def test_a_malformed_body_is_answered_with_a_sentence_on_every_verb(tmp_path: Path) -> None:
    async with a_scheduler(tmp_path) as found:
        for verb in VERBS:
            for body in MALFORMED:
                async with found.http.post(found.verbs + verb, data=body) as response:
                    text = await response.text()
                    assert response.status in (200, 400), (verb, body[:40], text)
                    assert "Traceback" not in text
        for url in (f"{found.metrics}/metrics", f"{found.verbs}/healthz"):
            async with found.http.post(url, data=b"x" * MIB) as response:
                assert response.status == 405
        await found.well()


async def test_a_malformed_question_is_answered_by_the_webhook_with_a_refusal(tmp_path: Path) -> None:
    async with a_scheduler(tmp_path) as found:
        for body in MALFORMED:
            headers = {"Content-Type": "application/json"}
            async with found.http.post(f"{found.webhook}/webhook", data=body, headers=headers) as response:
                answer = json.loads(await response.read())["response"]
                assert (response.status, answer["allowed"]) == (200, False), (body[:40], answer)
        packed = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        async with found.http.post(f"{found.webhook}/webhook", data=b"abcd", headers=packed) as response:
            words = json.loads(await response.read())["response"]["status"]["message"]
            assert words.startswith("the request body is no AdmissionReview: ")
        await found.well()


async def test_an_oversized_body_is_refused_before_it_is_held_in_memory(tmp_path: Path) -> None:
    async with a_scheduler(tmp_path) as found:
        limits = {f"{found.verbs}/filter": exchange.LARGEST_BODY_BYTES}
        limits |= {f"{found.webhook}/webhook": webhook_server.LARGEST_BODY_BYTES}
        for url, limit in limits.items():
            assert f"larger than {limit} bytes" in await _told_to_endless(found.http, url, limit)
        await found.well()


async def _told_to_endless(http: aiohttp.ClientSession, url: str, limit: int) -> str:
    """What is answered to a body that says of no size, and goes on for twice as long as is allowed."""

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(2 * limit // MIB):
            yield b" " * MIB

    headers = {"Content-Type": "application/json"}
    async with http.post(url, data=endless(), headers=headers) as response:
        assert response.status in (200, 400)
        return await response.text()


async def test_what_is_no_http_at_all_harms_nobody(tmp_path: Path) -> None:
    async with a_scheduler(tmp_path) as found, AsyncExitStack() as stack:
        for url in found.urls:
            for data in GARBAGE:
                await hold(stack, url, data, 1)
        plain = found.webhook.replace("https", "http")
        await hold(stack, plain, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 1)
        await found.well()


async def test_slow_clients_hold_nobody_up(tmp_path: Path) -> None:
    """How many a port lets in, and for how long: tests/proto/test_listening.py."""
    async with a_scheduler(tmp_path) as found, AsyncExitStack() as stack:
        for url in found.urls:
            for data in SLOW:
                await hold(stack, url, data, 6)
        async with asyncio.timeout(60):
            await found.well()
            pod = found.server.create(pod_json("p"))
            asked = {"Pod": pod, "Nodes": None, "NodeNames": ["a"]}
            assert (await found.post("/filter", asked))["NodeNames"] == ["a"]


@pytest.mark.needs_compiler
async def test_the_daemons_port_for_metrics_outlasts_the_same() -> None:
    async with daemon() as node, AsyncExitStack() as stack:
        url = await node.url()
        for data in (*GARBAGE, *MALFORMED):
            await hold(stack, url, data, 1)
        for data in SLOW:
            await hold(stack, url, data, 6)
        async with aiohttp.ClientSession() as http:
            for path in ("/metrics", "/healthz", "/readyz"):
                async with http.post(url + path, data=b"x" * MIB) as response:
                    assert response.status == 405
        async with asyncio.timeout(60):
            assert (await node.get("/healthz"))[0] == 200
            assert (await node.get("/metrics"))[0] == 200
        assert node.problems() == []


@pytest.mark.needs_compiler
async def test_the_device_plugins_socket_refuses_what_kubelet_would_not_say() -> None:
    """Only root reaches it; it is as strict with kubelet's mistakes."""
    async with daemon() as node:
        socket = f"{node.kubelet.root}/device-plugins/nvidia-gpu.sock"
        _, writer = await asyncio.open_unix_connection(socket)
        writer.write(b"\x00" * 4096 + b"GET / HTTP/1.1\r\n\r\n")
        idle = [await asyncio.open_unix_connection(socket) for _ in range(10)]
        async with node.plugin() as plugin:
            for ids in (["../../etc", "\x00", f"{node.uuid(0)}-0"], ["x" * MIB]):
                request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await plugin.Allocate(request, timeout=60)
                assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            large = pb.PreStartContainerRequest(devices_ids=["x" * MIB] * 5)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await plugin.PreStartContainer(large, timeout=60)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for each in (writer, *(one for _, one in idle)):
            each.transport.abort()
        uid = node.bind("p", 1)
        await node.runs("p")
        assert (node.visible(uid), node.problems()) == (node.uuid(1), [])
