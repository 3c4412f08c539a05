"""Serves `/metrics` and the probes on their own port, which may be open to other hosts (edge of Prometheus and
kubelet).
"""

import asyncio
from collections.abc import Callable, Sequence
from io import BytesIO

from aiohttp import web

from program.tasks import Tasks
from scheduler_ext.metric_families import Seen
from scheduler_ext.metrics import CONTENT_TYPE, Metrics

PAUSE = 2.0
"""A page is served again for this many times the time it took to write: scrapes must not delay kube-scheduler."""
LONGEST_PAUSE_SECONDS = 10.0


class MetricsServer:
    """`look` runs at every scrape on the event loop; another thread writes the page."""

    def __init__(
        self,
        metrics: Metrics,
        look: Callable[[], Seen],
        probes: Sequence[web.RouteDef],
        monotonic: Callable[[], float],
    ) -> None:
        self._metrics = metrics
        self._monotonic = monotonic
        self._look = look
        self._probes = probes
        self._tasks = Tasks()
        self._writing: asyncio.Task[bytes] | None = None
        self._good_until = 0.0

    def application(self) -> web.Application:
        application = web.Application()
        application.add_routes([web.get("/metrics", self._scrape), *self._probes])
        application.on_cleanup.append(self._end)
        return application

    async def _end(self, _: web.Application) -> None:
        await self._tasks.end()

    async def _scrape(self, _: web.Request) -> web.Response:
        """On a large cluster a page takes seconds and tens of MiB. A caller that asks too soon gets the
        previous page.
        """
        if self._writing is None or (self._writing.done() and self._monotonic() >= self._good_until):
            self._writing = self._tasks.begin(self._write())
        page = await asyncio.shield(self._writing)
        # Sent in pieces: a client that reads nothing holds one piece, not the whole page.
        return web.Response(body=BytesIO(page), headers={"Content-Type": CONTENT_TYPE})

    async def _write(self) -> bytes:
        self._good_until = began = self._monotonic()
        page = await asyncio.to_thread(self._metrics.exposition, self._look())
        ended = self._monotonic()
        self._good_until = ended + min(PAUSE * (ended - began), LONGEST_PAUSE_SECONDS)
        return page
