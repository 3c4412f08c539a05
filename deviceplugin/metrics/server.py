"""Serves Prometheus and kubelet's probes: `/metrics`, `/healthz`, `/readyz` over HTTP (edge)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Generic, TypeVar

from aiohttp import web

from deviceplugin.metrics.metrics import CONTENT_TYPE, Metrics
from deviceplugin.metrics.telemetry import TELEMETRY_CONTENT_TYPE, telemetry_page
from deviceplugin.metrics.view import DaemonView, readiness
from deviceplugin.usage.telemetry import NodeTelemetry
from deviceplugin.usage.used import NodeSample
from program.address import ListenAddress
from program.listening import serving
from program.tasks import Tasks

log = logging.getLogger(__name__)

T = TypeVar("T")

FRESH_SECONDS = 1.0
"""The least seconds between two readings of the driver, for any number of scrapes."""
WAIT_SECONDS = 3.0
"""How long a scrape waits for a fresh sample before the last one is served."""


class MetricsAddressUnusable(Exception):
    """The address is invalid, or cannot be used; one sentence."""


@dataclass(frozen=True, slots=True)
class _Taken(Generic[T]):
    sample: T
    at: float


class Samples(Generic[T]):
    """The node's last sample; a request takes a new one if it is old. `reading` is its name in metrics."""

    def __init__(
        self,
        take: Callable[[], Awaitable[T]],
        metrics: Metrics,
        *,
        monotonic: Callable[[], float],
        reading: str = "usage",
    ) -> None:
        self._take = take
        self._reading = reading
        self._metrics = metrics
        self._monotonic = monotonic
        self._last: _Taken[T] | None = None
        self._tasks = Tasks()
        self._taking: asyncio.Task[None] | None = None
        self._problem = ""
        """Logged once, however often it is scraped."""

    async def current(self, wait_seconds: float = WAIT_SECONDS) -> tuple[T | None, float | None]:
        """Sample and its age in seconds; an old one when a fresh one takes too long, None before the first."""
        if self._last is None or self._age(self._last) >= FRESH_SECONDS:
            if self._taking is None or self._taking.done():
                self._taking = self._tasks.begin(self._refresh())
            await asyncio.wait([self._taking], timeout=wait_seconds)
        last = self._last
        return (None, None) if last is None else (last.sample, self._age(last))

    async def close(self) -> None:
        await self._tasks.end()

    def _age(self, taken: _Taken[T]) -> float:
        return self._monotonic() - taken.at

    async def _refresh(self) -> None:
        started = self._monotonic()
        try:
            sample = await self._take()
        except Exception as error:
            # On any error the daemon continues; the age of the last sample shows it.
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("the GPUs' %s could not be read: %s", self._reading, error)
            return
        self._problem = ""
        self._last = _Taken(sample, self._monotonic())
        self._metrics.nvml_read(self._reading, self._last.at - started)


class MetricsServer:
    """`view` is called at every scrape; it must not block."""

    def __init__(
        self,
        address: ListenAddress,
        metrics: Metrics,
        samples: Samples[NodeSample],
        telemetry: Samples[NodeTelemetry],
        view: Callable[[], DaemonView],
    ) -> None:
        self._address = address
        self._metrics = metrics
        self._samples = samples
        self._telemetry = telemetry
        self._view = view
        self.port: int | None = None
        """Where it listens, once it does: for port 0 the one that was free."""
        self.listening = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled. Raises MetricsAddressUnusable."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._samples.close)
            stack.push_async_callback(self._telemetry.close)
            await self._listen(stack)
            await asyncio.Event().wait()

    async def _listen(self, stack: AsyncExitStack) -> None:
        port = serving(self._application(), self._address.host, self._address.port, shutdown_seconds=1.0)
        try:
            _, self.port = await stack.enter_async_context(port)
        except OSError as error:
            problem = (error.strerror or str(error)).lower()
            raise MetricsAddressUnusable(
                f"cannot serve metrics on {self._address}: {problem}; choose another address"
            ) from error
        log.info("metrics are served on port %d", self.port)
        self.listening.set()

    def _application(self) -> web.Application:
        application = web.Application()
        application.add_routes(
            [
                web.get("/metrics", self._scrape),
                web.get("/metrics/dcgm", self._scrape_telemetry),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
            ]
        )
        return application

    async def _scrape(self, _: web.Request) -> web.Response:
        sample, age = await self._samples.current()
        page = self._metrics.exposition(self._view(), sample, age)
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE})

    async def _scrape_telemetry(self, _: web.Request) -> web.Response:
        telemetry, age = await self._telemetry.current()
        page = telemetry_page(self._view(), telemetry or NodeTelemetry(), age)
        return web.Response(text=page, headers={"Content-Type": TELEMETRY_CONTENT_TYPE})

    async def _healthz(self, _: web.Request) -> web.Response:
        """Answers from the event loop; that is enough, because no restart repairs a GPU."""
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        answer = readiness(self._view())
        return web.Response(status=200 if answer.ready else 503, text=f"{answer.sentence}\n")
