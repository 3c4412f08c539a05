"""Answers kubelet's probes: kubelet learns with one request whether the extender and its kube-scheduler are healthy.

A kube-scheduler renews its lease even if its extender hangs or crashes, and then no replica places pods. So its
liveness probe calls the extender, and the extender calls kube-scheduler. If either fails, kubelet restarts
kube-scheduler, and another replica gets the lease.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from program.tasks import Tasks
from scheduler_ext.apiserver import ClusterWatch
from scheduler_ext.http.messages import HttpAnswer, HttpRequest, Routes, text_answer
from scheduler_ext.leadership.leadership import Leadership

_ALLOWED = aiohttp.ClientTimeout(total=1.5)
"""Less than kubelet's own timeout."""
_SHOWN_BYTES = 300


class KubeScheduler:
    def __init__(self, healthz: str) -> None:
        """`healthz` is a URL on this host."""
        self._healthz = healthz
        self._tasks = Tasks()
        self._probing: asyncio.Task[str] | None = None

    async def problem(self) -> str:
        """Returns the problem in one sentence; empty while kube-scheduler is healthy. Callers at the same time share
        one request.
        """
        if self._probing is None or self._probing.done():
            self._probing = self._tasks.begin(self._probe())
        return await asyncio.shield(self._probing)

    async def end(self) -> None:
        await self._tasks.end()

    async def _probe(self) -> str:
        # It signed its certificate itself, and no other program answers at an address of this host.
        connector = aiohttp.TCPConnector(ssl=False)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=_ALLOWED) as http,
                http.get(self._healthz, allow_redirects=False) as answer,
            ):
                text = (await answer.content.read(_SHOWN_BYTES)).decode(errors="replace")
        except TimeoutError:
            return f"kube-scheduler does not answer within {_ALLOWED.total:g} s"
        except (aiohttp.ClientError, OSError) as error:
            return f"kube-scheduler cannot be reached: {error}"
        return "" if answer.status == 200 else f"kube-scheduler answers {answer.status}: {' '.join(text.split())}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """`certified` returns whether the webhook has a certificate to show, or there is no webhook."""

    watch: ClusterWatch
    leadership: Leadership
    certified: Callable[[], bool]
    kube_scheduler: KubeScheduler | None

    def routes(self) -> Routes:
        """Returns the probes, also for a listener that kubelet can reach; the verbs' own may be out of its reach."""
        routes = {"/healthz": {"GET": self._healthz}, "/readyz": {"GET": self._readyz}}
        kube_scheduler = self.kube_scheduler
        if kube_scheduler is None:
            return routes

        async def both(_: HttpRequest) -> HttpAnswer:
            problem = await kube_scheduler.problem()
            return text_answer(problem, 503 if problem else 200)

        return {**routes, "/healthz/kube-scheduler": {"GET": both}}

    async def _healthz(self, _: HttpRequest) -> HttpAnswer:
        return text_answer("")

    async def _readyz(self, _: HttpRequest) -> HttpAnswer:
        """Answers whether the extender is ready. A follower is: it serves the webhook, and a roll-out waits for it."""
        problem = self._unready()
        return text_answer(problem, 503 if problem else 200)

    def _unready(self) -> str:
        if missing := self.watch.missing():
            return f"waiting for the first list of {', '.join(missing)}"
        problem = self.watch.interrupted() or self.leadership.interrupted()
        if not problem and not self.certified():
            problem = "the webhook has no certificate yet; the log has the reason"
        return problem
