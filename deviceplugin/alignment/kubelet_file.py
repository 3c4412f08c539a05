"""Follows kubelet's configuration file on the host (edge)."""

import logging
import os
from pathlib import Path

from deviceplugin.alignment.kubelet_configuration import (
    ConfigurationUnreadable,
    KubeletAlignment,
    decode_configuration,
)

log = logging.getLogger(__name__)


class KubeletFile:
    """Keeps the last configuration that could be read: kubelet runs with it until it restarts, whatever becomes of the
    file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: KubeletAlignment | None = None
        self._problem = ""

    def read(self) -> KubeletAlignment | None:
        """Returns the configuration; None if none was read yet. A problem is logged once."""
        problem = ""
        try:
            with self._path.open("rb") as file:
                self._known = decode_configuration(file.read())
                # A file that is mounted alone stays the same one when the host gets another of its name.
                if not os.fstat(file.fileno()).st_nlink:
                    problem = "was replaced on the host; restart this pod to read the new one"
        except FileNotFoundError:
            return self._known
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
        except ConfigurationUnreadable as error:
            problem = str(error)
        if problem and problem != self._problem:
            log.warning("%s %s; until then the last that was read counts", self._path, problem)
        self._problem = problem
        return self._known
