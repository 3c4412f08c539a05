"""Serves Prometheus and kubelet's probes: `/metrics`, `/healthz`, `/readyz` over HTTP (edge)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from aiohttp import web

from deviceplugin.metrics.metrics import CONTENT_TYPE, Metrics
from deviceplugin.metrics.series import MOST_VGPUS
from deviceplugin.metrics.telemetry import TELEMETRY_CONTENT_TYPE, telemetry_page
from deviceplugin.metrics.view import DaemonView, readiness
from deviceplugin.usage.last_use import LastUse, node_use, with_sole_holders
from deviceplugin.usage.telemetry import NodeTelemetry
from deviceplugin.usage.used import NodeSample, Usage, node_usage
from program.address import ListenAddress
from program.listening import serving
from program.shared_page import OPEN, SharedPage, Write, open_port
from program.tasks import Tasks
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.daemon_usage import USAGE_PATH, encode_node_use

log = logging.getLogger(__name__)

T = TypeVar("T")

FRESH_SECONDS = 1.0
"""The least seconds between two readings of the driver, for any number of scrapes."""
LOOK_SECONDS = 60.0
"""The seconds between two readings that the daemon makes for itself, to know which containers do not use their GPUs."""
WAIT_SECONDS = 3.0
"""How long a scrape waits for a fresh sample before the last one is served."""


class MetricsAddressUnusable(Exception):
    """The address is invalid, or cannot be used; one sentence."""


@dataclass(frozen=True, slots=True)
class _TakenSample(Generic[T]):
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
        took: Callable[[T], None] = lambda _: None,
    ) -> None:
        """`took` gets each sample once."""
        self._take = take
        self._took = took
        self._reading = reading
        self._metrics = metrics
        self._monotonic = monotonic
        self._last: _TakenSample[T] | None = None
        self._tasks = Tasks()
        self._taking: asyncio.Task[None] | None = None
        self._problem = ""
        """Logged once, however often it is scraped."""

    async def current(self, wait_seconds: float = WAIT_SECONDS) -> tuple[T | None, float | None]:
        """Returns a sample and its age in seconds: an old one if a fresh one takes too long, None before the first."""
        if self._last is None or self._age(self._last) >= FRESH_SECONDS:
            if self._taking is None or self._taking.done():
                self._taking = self._tasks.begin(self._refresh())
            await asyncio.wait([self._taking], timeout=wait_seconds)
        last = self._last
        return (None, None) if last is None else (last.sample, self._age(last))

    async def close(self) -> None:
        await self._tasks.end()

    def _age(self, taken: _TakenSample[T]) -> float:
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
        self._last = _TakenSample(sample, self._monotonic())
        self._took(sample)
        self._metrics.nvml_read(self._reading, self._last.at - started)


@dataclass(frozen=True, slots=True, kw_only=True)
class UseWatch:
    """Follows who uses the GPUs, from every reading of the driver. `now` is Unix time in seconds."""

    view: Callable[[], DaemonView]
    monotonic: Callable[[], float]
    now: Callable[[], float]
    last: LastUse = field(default_factory=LastUse)

    def is_needed(self) -> bool:
        """Returns whether a pod holds a GPU: without one, no use has to be remembered."""
        return any(DEVICES_ALLOCATED in pod.metadata.annotations for pod in self.view().pods.values())

    def saw(self, sample: NodeSample) -> None:
        self.last.see(_usage(self.view(), sample), self.monotonic(), wall=self.now())

    def page(self, view: DaemonView, sample: NodeSample) -> bytes:
        """Returns the answer to the extender. It may run on any thread."""
        usage, now = _usage(view, sample), self.monotonic()
        return encode_node_use(node_use(view.node_name, sample.gpus, usage, self.last, now, most=MOST_VGPUS))


def _usage(view: DaemonView, sample: NodeSample) -> Usage:
    indices = {device.uuid: device.index for device in view.devices}
    return with_sole_holders(node_usage(view.pods.values(), sample, indices), sample.gpus)


class MetricsServer:
    """`view` is called for every page and readiness probe; it must not block."""

    def __init__(
        self,
        address: ListenAddress,
        metrics: Metrics,
        samples: Samples[NodeSample],
        telemetry: Samples[NodeTelemetry],
        view: Callable[[], DaemonView],
        *,
        use: UseWatch,
        monotonic: Callable[[], float],
    ) -> None:
        self._use = use
        self._address = address
        self._metrics = metrics
        self._samples = samples
        self._telemetry = telemetry
        self._view = view
        self._monotonic = monotonic
        self.port: int | None = None
        """The place where it listens, once it does: for port 0 the one that was free."""
        self.listening = asyncio.Event()

    async def run(self) -> None:
        """Waits until cancelled. Raises MetricsAddressUnusable."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._samples.close)
            stack.push_async_callback(self._telemetry.close)
            await self._listen(stack)
            while True:
                if self._use.is_needed():
                    await self._samples.current()
                await asyncio.sleep(LOOK_SECONDS)

    async def _listen(self, stack: AsyncExitStack) -> None:
        host, number = self._address.host, self._address.port
        port = serving(self._application(), host, number, shutdown_seconds=1.0, patience=OPEN)
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
        pages = {
            "/metrics": SharedPage(CONTENT_TYPE, self._look, self._monotonic),
            USAGE_PATH: SharedPage("application/json", self._look_at_use, self._monotonic),
            "/metrics/dcgm": SharedPage(TELEMETRY_CONTENT_TYPE, self._look_at_telemetry, self._monotonic),
        }
        return open_port(pages, [web.get("/healthz", self._healthz), web.get("/readyz", self._readyz)])

    async def _look(self) -> Write:
        sample, age = await self._samples.current()
        view = self._view()
        return lambda: [self._metrics.exposition(view, sample, age)]

    async def _look_at_use(self) -> Write:
        sample, _ = await self._samples.current()
        view = self._view()
        return lambda: [self._use.page(view, sample or NodeSample())]

    async def _look_at_telemetry(self) -> Write:
        telemetry, age = await self._telemetry.current()
        view = self._view()
        return lambda: [telemetry_page(view, telemetry or NodeTelemetry(), age).encode()]

    async def _healthz(self, _: web.Request) -> web.Response:
        """Answers from the event loop; that is enough, because no restart repairs a GPU."""
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        answer = readiness(self._view())
        return web.Response(status=200 if answer.ready else 503, text=f"{answer.sentence}\n")
