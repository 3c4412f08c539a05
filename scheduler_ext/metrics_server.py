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

    def application(self) -> web.Application:
        application = web.Application()
        application.add_routes([web.get("/metrics", self._scrape), *self._probes])
        return application

    async def _scrape(self, _: web.Request) -> web.Response:
        page = await asyncio.to_thread(self._metrics.exposition, self._look())
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE})
