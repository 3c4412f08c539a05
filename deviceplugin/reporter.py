"""Keeps the Node saying what the GPUs are: a patch when it does not, and nothing while it does."""

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime

from deviceplugin.apiserver import OwnNode
from deviceplugin.gpus import Gpus
from deviceplugin.news import News
from deviceplugin.reporting import AllocationMode, Report, report
from deviceplugin.settings import HamiScheduler
from proto.kubernetes.client import ApiError, ApiUnreachable

log = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS = 0.2
_SLOWEST_RETRY_SECONDS = 30.0
_PAUSE_SECONDS = 0.5
"""At most one report in this time, whoever else may be writing the same annotations."""


class Reporter:
    """`mode` tells None while it is not chosen; then nothing is reported.

    `reported` is called after each patch, with whether the API server took it.
    """

    def __init__(
        self,
        own: OwnNode,
        gpus: Gpus,
        news: News,
        *,
        mode: Callable[[], AllocationMode | None],
        scheduler: HamiScheduler,
        now: Callable[[], datetime],
        reported: Callable[[bool], None],
    ) -> None:
        self._own = own
        self._gpus = gpus
        self._news = news
        self._mode = mode
        self._scheduler = scheduler
        self._now = now
        self._reported = reported
        self._answered_at: datetime | None = None

    async def run(self) -> None:
        """Until cancelled."""
        delay = _FIRST_RETRY_SECONDS
        while True:
            news = self._news.next()
            now = self._now()
            due = self._due(now)
            if due.body is None:
                await self._wait(news, due.look_again)
                continue
            try:
                await self._own.patch_node(due.body)
            except (ApiError, ApiUnreachable) as error:
                log.warning("the GPUs could not be reported: %s", error)
                self._reported(False)
                await asyncio.sleep(delay)
                delay = min(2 * delay, _SLOWEST_RETRY_SECONDS)
                continue
            log.info("reported %d GPUs on node %s", len(self._gpus.inventory.devices), self._own.name)
            self._answered_at = now
            self._reported(True)
            delay = _FIRST_RETRY_SECONDS
            await asyncio.sleep(_PAUSE_SECONDS)

    def _due(self, now: datetime) -> Report:
        inventory, mode = self._gpus.inventory, self._mode()
        if self._own.node is None or mode is None or not inventory.devices:
            return Report()
        return report(
            self._own.node,
            inventory.devices,
            inventory.scores,
            mode,
            scheduler=self._scheduler,
            answered_at=self._answered_at,
            now=now,
        )

    async def _wait(self, news: asyncio.Event, until: datetime | None) -> None:
        try:
            async with asyncio.timeout(None if until is None else (until - self._now()).total_seconds()):
                await news.wait()
        except TimeoutError:
            return
