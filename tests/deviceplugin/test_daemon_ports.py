"""Hostile clients at the daemon's own ports; afterwards it answers every other client."""

import asyncio
from contextlib import AsyncExitStack

import aiohttp
import grpc
import pytest

from deviceplugin.plugin_sockets import plugin_socket
from proto.kubelet import deviceplugin_v1beta1_pb2 as pb
from tests.deviceplugin.daemon_rig import daemon
from tests.program.hostile_clients import GARBAGE, MALFORMED, MIB, SLOW, hold

pytestmark = pytest.mark.needs_compiler


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


async def test_with_few_descriptors_idle_connections_delay_no_pod() -> None:
    few = ("sh", "-c", 'ulimit -n 64; exec "$@"', "sh")
    async with daemon(under=lambda _: few) as node, AsyncExitStack() as stack:
        await hold(stack, await node.url(), b"", 100)
        node.bind("p", 1)
        async with asyncio.timeout(5):
            await node.runs("p")
        assert node.problems() == []


async def test_the_device_plugins_socket_refuses_what_kubelet_would_not_say() -> None:
    """Only root reaches it; it is as strict with kubelet's mistakes."""
    async with daemon() as node:
        socket = plugin_socket(f"{node.kubelet.root}/device-plugins", "nvidia.com/gpu")
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
