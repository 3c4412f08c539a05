"""Keeps the history of the status page in a small file, for the process after this one (edge)."""

import logging
from pathlib import Path

log = logging.getLogger(__name__)

LARGEST_BYTES = 1024 * 1024


class HistoryFile:
    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> bytes:
        """Returns what was written; nothing without a file, or of one that cannot be read."""
        try:
            with self._path.open("rb") as file:
                return file.read(LARGEST_BYTES)
        except FileNotFoundError:
            return b""
        except OSError as error:
            log.warning("the page's history in %s cannot be read: %s", self._path, error.strerror)
            return b""

    def write(self, content: bytes) -> None:
        """Replaces the file. The page needs none: what cannot be written is only logged."""
        unfinished = self._path.with_suffix(".new")
        try:
            unfinished.write_bytes(content)
            unfinished.replace(self._path)
        except OSError as error:
            log.warning("the page's history cannot be written to %s: %s", self._path, error.strerror)
