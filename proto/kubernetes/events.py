"""Events off the request path: at most one an object, reason and minute; the next one carries the count.

They are told at a pace, warnings first: neither the API server nor the loop that answers kube-scheduler is theirs.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable
from proto.kubernetes.notices import Notice
from proto.kubernetes.objects import EVENTS, Event, EventSource, ObjectMeta, ObjectReference
from proto.kubernetes.pace import Pace

log = logging.getLogger(__name__)

WINDOW_SECONDS = 60.0
PAUSE_SECONDS = 0.02
"""Between two events: fifty a second."""
ORDINARY_PER_SECOND = 10
"""Of those that are no warnings, in the long run: each is a write that the Bindings of other pods wait for."""
ORDINARY_AT_ONCE = 100
"""After a pause: the events of the first few pods are written at once."""
LONGEST_QUEUE = 1000
MOST_ORDINARY = 500
"""So many wait at most before one that is no warning is dropped."""
MOST_QUIET = 2_000
"""Beyond so many the matter that was told longest ago is forgotten, with what was held back of it."""
LONGEST_MESSAGE = 1024
"""What the API server accepts of an event's message."""


@dataclass(slots=True)
class _Quiet:
    """A matter that was told of; `until` is monotonic seconds, `held_back` counts since then."""

    until: float
    held_back: int = 0


@dataclass(frozen=True, slots=True, order=True)
class _Waiting:
    """In the order in which they are told."""

    is_ordinary: bool
    number: int
    subject: ObjectReference = field(compare=False)
    notice: Notice = field(compare=False)
    count: int = field(compare=False)
    at: datetime = field(compare=False)


class EventRecorder:
    """Takes notices without waiting and posts them one after the other."""

    def __init__(
        self, *, api: ApiServer, component: str, now: Callable[[], datetime], monotonic: Callable[[], float]
    ) -> None:
        self._api = api
        self._component = component
        self._now = now
        self._monotonic = monotonic
        self._queue: asyncio.PriorityQueue[_Waiting] = asyncio.PriorityQueue(LONGEST_QUEUE)
        self._quiet: dict[tuple[str, str, str], _Quiet] = {}
        """Those told of last come last."""
        self._ordinary = Pace(per_second=ORDINARY_PER_SECOND, burst=ORDINARY_AT_ONCE)
        self._number = 0

    def record(self, subject: ObjectReference, notice: Notice) -> None:
        """Dropped when the same was told within the minute, or when more happens than can be told."""
        matter = notice.message if notice.distinct else ""
        count = self._due((subject.uid or f"{subject.namespace}/{subject.name}", notice.reason, matter))
        if count and self._queue.qsize() < (LONGEST_QUEUE if notice.warning else MOST_ORDINARY):
            self._number += 1
            self._queue.put_nowait(
                _Waiting(not notice.warning, self._number, subject, notice, count=count, at=self._now())
            )

    async def run(self, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        """Posts until cancelled."""
        while True:
            waiting = await self._queue.get()
            await self._post(waiting)
            pause = self._ordinary.take(self._monotonic()) if waiting.is_ordinary else 0.0
            await sleep(max(pause, PAUSE_SECONDS))

    async def flush(self, seconds: float) -> None:
        """Posts what is waiting, for as long as that."""
        try:
            async with asyncio.timeout(seconds):
                while not self._queue.empty():
                    await self._post(self._queue.get_nowait())
        except TimeoutError:
            log.info("%d events are left unwritten", self._queue.qsize())

    def _due(self, key: tuple[str, str, str]) -> int:
        """How many times this happened since it was told last, now included; 0 while it is to be kept quiet."""
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

    def _event(self, waiting: _Waiting) -> Event:
        subject, notice = waiting.subject, waiting.notice
        stamp = waiting.at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return Event(
            metadata=ObjectMeta(
                name=f"{subject.name[:220]}.{int(waiting.at.timestamp() * 1e6):x}{waiting.number % 0x1000:03x}",
                namespace=subject.namespace or "default",
            ),
            involved_object=subject,
            reason=notice.reason,
            message=_shortened(notice.message),
            type="Warning" if notice.warning else "Normal",
            count=waiting.count,
            source=EventSource(component=self._component),
            first_timestamp=stamp,
            last_timestamp=stamp,
        )

    async def _post(self, waiting: _Waiting) -> None:
        event = self._event(waiting)
        try:
            await self._api.create(EVENTS, event, namespace=event.metadata.namespace)
        except (ApiError, ApiUnreachable) as error:
            subject = event.involved_object
            kind = subject.kind.lower()
            log.warning("event %s of %s %s is not written: %s", event.reason, kind, subject.name, error)


def _shortened(message: str) -> str:
    return message if len(message) <= LONGEST_MESSAGE else message[: LONGEST_MESSAGE - 1] + "…"
