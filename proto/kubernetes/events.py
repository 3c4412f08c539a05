"""Writes Events in the background: at most one for each object, reason and minute; the next one has the count.

They are written at a limited rate, warnings first, so that they delay neither the API server nor the event loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import NamedTuple

from proto.decoding import shortened
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable
from proto.kubernetes.objects import EVENTS, Event, EventSource, Notice, ObjectMeta, ObjectReference


class Pace:
    """The generic cell rate algorithm (ITU-T I.371): a turn waits while earlier ones are ahead of the rate."""

    def __init__(self, *, per_second: float, burst: int) -> None:
        """Creates a limit. Both values are above 0; `burst` is how many turns may be taken at once."""
        self._interval_seconds = 1 / per_second
        self._ahead_seconds = (burst - 1) * self._interval_seconds
        self._next = -inf

    def take(self, now: float) -> float:
        """Takes the next turn and returns the seconds until it. `now` is monotonic seconds."""
        turn = max(self._next, now)
        self._next = turn + self._interval_seconds
        return max(turn - self._ahead_seconds - now, 0.0)


log = logging.getLogger(__name__)

WINDOW_SECONDS = 60.0
PAUSE_SECONDS = 0.02
"""Seconds between two events: fifty events a second."""
ORDINARY_PER_SECOND = 10
"""Normal events a second in the long run: each is a write that delays Bindings of other pods."""
ORDINARY_AT_ONCE = 100
"""Normal events at once after a pause, so that the first few pods' events are written immediately."""
LONGEST_QUEUE = 1000
MOST_ORDINARY = 500
"""When this many wait, a Normal event is dropped."""
MOST_QUIET = 2_000
"""Beyond this many, the entry written longest ago is forgotten, with its count."""
LONGEST_MESSAGE = 1024
"""The longest event message that the API server accepts."""


@dataclass(slots=True)
class _Quiet:
    """The last event of one object and reason. `until` is monotonic seconds; `held_back` counts repetitions since."""

    until: float
    held_back: int = 0


class _WaitingEvent(NamedTuple):
    """Events in the order in which they are written: no two have the same number."""

    is_ordinary: bool
    number: int
    subject: ObjectReference
    notice: Notice
    times: int
    at: datetime


class EventRecorder:
    """Takes notices without waiting and writes them one after the other."""

    def __init__(
        self, *, api: ApiServer, component: str, now: Callable[[], datetime], monotonic: Callable[[], float]
    ) -> None:
        self._api = api
        self._component = component
        self._now = now
        self._monotonic = monotonic
        self._queue: asyncio.PriorityQueue[_WaitingEvent] = asyncio.PriorityQueue(LONGEST_QUEUE)
        self._quiet: dict[tuple[str, str, str], _Quiet] = {}
        """The most recently written are last."""
        self._ordinary = Pace(per_second=ORDINARY_PER_SECOND, burst=ORDINARY_AT_ONCE)
        self._number = 0

    def record(self, subject: ObjectReference, notice: Notice) -> None:
        """Queues a notice. It is dropped when the same was written within the minute, or when the queue is full."""
        matter = notice.message if notice.distinct else ""
        count = self._due((subject.uid or f"{subject.namespace}/{subject.name}", notice.reason, matter))
        if count and self._queue.qsize() < (LONGEST_QUEUE if notice.warning else MOST_ORDINARY):
            self._number += 1
            self._queue.put_nowait(
                _WaitingEvent(not notice.warning, self._number, subject, notice, times=count, at=self._now())
            )

    async def run(self, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        """Writes events until cancelled."""
        while True:
            waiting = await self._queue.get()
            await self._post(waiting)
            pause = self._ordinary.take(self._monotonic()) if waiting.is_ordinary else 0.0
            await sleep(max(pause, PAUSE_SECONDS))

    async def flush(self, seconds: float) -> None:
        """Writes what is waiting, for at most that long."""
        try:
            async with asyncio.timeout(seconds):
                while not self._queue.empty():
                    await self._post(self._queue.get_nowait())
        except TimeoutError:
            log.info("%d events were not written", self._queue.qsize())

    def _due(self, key: tuple[str, str, str]) -> int:
        """Returns how often this happened since it was last written, this time included; 0 while it must not be
        written.
        """
        now = self._monotonic()
        quiet = self._quiet.get(key)
        if quiet is not None and now < quiet.until:
            quiet.held_back += 1
            return 0
        self._quiet.pop(key, None)
        if len(self._quiet) >= MOST_QUIET:
            del self._quiet[next(iter(self._quiet))]
        self._quiet[key] = _Quiet(until=now + WINDOW_SECONDS)
        return 1 + (quiet.held_back if quiet is not None else 0)

    def _event(self, waiting: _WaitingEvent) -> Event:
        subject, notice = waiting.subject, waiting.notice
        stamp = waiting.at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return Event(
            metadata=ObjectMeta(
                name=f"{subject.name[:220]}.{int(waiting.at.timestamp() * 1e6):x}{waiting.number % 0x1000:03x}",
                namespace=subject.namespace or "default",
            ),
            involved_object=subject,
            reason=notice.reason,
            message=shortened(notice.message, LONGEST_MESSAGE),
            type="Warning" if notice.warning else "Normal",
            count=waiting.times,
            source=EventSource(component=self._component),
            first_timestamp=stamp,
            last_timestamp=stamp,
        )

    async def _post(self, waiting: _WaitingEvent) -> None:
        event = self._event(waiting)
        try:
            await self._api.create(EVENTS, event, namespace=event.metadata.namespace)
        except (ApiError, ApiUnreachable) as error:
            subject = event.involved_object
            kind = subject.kind.lower()
            log.warning("cannot write event %s of %s %s: %s", event.reason, kind, subject.name, error)
