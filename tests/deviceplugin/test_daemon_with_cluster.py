"""What the API server sees of the daemon as a process, and what becomes of the daemon when it answers badly."""

import asyncio
from collections.abc import Awaitable

import grpc
import pytest

from proto.annotations.keys import NODE_REGISTER
from simulation.apiserver.faults import Fault
from tests.deviceplugin.daemon_rig import daemon
from tests.deviceplugin.gpus import NODE, bound_annotations, share
from tests.polling import until

pytestmark = pytest.mark.needs_compiler

ABOUT_FIFTY_READINGS_SECONDS = 1.0
API_SERVER_HANGS = 60.0
ALLOCATE_DEADLINE = 30.0
"""Seconds. One Allocate may wait two for news of its pod, and the machine takes what it takes."""


async def refusal(answer: Awaitable[object]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await answer
    return error.value


async def test_while_nothing_changes_nothing_is_written_or_asked_however_often_the_gpus_are_read() -> None:
    async with daemon("--read-seconds", "0.02") as node:
        assert node.writes() == 1
        before = len(node.server.requests)
        await asyncio.sleep(ABOUT_FIFTY_READINGS_SECONDS)
        assert [one for one in node.server.requests[before:] if one.user_agent == "topogpu-device-plugin"] == []


async def test_a_storm_of_foreign_changes_costs_a_patch_each_half_second_and_other_keys_none() -> None:
    async with daemon() as node:
        first, at_first = node.annotation(), node.writes()
        for number in range(200):
            node.server.patch("nodes", NODE, {"metadata": {"annotations": {"example.com/beat": str(number)}}})
            await asyncio.sleep(0)
        clock = asyncio.get_running_loop().time
        began = clock()
        while node.writes() < at_first + 3:
            node.server.patch("nodes", NODE, {"metadata": {"annotations": {NODE_REGISTER: "[]"}}})
            await asyncio.sleep(0.005)
        await until(lambda: node.annotation() == first)
        assert node.writes() - at_first <= (clock() - began) / 0.5 + 1
        assert node.problems() == []


async def test_an_api_server_that_hangs_holds_up_no_allocate() -> None:
    """A pod that is known is served at once and recorded later; for one that is not the answer is a sentence."""
    async with daemon() as node:
        # Kubelet's: the pod stays Pending.
        node.server.inject(Fault(subresource="status", latency_seconds=API_SERVER_HANGS))
        uuid = node.uuid(3)
        annotations = bound_annotations(((share(uuid),),))
        spec = {"nodeName": NODE, "containers": [{"name": "c0", "image": "i"}]}
        node.server.create({"kind": "Pod", "metadata": {"name": "known", "annotations": annotations}, "spec": spec})
        await until(lambda: node.counts("topogpu_pods"))
        node.server.inject(Fault(latency_seconds=API_SERVER_HANGS))
        assert (await node.allocate(f"{uuid}-0", seconds=ALLOCATE_DEADLINE))["NVIDIA_VISIBLE_DEVICES"] == uuid
        error = await refusal(node.allocate(f"{uuid}-1", f"{uuid}-2", seconds=ALLOCATE_DEADLINE))
        assert (error.code(), error.details()) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            f"no known pod on node {NODE} waits for 2 GPUs",
        )
