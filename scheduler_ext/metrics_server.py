"""Edge to Prometheus: `/metrics` on a port of its own, so that it may be open while the verbs are not."""

import asyncio
from collections.abc import Callable

from aiohttp import web

from scheduler_ext.metric_families import Seen
from scheduler_ext.metrics import CONTENT_TYPE, Metrics


class MetricsServer:
    """`look` is called at every scrape, on the event loop; the page is written on another thread."""

    def __init__(self, metrics: Metrics, look: Callable[[], Seen]) -> None:
        self._metrics = metrics
        self._look = look

    def application(self) -> web.Application:
        application = web.Application()
        application.add_routes([web.get("/metrics", self._scrape)])
        return application

    async def _scrape(self, _: web.Request) -> web.Response:
        page = await asyncio.to_thread(self._metrics.exposition, self._look())
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE})
