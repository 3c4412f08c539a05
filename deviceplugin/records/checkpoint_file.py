"""Reads kubelet's checkpoint file (edge)."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

from deviceplugin.records.checkpoint import CheckpointUnreadable, Holding, decode_checkpoint

log = logging.getLogger(__name__)

CHECKPOINT_NAME = "kubelet_internal_checkpoint"


def checkpoint_reader(kubelet_root: str) -> Callable[[], tuple[Holding, ...] | None]:
    """Returns a reader of the file; it decodes only when kubelet replaced the file, and returns None while there is
    none.
    """
    path = Path(kubelet_root, "device-plugins", CHECKPOINT_NAME)
    known: tuple[tuple[int, int, int], tuple[Holding, ...] | None] | None = None
    problem = ""

    def read() -> tuple[Holding, ...] | None:
        nonlocal known, problem
        try:
            with path.open("rb") as file:
                found = os.fstat(file.fileno())
                version = (found.st_ino, found.st_mtime_ns, found.st_size)
                if known is None or known[0] != version:
                    known = version, _decoded(path, file.read())
        except FileNotFoundError:
            return None
        except OSError as error:
            if str(error) != problem:
                problem = str(error)
                log.warning("%s cannot be read: %s", path, error.strerror)
            return None
        problem = ""
        return known[1]

    return read


def _decoded(path: Path, text: bytes) -> tuple[Holding, ...] | None:
    try:
        return decode_checkpoint(text)
    except CheckpointUnreadable as error:
        log.warning("%s: %s", path, error)
        return None
