"""Manages the folders of the host that containers write to: each belongs to one container, whose tenant is not trusted
(edge).

A folder is `<parent>/<pod UID>_<container>`; the parent is the daemon's alone, and closed to other users. A folder to
remove is first renamed, at constant cost, and then removed in the background, a bounded number of entries at a time.
"""

import logging
import os
import re
import stat
from collections.abc import Container, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from uuid import uuid4

from deviceplugin.container.hami_core_names import LIBRARY

log = logging.getLogger(__name__)

KEPT_SECONDS = 600.0
"""Seconds that a folder is kept after its pod. It is longer than a dead watch stays undetected, because a pod may start
unseen in that time.
"""
_GONE = ".gone-"
_MOST_STEPS = 200_000
"""Entries removed in one sweep: a tenant makes fewer in the time between two."""
_FOLDER = re.compile(r"(?P<uid>[0-9a-f][0-9a-f-]{31,35})_(?P<container>[a-z0-9][a-z0-9-]*)")
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN_TO_ALL = 0o777
"""The container's user is unknown, and HAMi-core creates files. Not sticky: with fs.protected_regular the kernel would
refuse it a lock file that another user made."""
_CLOSED = 0o700
"""Users of the host must not reach what tenants leave, such as programs with set-uid and device files that all may
open. A container gets its folder by a bind mount, for which the rights of the parent do not count.
"""
_BLOCK = 512
"""Bytes in a block of st_blocks."""


def is_writable(folder: str) -> bool:
    """Returns whether files can be made in the folder, or it can be made."""
    nearest = next(path for path in (Path(folder), *Path(folder).parents) if path.exists())
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def make_closed(parent: str) -> None:
    """Makes a folder that only its owner may enter, and closes one that is open. Raises OSError."""
    os.makedirs(parent, _CLOSED, exist_ok=True)
    _close(parent)


def _close(parent: str) -> None:
    """Raises OSError."""
    if stat.S_IMODE(os.stat(parent).st_mode) != _CLOSED:
        os.chmod(parent, _CLOSED)


def make_fresh(path: str, mode: int = _OPEN_TO_ALL) -> None:
    """Makes an empty folder in a parent that is closed; what was there, even a symbolic link, is moved aside. Raises
    OSError.
    """
    parent = os.path.dirname(path)
    make_closed(parent)
    with suppress(FileNotFoundError):
        os.rename(path, f"{parent}/{_GONE}{uuid4().hex}")
    os.mkdir(path)
    with opened(path) as folder:
        os.fchmod(folder, mode)


def is_of_container(name: str) -> bool:
    return _FOLDER.fullmatch(name) is not None


def split_folder(name: str) -> tuple[str, str]:
    """Returns pod UID and container of a folder's name."""
    uid, _, container = name.partition("_")
    return uid, container


@contextmanager
def opened(path: str, flags: int = _OPEN_FOLDER, *, inside: int | None = None) -> Iterator[int]:
    """Yields the descriptor of a folder, or of a file with other flags; it follows no symbolic link. Raises OSError."""
    descriptor = os.open(path, flags, dir_fd=inside)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderQuota:
    """The most that one container may leave in a folder on the host. HAMi-core leaves one file of about 2 MiB."""

    files: int = 64
    mib: int = 16


_QUOTA = FolderQuota()


class FolderSweep:
    """Removes what containers leave beyond the quota, and the folders of pods that have been gone for a while. It
    closes parents that are open to users of the host, as HAMi makes them.

    `parents` are the folders that hold them. It blocks.
    """

    def __init__(self, parents: Sequence[str], quota: FolderQuota = _QUOTA) -> None:
        self._parents = parents
        self._quota = quota
        self._unknown: Mapping[tuple[str, str], float] = {}
        self._logged: set[tuple[str, str]] = set()

    def sweep(self, known_uids: Container[str] | None, now: float) -> None:
        """Removes once. `known_uids` are all pods of the node; None while they are unknown: then no pod counts as gone.

        `now` is the monotonic clock.
        """
        self._logged = {each for each in self._logged if os.path.lexists("/".join(each))}
        unknown = {} if known_uids is not None else dict(self._unknown)
        for parent in self._parents:
            try:
                _close(parent)
                with opened(parent) as root:
                    unknown |= self._sweep(parent, root, known_uids, now)
            except FileNotFoundError:
                continue
            except OSError as error:
                log.warning("The folder %s cannot be cleaned up: %s", parent, error)
        self._unknown = unknown

    def _sweep(
        self, parent: str, root: int, known_uids: Container[str] | None, now: float
    ) -> Mapping[tuple[str, str], float]:
        names = os.listdir(root)
        unknown: dict[tuple[str, str], float] = {}
        for name in filter(is_of_container, names):
            self._hold_to_quota(parent, root, name)
            if known_uids is None or split_folder(name)[0] in known_uids:
                continue
            unknown[parent, name] = since = self._unknown.get((parent, name), now)
            if now - since >= KEPT_SECONDS:
                os.rename(name, _GONE + uuid4().hex, src_dir_fd=root, dst_dir_fd=root)
                log.info("The pod of the folder %s/%s is gone; it is removed.", parent, name)
        for name in [each for each in os.listdir(root) if each.startswith(_GONE)]:
            self._remove(parent, root, name)
        return unknown

    def _remove(self, parent: str, root: int, name: str) -> None:
        try:
            if stat.S_ISDIR(os.stat(name, dir_fd=root, follow_symlinks=False).st_mode):
                for _ in islice(removing(name, inside=root), _MOST_STEPS):
                    pass
            else:
                os.unlink(name, dir_fd=root)
        except OSError as error:
            self._log(parent, name, f"cannot be removed: {error.strerror or error}")

    def _hold_to_quota(self, parent: str, root: int, name: str) -> None:
        try:
            with opened(name, inside=root) as folder:
                excess = _excess(folder, f"{split_folder(name)[0]}.cache", self._quota)
                for removed in islice(excess, _MOST_STEPS):
                    if removed:
                        self._log(parent, name, "held more than its container may leave there; the rest was removed")
        except OSError as error:
            self._log(parent, name, f"cannot be held to its quota: {error.strerror or error}")

    def _log(self, parent: str, name: str, what: str) -> None:
        """Logs once for each folder, because its tenant decides how often it happens."""
        if (parent, name) not in self._logged:
            self._logged.add((parent, name))
            log.warning("The folder %s/%s %s.", parent, name, what)


def _excess(folder: int, region: str, quota: FolderQuota) -> Iterator[bool]:
    """Removes what is beyond the quota until a walk finds nothing. Yields at each step whether it removed something.
    Raises OSError.
    """
    while (yield from _one_walk(folder, region, quota)):
        pass


def _one_walk(folder: int, region: str, quota: FolderQuota) -> Generator[bool, None, bool]:
    """Makes one walk, and returns whether another may find more. It truncates the region, because programs use it.

    The tenant may rename and remove entries meanwhile. Entries that cannot be removed are skipped; if nothing else was
    there, the error is raised at the end.
    """
    most = quota.mib << 20
    files, size = 0, 0
    removed, problem = False, None
    with suppress(OSError), opened(region, _OPEN_FILE, inside=folder) as file:
        if stat.S_ISREG(os.fstat(file).st_mode):
            if os.fstat(file).st_size > most:
                os.ftruncate(file, most)
                removed = True
                yield True
            files, size = 1, os.fstat(file).st_blocks * _BLOCK
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                found = entry.stat(follow_symlinks=False)
                is_region = entry.name == region and files and stat.S_ISREG(found.st_mode)
                if is_region or _is_place_of_library(entry.name, found):
                    continue
                files, size = files + 1, size + found.st_blocks * _BLOCK
                if files > quota.files or size > most or stat.S_ISDIR(found.st_mode):
                    for _ in take_apart(folder, entry.name):
                        removed = True
                        yield True
                    files, size = files - 1, size - found.st_blocks * _BLOCK
            except FileNotFoundError:
                yield False
            except OSError as error:
                problem = error
    if problem is not None and not removed:
        raise problem
    return removed


def _is_place_of_library(name: str, found: os.stat_result) -> bool:
    """Returns whether the library is mounted over this file in the container; the mount would go with the file. Its
    tenant cannot write it.
    """
    return name == LIBRARY and stat.S_ISREG(found.st_mode) and not found.st_size and not found.st_blocks


def remove_folder(path: str) -> None:
    """Removes a folder with all below it, never through a symbolic link. Raises OSError."""
    for _ in removing(path):
        pass


def removing(path: str, *, inside: int | None = None) -> Iterator[None]:
    """Removes a folder one entry at a time: a caller that stops halfway has made progress and can start again. `inside`
    is its open parent folder.

    The tenant that fills the folder chooses the number of entries and levels. So no folder is listed as a whole, and
    full folders are moved up until there is one level. `shutil.rmtree` holds every name of a folder in memory, and a
    frame and a descriptor for every level. Entries that cannot be removed are skipped, and the error is raised at the
    end.
    """
    root = os.open(path, _OPEN_FOLDER, dir_fd=inside)
    try:
        while (yield from _pass_over(root)):
            pass
    finally:
        os.close(root)
    os.rmdir(path, dir_fd=inside)


def _pass_over(root: int) -> Generator[None, None, bool]:
    """Removes what one walk finds, and returns whether another may find more. Raises OSError if nothing could be
    removed.
    """
    removed, problem = False, None
    with os.scandir(root) as entries:
        for entry in entries:
            try:
                yield from take_apart(root, entry.name)
                removed = True
            except OSError as error:
                problem = error
    if problem is not None and not removed:
        raise problem
    return removed


def take_apart(root: int, name: str) -> Iterator[None]:
    """Removes one entry of an open folder; the full folders in it are moved beside it. Raises OSError."""
    if not _is_removed(root, name):
        folder = os.open(name, _OPEN_FOLDER, dir_fd=root)
        try:
            with os.scandir(folder) as children:
                for child in children:
                    if not _is_removed(folder, child.name):
                        os.rename(child.name, uuid4().hex, src_dir_fd=folder, dst_dir_fd=root)
                    yield
        finally:
            os.close(folder)
        with suppress(FileNotFoundError):
            os.rmdir(name, dir_fd=root)
    yield


def _is_removed(folder: int, name: str) -> bool:
    """Removes a file or an empty folder, and returns whether it is gone."""
    try:
        os.unlink(name, dir_fd=folder)
        return True
    except FileNotFoundError:
        return True
    except IsADirectoryError:
        pass
    try:
        os.rmdir(name, dir_fd=folder)
        return True
    except OSError:
        return False
