"""Keeps the Node saying what it should: a patch when it does not, and nothing while it does."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

from deviceplugin.news import News
from deviceplugin.reporting import Report
from proto.kubernetes.client import ApiError, ApiUnreachable

log = logging.getLogger(__name__)

_CONFLICT = 409
_FIRST_RETRY_SECONDS = 0.2
_SLOWEST_RETRY_SECONDS = 30.0
_PAUSE_SECONDS = 0.5
"""At most one report in this time, whatever else writes the same."""


class Reporter:
    """`due` is asked after all news, with the time now and that of the last report; `write` brings it to the Node.

    `reported` is called after each patch, with whether the API server took it. `what` is said in the logs.
    """

    def __init__(
        self,
        what: Callable[[], str],
        news: News,
        *,
        due: Callable[[datetime, datetime | None], Report],
        write: Callable[[Mapping[str, object]], Awaitable[None]],
        now: Callable[[], datetime],
        reported: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._what = what
        self._news = news
        self._due = due
        self._write = write
        self._now = now
        self._reported = reported

    async def run(self) -> None:
        """Until cancelled."""
        delay = _FIRST_RETRY_SECONDS
        last: datetime | None = None
        while True:
            news = self._news.next()
            now = self._now()
            due = self._due(now, last)
            if due.body is None:
                await self._wait(news, due.look_again)
                continue
            try:
                await self._write(due.body)
            except (ApiError, ApiUnreachable) as error:
                if isinstance(error, ApiError) and error.status == _CONFLICT:
                    log.debug("another wrote before %s were reported; looking again", self._what())
                else:
                    log.warning("%s could not be reported: %s", self._what(), error)
                    self._reported(False)
                await asyncio.sleep(delay)
                delay = min(2 * delay, _SLOWEST_RETRY_SECONDS)
                continue
            log.info("reported %s", self._what())
            last = now
            self._reported(True)
            delay = _FIRST_RETRY_SECONDS
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _wait(self, news: asyncio.Event, until: datetime | None) -> None:
        try:
            async with asyncio.timeout(None if until is None else (until - self._now()).total_seconds()):
                await news.wait()
        except TimeoutError:
            return
