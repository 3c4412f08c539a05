"""The order of writes of the Node: events in, commands out; the time is an argument. Pure.

| event | command |
|---|---|
| Looked, and parts differ that may be written | Write the one that was written longest ago |
| Looked, and no such part | AwaitChange for a change, at most until a part may be written or may differ |
| Taken | Pause: none, or one that doubles with each write of the last minute beyond `UNHURRIED` |
| WriteRefused: the API server refused the patch of this part | no Pause, but the part waits, each time twice as long |
| Unreachable | AwaitReturn of the API server, each time twice as long |

The writes of a minute are counted, whatever they contain: a second daemon with other settings, or another program, may
undo each of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

FIRST_RETRY_SECONDS = 0.2
SLOWEST_RETRY_SECONDS = 30.0
PAUSE_SECONDS = 0.5
"""Seconds between two writes of one part."""
COUNTED_SECONDS = 60.0
UNHURRIED = 10
"""Writes in `COUNTED_SECONDS` without a pause: all parts at the start of a daemon, and a GPU that fails."""
SLOWEST_PAUSE_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class Looked:
    """`due`: the parts that differ. `again_in`: seconds after which time alone may make a part differ."""

    due: tuple[str, ...]
    again_in: float | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    part: str


@dataclass(frozen=True, slots=True)
class WriteRefused:
    part: str


@dataclass(frozen=True, slots=True)
class Unreachable:
    pass


@dataclass(frozen=True, slots=True)
class Write:
    part: str


@dataclass(frozen=True, slots=True)
class AwaitChange:
    """A change ends it."""

    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """No change ends it."""

    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class AwaitReturn:
    """A watch that works again ends it: what is due after half a minute away must not wait for half a minute more."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Part:
    free_at: float = float("-inf")
    wrote_at: float = float("-inf")
    retry: float = FIRST_RETRY_SECONDS
    """Seconds of the next wait after a refusal."""


@dataclass(frozen=True, slots=True)
class NodePace:
    parts: Mapping[str, Part] = field(default_factory=dict)
    recent: tuple[float, ...] = ()
    """The times of the writes of the last minute."""
    retry: float = FIRST_RETRY_SECONDS
    """Seconds of the next wait while the API server is unreachable."""


def step(
    pace: NodePace, event: Looked | Taken | WriteRefused | Unreachable, at: float
) -> tuple[NodePace, Write | AwaitChange | Pause | AwaitReturn]:
    """Returns the state after the event, and what to do next. `at` is in seconds of a clock that is never set."""
    match event:
        case Looked():
            return pace, _after_look(pace, event, at)
        case Taken(part):
            recent = (*(each for each in pace.recent if at - each < COUNTED_SECONDS), at)
            written = Part(free_at=at + PAUSE_SECONDS, wrote_at=at)
            return NodePace({**pace.parts, part: written}, recent), Pause(_pause(len(recent)))
        case WriteRefused(part):
            before = pace.parts.get(part, Part())
            waiting = replace(before, free_at=at + before.retry, retry=min(2 * before.retry, SLOWEST_RETRY_SECONDS))
            return replace(pace, parts={**pace.parts, part: waiting}, retry=FIRST_RETRY_SECONDS), Pause()
        case Unreachable():
            return replace(pace, retry=min(2 * pace.retry, SLOWEST_RETRY_SECONDS)), AwaitReturn(pace.retry)


def _after_look(pace: NodePace, look: Looked, at: float) -> Write | AwaitChange:
    parts = {name: pace.parts.get(name, Part()) for name in look.due}
    free = [name for name, part in parts.items() if part.free_at <= at]
    if free:
        return Write(min(free, key=lambda name: parts[name].wrote_at))
    waits = [part.free_at - at for part in parts.values()] + ([] if look.again_in is None else [look.again_in])
    return AwaitChange(min(waits, default=None))


def _pause(writes: int) -> float:
    """Returns the seconds after the last of these writes, all of the last minute."""
    beyond = writes - UNHURRIED
    return min(PAUSE_SECONDS * 2.0**beyond, SLOWEST_PAUSE_SECONDS) if beyond > 0 else 0.0
