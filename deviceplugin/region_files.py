"""Reads and writes HAMi-core's regions, in folders that tenants can write: it follows no link and maps no file (edge).

A region is `<hook path>/vgpu/containers/<pod UID>_<container>/<any name>.cache`.
"""

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice

from deviceplugin.container.container_folders import is_of_container, opened, split_folder
from deviceplugin.usage.feedback import Who
from deviceplugin.usage.shared_region import (
    HasEnded,
    Region,
    RegionError,
    Switches,
    parse_region,
    parse_switches,
    patches,
)

_MOST_FOLDERS = 1024
_MOST_FILES = 64
"""Looked at in one folder; a region and an empty library is what HAMi-core leaves there."""
_MOST_SECONDS = 0.2
"""The most CPU time of one look: tenants decide how long the reading of a region takes."""
_CAREFULLY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""A symbolic link, a pipe without a writer, or a lease of the file must not block us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionFiles:
    regions: Mapping[tuple[str, str], Region] = field(default_factory=dict)
    """The regions by pod UID and container name; folders that have no region yet are left out."""
    problems: Mapping[tuple[str, str], str] = field(default_factory=dict)
    left_out: int = 0
    """Folders beyond the number that is looked at, and those that were not looked at yet."""


class RegionReader:
    """Reads every region below the folder `containers`; one that cannot be read is a problem of its own.

    A look that takes too long ends, and the next goes on where it ended. Of the others the last look counts. Processes
    that have ended do not count. `clock` returns the seconds of the processor that the thread has used. Blocks.
    """

    def __init__(
        self,
        containers: str,
        *,
        has_ended: HasEnded = lambda _: False,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._containers = containers
        self._has_ended = has_ended
        self._clock = clock
        self._known: dict[str, Region | str | None] = {}
        """Maps a folder to its region, or to why that cannot be read; None before there is one."""
        self._next = ""

    def read(self) -> RegionFiles:
        """Raises OSError where the folder cannot be read."""
        names: list[str] = []
        known: dict[str, Region | str | None] = {}
        with suppress(FileNotFoundError), opened(self._containers) as root:
            names = _names(root)
            looked_at = names[:_MOST_FOLDERS]
            known = {name: self._known[name] for name in looked_at if name in self._known}
            end, first = self._clock() + _MOST_SECONDS, self._next
            self._next = ""
            for name in sorted(looked_at, key=lambda name: (name < first, name)):
                if self._clock() >= end:
                    self._next = name
                    break
                known[name] = self._read_folder(root, name)
        self._known = known
        found = {split_folder(name): each for name, each in known.items()}
        return RegionFiles(
            regions={who: each for who, each in found.items() if isinstance(each, Region)},
            problems={who: each for who, each in found.items() if isinstance(each, str)},
            left_out=len(names) - len(known),
        )

    def _read_folder(self, root: int, name: str) -> Region | str | None:
        """Returns the folder's one region, None before there is one, or why it cannot be read."""
        try:
            with _region(root, name, os.O_RDONLY) as found:
                return None if found is None else parse_region(found.size, found.read_at, self._has_ended)
        except (RegionError, OSError) as error:
            return str(error)


def read_switches(containers: str, wanted: Iterable[Who]) -> tuple[Mapping[Who, Switches], Mapping[Who, str]]:
    """Returns the switches of the wanted regions that can be read, and why the others cannot. A region that is not
    there yet is in neither. Raises OSError where the folder cannot be opened.
    """
    switches: dict[Who, Switches] = {}
    problems: dict[Who, str] = {}
    with suppress(FileNotFoundError), opened(containers) as root:
        for who in islice((each for each in wanted if is_of_container("_".join(each))), _MOST_FOLDERS):
            try:
                with suppress(FileNotFoundError), _region(root, "_".join(who), os.O_RDONLY) as found:
                    if found is not None:
                        switches[who] = parse_switches(found.size, found.read_at)
            except (RegionError, OSError) as error:
                problems[who] = str(error)
    return switches, problems


def write_switches(containers: str, wanted: Mapping[Who, Switches]) -> None:
    """Writes what differs, 4 bytes each, in place. A region that is none any more is left as it is.

    Nothing is mapped: a file that is cut meanwhile only grows again, in its tenant's own folder. Raises OSError where
    the folder of all cannot be opened.
    """
    with suppress(FileNotFoundError), opened(containers) as root:
        for who, after in wanted.items():
            with suppress(RegionError, OSError), _region(root, "_".join(who), os.O_RDWR) as found:
                if found is not None and os.fstat(found.descriptor).st_nlink == 1:
                    before = parse_switches(found.size, found.read_at)
                    for offset, content in patches(before, after):
                        os.pwrite(found.descriptor, content, offset)


def _names(root: int) -> list[str]:
    return sorted(name for name in os.listdir(root) if is_of_container(name))


@dataclass(frozen=True, slots=True)
class _Open:
    descriptor: int
    size: int

    def read_at(self, offset: int, length: int) -> bytes:
        return os.pread(self.descriptor, length, offset)


@contextmanager
def _region(root: int, name: str, access: int) -> Iterator[_Open | None]:
    """Yields the folder's one region, None before there is one. Raises RegionError or OSError."""
    with opened(name, inside=root) as folder:
        with os.scandir(folder) as entries:
            caches = [entry.name for entry in islice(entries, _MOST_FILES) if entry.name.endswith(".cache")]
        if len(caches) > 1:
            raise RegionError(f"{len(caches)} files end in .cache; it cannot be known which is the region")
        if not caches:
            yield None
            return
        with opened(caches[0], access | _CAREFULLY, inside=folder) as file:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise RegionError("the region is no regular file")
            yield _Open(file, status.st_size)
