"""Serves `/metrics` and the probes on their own port, which may be open to other hosts (edge of Prometheus and
kubelet).
"""

from collections.abc import Callable, Sequence
from functools import partial

from aiohttp import web

from program.shared_page import SharedPage, Write, open_port
from scheduler_ext.metrics.counters import CONTENT_TYPE, ExtenderMetrics
from scheduler_ext.metrics.families import MetricsInput


def metrics_port(
    metrics: ExtenderMetrics,
    read: Callable[[], MetricsInput],
    probes: Sequence[web.RouteDef],
    monotonic: Callable[[], float],
) -> web.Application:
    """`read` runs on the event loop, once for each page."""

    async def written() -> Write:
        return partial(metrics.exposition, read())

    return open_port({"/metrics": SharedPage(CONTENT_TYPE, written, monotonic)}, probes)
