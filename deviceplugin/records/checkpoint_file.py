"""Reads kubelet's checkpoint file (edge)."""

import asyncio
import logging
import os
from pathlib import Path

from deviceplugin.own_threads import OwnThreads
from deviceplugin.records.holdings import CheckpointUnreadable, Holding, ReadCheckpoint, decode_checkpoint
from program.tasks import Shared

log = logging.getLogger(__name__)

CHECKPOINT_NAME = "kubelet_internal_checkpoint"
_SILENT_SECONDS = 1.0
"""Seconds that one reading may take: less than kubelet gives an answer."""


def checkpoint_reader(kubelet_root: str, silent_seconds: float = _SILENT_SECONDS) -> ReadCheckpoint:
    """Returns a reader of the file; it decodes only when kubelet replaced the file, and returns None while there is
    none, or its disk does not answer in time.
    """
    path, thread = Path(kubelet_root, "device-plugins", CHECKPOINT_NAME), OwnThreads("checkpoint")
    known: tuple[tuple[int, int, int], tuple[Holding, ...] | None] | None = None
    problem = ""

    def blocking() -> tuple[Holding, ...] | None:
        nonlocal known
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            version = (found.st_ino, found.st_mtime_ns, found.st_size)
            if known is None or known[0] != version:
                known = version, _decoded(path, file.read())
        return known[1]

    # While the disk hangs, all callers wait for one reading.
    shared = Shared(lambda: thread.call(blocking))

    async def read() -> tuple[Holding, ...] | None:
        nonlocal problem
        found, why = None, ""
        try:
            async with asyncio.timeout(silent_seconds):
                found = await shared.result()
        except FileNotFoundError:
            pass
        except OSError as error:
            why = error.strerror or f"no answer in {silent_seconds:g} s"
        if why not in ("", problem):
            log.warning("%s cannot be read: %s", path, why)
        problem = why
        return found

    return read


def _decoded(path: Path, text: bytes) -> tuple[Holding, ...] | None:
    try:
        return decode_checkpoint(text)
    except CheckpointUnreadable as error:
        log.warning("%s: %s", path, error)
        return None
