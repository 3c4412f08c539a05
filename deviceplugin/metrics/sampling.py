"""Takes a sample of the whole node: the driver, the processes on its GPUs, HAMi-core's regions."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import psutil

from deviceplugin.nvml.library import NvmlUnavailable
from deviceplugin.nvml.reader import Nvml
from deviceplugin.nvml.telemetry import read_telemetry
from deviceplugin.nvml.usage import UsageReader
from deviceplugin.own_threads import OwnThreads
from deviceplugin.region_files import RegionFiles
from deviceplugin.usage.cgroups import LONGEST_TEXT, CgroupOwner, owner_of
from deviceplugin.usage.telemetry import NodeTelemetry
from deviceplugin.usage.used import GpuSample, NodeSample
from proto.devices import DeviceUUID

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


log = logging.getLogger(__name__)


class Sampler:
    """`thread` owns `nvml`. `read_regions` reads HAMi-core's regions.

    Tenants' files are read on a separate thread: the driver's thread also serves the GPUs' health.
    """

    def __init__(
        self,
        nvml: Nvml,
        read_regions: Callable[[], RegionFiles],
        thread: OwnThreads,
        *,
        by_driver: Callable[[], Mapping[tuple[str, str, DeviceUUID], int]] = dict,
    ) -> None:
        """`by_driver` returns what containers use that the driver limits; it runs on that thread too."""
        self._nvml = nvml
        self._by_driver = by_driver
        self._thread = thread
        self._files = OwnThreads("regions")
        self._read_regions = read_regions
        self._reader = UsageReader()
        self._logged: frozenset[tuple[str, str]] = frozenset()

    async def take(self) -> NodeSample:
        """Reads what is used; no GPUs without a driver. Raises OSError if the regions' folder cannot be read."""
        gpus, by_driver = await self._thread.call(lambda: (self._gpus(), self._by_driver()))
        pids = {process.pid for gpu in gpus for process in gpu.processes or ()}
        files, owners = await self._files.call(lambda: (self._read_regions(), owners_of(sorted(pids))))
        self._log_problems(files.problems)
        return NodeSample(
            gpus=gpus,
            owners=owners,
            regions=files.regions,
            by_driver=by_driver,
            unreadable_regions=len(files.problems),
            regions_left_out=files.left_out,
        )

    async def telemetry(self) -> NodeTelemetry:
        """Reads the telemetry; no GPUs if there is no driver."""
        return await self._thread.call(self._telemetry)

    def _gpus(self) -> tuple[GpuSample, ...]:
        try:
            gpus = self._reader.read(self._nvml.calls(), self._nvml.handles())
        except NvmlUnavailable:
            return ()
        return gpus if host_is_seen() else tuple(replace(gpu, processes=None) for gpu in gpus)

    def _telemetry(self) -> NodeTelemetry:
        try:
            gpus = read_telemetry(self._nvml.calls(), self._nvml.gpus())
        except NvmlUnavailable:
            return NodeTelemetry()
        return NodeTelemetry(driver=self._nvml.driver, gpus=gpus)

    def _log_problems(self, problems: Mapping[tuple[str, str], str]) -> None:
        """Logs once for each region until it can be read again: its tenant decides what is wrong with it."""
        for who in sorted(problems.keys() - self._logged):
            log.warning("region of container %s of pod %s: %s", who[1], who[0], problems[who])
        self._logged = frozenset(problems)
