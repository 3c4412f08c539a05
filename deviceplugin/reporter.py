"""Keeps the Node up to date: it patches when something differs, and does nothing otherwise."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

from deviceplugin.changes import Changes
from deviceplugin.report import Report
from proto.kubernetes.errors import ApiError, ApiUnreachable, Conflict

log = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS = 0.2
_SLOWEST_RETRY_SECONDS = 30.0
_PAUSE_SECONDS = 0.5
"""At most one report in this time, whatever else writes the same."""
_COUNTED_SECONDS = 60.0
_UNHURRIED = 5
"""Reports in `_COUNTED_SECONDS` that need no longer pause. Each one beyond them doubles it: another writer may undo
them again and again, as a second daemon with other settings does.
"""
_SLOWEST_PAUSE_SECONDS = 8.0


class Reporter:
    """`due` is asked after all changes, with the time now and that of the last report; `write` brings it to the Node.

    `reported` is called after each patch, with whether the API server took it. `what` is said in the logs.
    """

    def __init__(
        self,
        what: Callable[[], str],
        changes: Changes,
        *,
        due: Callable[[datetime, datetime | None], Report],
        write: Callable[[Mapping[str, object]], Awaitable[None]],
        now: Callable[[], datetime],
        reported: Callable[[bool], None] = lambda _: None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._what = what
        self._changes = changes
        self._due = due
        self._write = write
        self._now = now
        self._reported = reported
        self._sleep = sleep

    async def run(self) -> None:
        """Until cancelled."""
        delay = _FIRST_RETRY_SECONDS
        last: datetime | None = None
        recent: list[datetime] = []
        while True:
            change = self._changes.next()
            now = self._now()
            due = self._due(now, last)
            if due.body is None:
                await self._wait(change, due.look_again)
                continue
            try:
                await self._write(due.body)
            except (ApiError, ApiUnreachable) as error:
                if isinstance(error, Conflict):
                    log.debug("another program wrote before %s were reported; reading again", self._what())
                else:
                    log.warning("cannot write %s: %s", self._what(), error)
                    self._reported(False)
                await self._sleep(delay)
                delay = min(2 * delay, _SLOWEST_RETRY_SECONDS)
                continue
            log.info("reported %s", self._what())
            recent = [*(at for at in recent if 0 <= (now - at).total_seconds() < _COUNTED_SECONDS), now]
            last = now
            self._reported(True)
            delay = _FIRST_RETRY_SECONDS
            await self._sleep(_pause(len(recent)))

    async def _wait(self, change: asyncio.Event, until: datetime | None) -> None:
        try:
            async with asyncio.timeout(None if until is None else (until - self._now()).total_seconds()):
                await change.wait()
        except TimeoutError:
            return


def _pause(reports: int) -> float:
    """Returns the seconds after the last of these reports, all of the last minute."""
    return min(_PAUSE_SECONDS * 2.0 ** max(0, reports - _UNHURRIED), _SLOWEST_PAUSE_SECONDS)
