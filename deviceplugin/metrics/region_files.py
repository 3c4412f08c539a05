"""Edge to HAMi-core's regions on disk, in folders that their tenants can write: nothing is followed or mapped.

A region is `<hook>/vgpu/containers/<pod UID>_<container>/<any name>.cache`.
"""

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

from deviceplugin.container.container_folders import is_of_container, opened, split_folder
from deviceplugin.usage.shared_region import Region, RegionError, parse_region

_MOST_FOLDERS = 1024
_MOST_FILES = 64
"""Looked at in one folder; a region and an empty library is what HAMi-core leaves there."""
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Neither a symbolic link nor a pipe without a writer may catch us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionFiles:
    regions: Mapping[tuple[str, str], Region] = field(default_factory=dict)
    """By pod UID and container name; folders without a region yet are missing."""
    problems: Mapping[tuple[str, str], str] = field(default_factory=dict)
    left_out: int = 0
    """Folders beyond the number that is looked at."""


def read_regions(containers: str) -> RegionFiles:
    """Every readable region below the folder `containers`; one that is not is a problem of its own."""
    regions: dict[tuple[str, str], Region] = {}
    problems: dict[tuple[str, str], str] = {}
    left_out = 0
    with suppress(FileNotFoundError), opened(containers) as root:
        names = _names(root)
        left_out = max(0, len(names) - _MOST_FOLDERS)
        for folder in names[:_MOST_FOLDERS]:
            try:
                region = _read_folder(root, folder)
            except (RegionError, OSError) as error:
                problems[split_folder(folder)] = str(error)
                continue
            if region is not None:
                regions[split_folder(folder)] = region
    return RegionFiles(regions=regions, problems=problems, left_out=left_out)


def _names(root: int) -> list[str]:
    return sorted(name for name in os.listdir(root) if is_of_container(name))


def _read_folder(root: int, name: str) -> Region | None:
    """The folder's one region. Raises RegionError or OSError."""
    with opened(name, inside=root) as folder:
        with os.scandir(folder) as entries:
            caches = [entry.name for entry in islice(entries, _MOST_FILES) if entry.name.endswith(".cache")]
        if not caches:
            return None
        if len(caches) > 1:
            raise RegionError(f"{len(caches)} files end in .cache; one is the region, and nobody can tell which")
        with opened(caches[0], _OPEN_FILE, inside=folder) as file:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise RegionError("the region is no regular file")
            return parse_region(status.st_size, lambda offset, length: os.pread(file, length, offset))
