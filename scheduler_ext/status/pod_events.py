"""The events of a pod as its page shows them. No IO."""

from collections.abc import Sequence

from msgspec import Struct

from proto.kubernetes.objects import EventSource, Object, ObjectMeta
from scheduler_ext.cluster.pod_index import seconds_of

MOST_SHOWN = 20
LONGEST_MESSAGE = 1024


class ShownEvent(Struct, frozen=True, omit_defaults=True):
    """`at` is the time in seconds since 1970 when it last happened."""

    at: float
    reason: str
    message: str
    source: str = ""
    count: int = 1
    warning: bool = False


class PodEvents(Struct, frozen=True):
    """The last events, the newest first, or why they cannot be read."""

    events: tuple[ShownEvent, ...] = ()
    problem: str = ""


class _Series(Object):
    count: int = 0
    last_observed_time: str | None = None


class SeenEvent(Object):
    """An Event, also one written through events.k8s.io, which has a series in place of counts."""

    metadata: ObjectMeta
    reason: str = ""
    message: str = ""
    type: str = ""
    count: int | None = None
    source: EventSource | None = None
    reporting_component: str | None = None
    event_time: str | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    series: _Series | None = None


def shown_events(events: Sequence[SeenEvent]) -> tuple[ShownEvent, ...]:
    return tuple(sorted(map(_shown, events), key=lambda each: -each.at)[:MOST_SHOWN])


def _shown(event: SeenEvent) -> ShownEvent:
    series = event.series or _Series()
    times = (series.last_observed_time, event.last_timestamp, event.event_time, event.first_timestamp)
    return ShownEvent(
        at=seconds_of(next(filter(None, (*times, event.metadata.creation_timestamp)), None)),
        reason=event.reason,
        message=event.message[:LONGEST_MESSAGE],
        source=(event.source.component if event.source is not None else "") or event.reporting_component or "",
        count=max(series.count, event.count or 1),
        warning=event.type == "Warning",
    )
