"""Where log lines go and what they look like."""

import json
import logging
import sys
from datetime import UTC, datetime

_OURS = ("scheduler_ext", "proto")


class JsonLines(logging.Formatter):
    """One JSON object a line, its time in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure_logging(log_format: str, level: str) -> None:
    """To standard error, as `text` or `json`.

    `level` is ours. Libraries log warnings and worse: their debug lines hold what the API server sent, and among that
    is the webhook's private key.
    """
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if log_format == "json" else text)
    ours = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(level=max(ours, logging.WARNING), handlers=[handler], force=True)
    for name in _OURS:
        logging.getLogger(name).setLevel(ours)
