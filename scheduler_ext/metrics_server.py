"""Edge to Prometheus and kubelet: `/metrics` and the probes on a port of their own, open while the verbs are not."""

import asyncio
from collections.abc import Callable, Sequence

from aiohttp import web

from scheduler_ext.metric_families import Seen
from scheduler_ext.metrics import CONTENT_TYPE, Metrics


class MetricsServer:
    """`look` is called at every scrape, on the event loop; the page is written on another thread."""

    def __init__(self, metrics: Metrics, look: Callable[[], Seen], probes: Sequence[web.RouteDef]) -> None:
        self._metrics = metrics
        self._look = look
        self._probes = probes
        self._writing: asyncio.Task[bytes] | None = None

    def application(self) -> web.Application:
        application = web.Application()
        application.add_routes([web.get("/metrics", self._scrape), *self._probes])
        return application

    async def _scrape(self, _: web.Request) -> web.Response:
        """Who asks while a page is written gets that one: on a large cluster each takes seconds and tens of MiB."""
        if self._writing is None:
            self._writing = asyncio.create_task(asyncio.to_thread(self._metrics.exposition, self._look()))
            self._writing.add_done_callback(self._written)
        page = await asyncio.shield(self._writing)
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE})

    def _written(self, _: asyncio.Task[bytes]) -> None:
        self._writing = None
