"""Schedules of CronJobs (pure). Source: Kubernetes documentation, "CronJob", and crontab(5)."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

_NAMED = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_UNITS = {"h": 3600, "m": 60, "s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_PART = re.compile(r"([0-9]{1,6}(?:\.[0-9]*)?)(h|ms|m|s|us|ns)")
_EVERY = re.compile(rf"@every ((?:{_PART.pattern})+)")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS = (("minute", 0, 59, ()), ("hour", 0, 23, ()), ("day of month", 1, 31, ()), ("month", 1, 12, _MONTHS),
           ("day of week", 0, 6, _DAYS))  # fmt: skip
_MOST_MINUTES = 100 * 24 * 60
"""A schedule that was due longer ago counts as not due."""


class BadSchedule(ValueError):
    """The message is one sentence."""


@dataclass(frozen=True, slots=True)
class Schedule:
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    either_day: bool
    """True if a day of the month or one of the week suffices."""
    every: timedelta | None = None
    """The time between two, for a schedule that does not go by the clock."""

    def latest(self, after: datetime, until: datetime, zone: tzinfo = UTC) -> datetime | None:
        """Returns the last time of the schedule in (after, until]; None if there is none. Both are of UTC."""
        if self.every is not None:
            times = (until - after) // self.every
            return after + times * self.every if times > 0 else None
        at = until.replace(second=0, microsecond=0)
        for _ in range(_MOST_MINUTES):
            if at <= after:
                return None
            # A local time that comes twice is due twice, and one that is left out not at all.
            local = at.astimezone(zone)
            if self._is_due(local):
                return local
            at -= timedelta(minutes=1)
        return None

    def _is_due(self, at: datetime) -> bool:
        days = at.day in self.days, at.isoweekday() % 7 in self.weekdays
        return (
            at.minute in self.minutes
            and at.hour in self.hours
            and at.month in self.months
            and (any(days) if self.either_day else all(days))
        )


def read_schedule(text: str) -> Schedule:
    """Raises BadSchedule."""
    if every := _EVERY.fullmatch(text):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(every[1]))
        none = frozenset[int]()
        return Schedule(none, none, none, none, none, either_day=False, every=timedelta(seconds=max(int(seconds), 1)))
    if text.startswith(("TZ=", "CRON_TZ=")):
        raise BadSchedule("cannot use TZ or CRON_TZ in schedule, use timeZone field instead")
    parts = _NAMED.get(text, text).split()
    if len(parts) != len(_FIELDS):
        raise BadSchedule(f"expected exactly 5 fields, found {len(parts)}: [{text}]")
    minutes, hours, days, months, weekdays = (_field(part, *field) for part, field in zip(parts, _FIELDS, strict=True))
    either_day = not any(parts[place].startswith(("*", "?")) for place in (2, 4))
    return Schedule(minutes, hours, days, months, weekdays, either_day)


def _field(text: str, what: str, least: int, most: int, names: tuple[str, ...]) -> frozenset[int]:
    found: set[int] = set()
    for part in text.lower().split(","):
        span, slash, step = part.partition("/")
        first, dash, last = span.partition("-")
        if span in ("*", "?"):
            low, high = least, most
        else:
            low = _number(first, what, least, names)
            high = _number(last, what, least, names) if dash else most if slash else low
        every = int(step) if step.isascii() and step.isdigit() else int(not slash)
        if not every or low < least or high > most or (dash and high < low):
            raise BadSchedule(f"{part} is no {what} from {least} to {most}")
        found |= set(range(low, high + 1, every))
    return frozenset(found)


def _number(text: str, what: str, least: int, names: tuple[str, ...]) -> int:
    if text in names:
        return names.index(text) + least
    if not (text.isascii() and text.isdigit()):
        raise BadSchedule(f"{text!r} is no {what}")
    return int(text)
