"""How both programs log: lines on standard error, as text or JSON, without credentials."""

import json
import logging
import re
import sys
import time

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
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


def _without_credentials(text: str) -> str:
    return _CREDENTIALS.sub(lambda found: f"{found[1] or found[2]}***", text)


class _TextLines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Keeps the message on one line: the name of a pod that is not created yet may hold any character."""
        return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), super().formatMessage(record))

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
            "message": record.getMessage(),
        }
        line |= {key: str(value) for key, value in vars(record).items() if key not in _PLAIN}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps({key: _without_credentials(value) for key, value in line.items()}, ensure_ascii=False)
