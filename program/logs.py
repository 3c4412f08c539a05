"""Log lines of both programs: written on standard error, as text or JSON, without credentials."""

import json
import logging
import re
import sys
import time
from typing import Any

from program.words import counted, spaced

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
LONGEST_MESSAGE = 2000
"""Characters. A message may contain what a stranger has sent, such as the name of a pod that is not created yet."""
_LONGEST_TRACEBACK = 10_000
_CREDENTIALS = re.compile(r"((?:bearer|basic)\s+)[^\s\"']+|(://[^/\s:@]+:)[^/\s@]+(?=@)", re.IGNORECASE)


def set_up_logging(program: str, log_format: str, log_level: str) -> None:
    """Logs as `text` or `json`. `log_level` applies to the package `program` and to this one.

    Libraries log warnings and errors only: their debug lines hold what the API server sent, including the webhook's
    private key.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if log_format == "json" else _TextLines())
    level = logging.getLevelNamesMapping()[log_level.upper()]
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler], force=True)
    for name in (program, "program", "proto"):
        logging.getLogger(name).setLevel(level)


class RateLimit(logging.Filter):
    """Lets some records of a logger through at once, then one a second. That one counts those left out before."""

    def __init__(self, *, at_once: int) -> None:
        super().__init__()
        self._at_once = self._left = float(at_once)
        self._last = 0.0
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        self._left = min(self._left + max(record.created - self._last, 0.0), self._at_once)
        self._last = record.created
        if self._left < 1:
            self._left_out += 1
            return False
        self._left -= 1
        if self._left_out:
            record.msg = f"{record.getMessage()} ({counted(self._left_out, 'earlier message')} not shown)"
            record.args, self._left_out = (), 0
        return True


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({spaced(len(text) - most)} more characters)"


def _without_credentials(text: str) -> str:
    return _CREDENTIALS.sub(lambda found: f"{found[1] or found[2]}***", text)


class _TextLines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Keeps the message on one line: the name of a pod that is not created yet may hold any character."""
        record.message = _cut(record.message, LONGEST_MESSAGE)
        return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        return _cut(super().formatException(ei), _LONGEST_TRACEBACK)

    def format(self, record: logging.LogRecord) -> str:
        return _without_credentials(super().format(record))


class _JsonLines(logging.Formatter):
    """Writes one object a line; a caller's `extra` fields are beside the message."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__()
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _cut(record.getMessage(), LONGEST_MESSAGE),
        }
        line |= {key: str(value) for key, value in vars(record).items() if key not in _PLAIN}
        if record.exc_info:
            line["exception"] = _cut(self.formatException(record.exc_info), _LONGEST_TRACEBACK)
        return json.dumps({key: _without_credentials(value) for key, value in line.items()}, ensure_ascii=False)
