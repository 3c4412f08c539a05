"""The daemon is replaced again and again, as a DaemonSet with `maxSurge` does, under a steady stream of pods."""

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from tests.node.pods import Pods, container, pod
from tests.polling import until

pytestmark = [pytest.mark.node, pytest.mark.needs_compiler]
PODS = int(os.environ.get("ROLLOUT_PODS", "40"))
BETWEEN_SECONDS = 0.4
DEFAULT_SECONDS = 10
"""Kubelet's nodeStatusUpdateFrequency."""


@pytest.fixture
async def seldom(scheduled: Pods) -> AsyncIterator[Pods]:
    """The API server hears of lost GPUs as late as by default."""
    node = scheduled.node
    await asyncio.to_thread(node.report_every, DEFAULT_SECONDS)
    await asyncio.to_thread(node.stop_kubelet)
    await asyncio.to_thread(node.start_kubelet)
    yield scheduled
    await asyncio.to_thread(node.report_every, 1)
    await asyncio.to_thread(node.stop_kubelet)
    await asyncio.to_thread(node.start_kubelet)


@pytest.mark.parametrize("allocation", ["slots", "immediate"])
async def test_no_pod_fails_while_the_daemon_is_replaced(seldom: Pods, allocation: str) -> None:
    flags = ("--allocation", allocation)
    await seldom.serve(*flags)
    names = [f"pod-{number}" for number in range(PODS)]

    async def come() -> None:
        for name in names:
            await seldom.add(pod(name, container(gpumem=100, ends=True), restart="Never"))
            await asyncio.sleep(BETWEEN_SECONDS)  # the stream is steady

    coming = asyncio.create_task(come())
    replaced = 0
    while not coming.done():
        await asyncio.to_thread(seldom.node.replace_daemon, *flags)
        replaced += 1
    await coming

    async def over() -> bool:
        phases = [one["status"]["phase"] for one in (await seldom.all()).values()]
        return all(phase in ("Succeeded", "Failed") for phase in phases)

    await until(over)
    pods = await seldom.all()
    failed = {name: one["status"].get("message") for name, one in pods.items() if one["status"]["phase"] == "Failed"}
    print(f"{replaced} daemons, {len(pods)} pods, {len(failed)} failed")
    assert (failed, len(pods)) == ({}, PODS)
    assert replaced > 1
