"""Edge to the host's processes, through psutil: which pod's container a pid runs in."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from deviceplugin.usage.cgroups import LONGEST_TEXT, CgroupOwner, owner_of

_ENDED = (b"Z", b"X")
"""States in /proc/PID/stat of a process whose memory is free again."""


def use_host_proc(root: str) -> None:
    """Sets where the host's /proc is mounted, for a daemon outside the host's PID namespace. For the whole process."""
    psutil.PROCFS_PATH = root


def host_is_seen() -> bool:
    """Returns whether the host's pids, which the driver reports, are valid here: the second process of a host is the
    kernel's own, and of a container it never is.
    """
    try:
        return (Path(psutil.PROCFS_PATH) / "2" / "comm").read_text() == "kthreadd\n"
    except OSError:
        return False


def has_ended(pid: int) -> bool:
    """Returns whether the host has no process with this pid, or only a zombie; False where the host is not seen."""
    try:
        state = (Path(psutil.PROCFS_PATH) / str(pid) / "stat").read_bytes().rpartition(b") ")[2][:1]
    except (FileNotFoundError, ProcessLookupError):
        return host_is_seen()
    except OSError:
        return False
    return state in _ENDED and host_is_seen()


def owners_of(pids: Iterable[int]) -> Mapping[int, CgroupOwner]:
    """Host processes, zombies and those that went meanwhile are missing."""
    owners = {pid: _owner(pid) for pid in pids}
    return {pid: owner for pid, owner in owners.items() if owner is not None}


def _owner(pid: int) -> CgroupOwner | None:
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        with (Path(psutil.PROCFS_PATH) / str(pid) / "cgroup").open(encoding="utf-8", errors="replace") as file:
            text = file.read(LONGEST_TEXT)
        # The pid may have passed to another process while the file was read.
        return owner_of(text) if process.is_running() else None
    except (psutil.Error, OSError):
        return None
