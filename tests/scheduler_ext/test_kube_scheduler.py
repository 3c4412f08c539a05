"""Kubelet asks the extender how kube-scheduler is; kube-scheduler's /healthz is played by a server of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from scheduler_ext.probes import KubeScheduler
from tests.builders import node_json
from tests.scheduler_ext.rig import running

PATH = "/healthz/kube-scheduler"


@dataclass
class Played:
    url: str = ""
    status: int = 200
    text: str = "ok"
    hangs: bool = False
    asked: int = 0
    closing: asyncio.Event = field(default_factory=asyncio.Event)

    async def healthz(self, _: web.Request) -> web.Response:
        self.asked += 1
        if self.hangs:
            await self.closing.wait()
        return web.Response(status=self.status, text=self.text)


@asynccontextmanager
async def played() -> AsyncIterator[Played]:
    kube_scheduler = Played()
    application = web.Application()
    application.router.add_get("/healthz", kube_scheduler.healthz)
    runner = web.AppRunner(application, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    kube_scheduler.url = f"http://127.0.0.1:{runner.addresses[0][1]}/healthz"
    try:
        yield kube_scheduler
    finally:
        kube_scheduler.closing.set()
        await runner.cleanup()


async def test_both_are_healthy_or_the_answer_says_what_is_wrong_with_kube_scheduler() -> None:
    async with played() as it, running(node_json("a"), kube_scheduler_healthz=it.url) as rig:
        assert await rig.status(PATH) == (200, "")
        it.status, it.text = 500, "[-]leaderElection failed:\nfailed election to renew leadership on lease"
        failed = "kube-scheduler answers 500: [-]leaderElection failed: failed election to renew leadership on lease\n"
        assert await rig.status(PATH) == (503, failed)
        it.hangs = True
        assert await rig.status(PATH) == (503, "kube-scheduler does not answer within 1.5 s\n")
        assert await rig.status("/healthz") == (200, "")


async def test_a_kube_scheduler_that_is_not_there_is_not_healthy() -> None:
    async with running(node_json("a"), kube_scheduler_healthz="https://127.0.0.1:1/healthz") as rig:
        status, why = await rig.status(PATH)
        assert status == 503
        assert why.startswith("kube-scheduler cannot be reached: ")


async def test_however_many_ask_kube_scheduler_is_asked_once_at_a_time() -> None:
    async with played() as it:
        it.hangs = True
        kube_scheduler = KubeScheduler(it.url)
        assert set(await asyncio.gather(*(kube_scheduler.problem() for _ in range(50)))) != {""}
        assert it.asked == 1


async def test_who_does_not_name_a_kube_scheduler_is_not_asked_about_one() -> None:
    async with running(node_json("a")) as rig:
        assert (await rig.status(PATH))[0] == 404


@pytest.mark.parametrize("end", ["metrics_url", "url"])
async def test_kubelet_asks_at_the_port_that_it_can_reach(end: str) -> None:
    async with (
        played() as it,
        running(node_json("a"), kube_scheduler_healthz=it.url) as rig,
        rig.http.get(getattr(rig, end) + PATH) as answer,
    ):
        assert answer.status == 200
