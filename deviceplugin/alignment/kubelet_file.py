"""Reads kubelet's configuration from its files on the host (edge)."""

import logging
import os
from pathlib import Path

from deviceplugin.alignment.kubelet_configuration import (
    ConfigurationUnreadable,
    KubeletAlignment,
    decode_configuration,
)

log = logging.getLogger(__name__)


class KubeletFiles:
    """Keeps the last configuration that could be read: kubelet runs with it until it restarts, whatever becomes of the
    files.
    """

    def __init__(self, *paths: Path) -> None:
        """A folder has files `*.conf`, which count in the order of their names, as with kubelet's `--config-dir`."""
        self._paths = paths
        self._known: KubeletAlignment | None = None
        self._problem = ""

    def read(self) -> KubeletAlignment | None:
        """Returns the configuration; None if none was read yet. A problem is logged once."""
        problem, path, texts = "", self._paths[0], list[bytes]()
        try:
            for path in self._paths:
                for each in sorted(path.rglob("*.conf")) if path.is_dir() else (path,):
                    with each.open("rb") as file:
                        texts.append(file.read())
                        # A file that is mounted alone stays the same one when the host gets another of its name.
                        if not os.fstat(file.fileno()).st_nlink:
                            problem = "was replaced on the host; restart this pod to read the new one"
                # Names the file that is at fault.
                decode_configuration(*texts)
            self._known = decode_configuration(*texts)
        except FileNotFoundError:
            return self._known
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
        except ConfigurationUnreadable as error:
            problem = str(error)
        if problem and problem != self._problem:
            log.warning("%s %s; until then the last that was read counts", path, problem)
        self._problem = problem
        return self._known
