"""Reads what is in use now, for each GPU: memory, engines, temperature, power, NVLinks, processes.

Memory is NVML's memory info version 1, whose `used` contains the driver's reserved part: every driver has it, and
HAMi's metrics mean it. Calls block and belong to the thread that owns NVML; each may be refused separately.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from deviceplugin.nvml.calls import NOT_FOUND, CallFailed, GpuGone, NvmlCalls
from deviceplugin.nvml.lanes import Hangs
from deviceplugin.usage.used import GpuProcess, GpuSample
from proto.devices import DeviceUUID

_DIE = 0
"""nvmlTemperatureSensors_t of the GPU itself."""
_NO_SAMPLES = (0, NOT_FOUND)
"""nvmlReturn_t: not found, or success with an empty list, which nvidia-ml-py raises as an error."""
_LINK_COUNT = 91
"""NVML_FI_DEV_NVLINK_LINK_COUNT."""
_PROCESS_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)


class UsageReader:
    """Remembers up to when each GPU's process samples were read, so that the next reading has only younger ones."""

    def __init__(self) -> None:
        self._read_until_us: dict[DeviceUUID, int] = {}

    def read(self, calls: NvmlCalls, handles: Mapping[DeviceUUID, object]) -> tuple[GpuSample, ...]:
        """Returns one sample a GPU; a GPU that is gone or does not answer has an empty one."""
        functions = {uuid: partial(self._sample, calls, uuid, handle) for uuid, handle in handles.items()}
        samples = calls.lanes.ask("usage", functions)
        return tuple(GpuSample(uuid=uuid) if isinstance(one, Hangs) else one for uuid, one in samples.items())

    def _sample(self, calls: NvmlCalls, uuid: DeviceUUID, handle: object) -> GpuSample:
        try:
            memory: Any = calls.ask_or(None, "nvmlDeviceGetMemoryInfo", handle)
            rates: Any = calls.ask_or(None, "nvmlDeviceGetUtilizationRates", handle)
            milliwatts = calls.ask_or(None, "nvmlDeviceGetPowerUsage", handle)
            links = _link_states(calls, handle)
            return GpuSample(
                uuid=uuid,
                memory_total_bytes=memory and memory.total,
                memory_used_bytes=memory and memory.used,
                busy_percent=rates and rates.gpu,
                memory_busy_percent=rates and rates.memory,
                temperature_celsius=calls.ask_or(None, "nvmlDeviceGetTemperature", handle, _DIE),
                power_watts=None if milliwatts is None else milliwatts / 1000,
                nvlinks=len(links),
                nvlinks_active=sum(links),
                processes=self._processes(calls, uuid, handle),
            )
        except GpuGone:
            return GpuSample(uuid=uuid)

    def _processes(self, calls: NvmlCalls, uuid: DeviceUUID, handle: object) -> tuple[GpuProcess, ...] | None:
        lists = [_listed(calls, function, handle) for function in _PROCESS_LISTS]
        if lists[0] is None:
            return None
        used: dict[int, int | None] = {}
        for processes in lists:
            # A process that computes and draws is in two lists, each with all its memory.
            for pid, there in (processes or {}).items():
                before = used.get(pid)
                used[pid] = there if before is None else max(before, there or 0)
        busy = self._busy(calls, uuid, handle)
        return tuple(_process(pid, used[pid], busy) for pid in sorted(used))

    def _busy(self, calls: NvmlCalls, uuid: DeviceUUID, handle: object) -> Mapping[int, Sequence[int]] | None:
        """Returns by pid the percent of SM time of each sample since the last reading, the youngest last; None if they
        are unknown. Raises GpuGone.
        """
        since = self._read_until_us.get(uuid, 0)
        try:
            samples: list[Any] = calls.ask("nvmlDeviceGetProcessUtilization", handle, since)
        except GpuGone:
            raise
        except CallFailed as error:
            return {} if error.code in _NO_SAMPLES else None
        self._read_until_us[uuid] = max([since, *(sample.timeStamp for sample in samples)])
        # Youngest last; the array may have more places than the driver filled.
        ordered = sorted(samples, key=lambda sample: sample.timeStamp)
        found: dict[int, list[int]] = {}
        for sample in ordered:
            if sample.pid:
                found.setdefault(int(sample.pid), []).append(int(sample.smUtil))
        return found


def _process(pid: int, used_bytes: int | None, busy: Mapping[int, Sequence[int]] | None) -> GpuProcess:
    if busy is None:
        return GpuProcess(pid=pid, used_bytes=used_bytes, sm_percent=None)
    percents = busy.get(pid, [0])
    return GpuProcess(pid=pid, used_bytes=used_bytes, sm_percent=percents[-1], peak_percent=max(percents))


def _link_states(calls: NvmlCalls, handle: object) -> list[bool]:
    """Returns for each NVLink whether it is active. The list ends at the first link that the driver refuses, or with
    its count: some drivers answer "inactive" for links that the GPU does not have.
    """
    states: list[bool] = []
    most, count = calls.pynvml.NVML_NVLINK_MAX_LINKS, calls.field(handle, _LINK_COUNT)
    for number in range(most if count is None else min(most, count)):
        state = calls.ask_or(None, "nvmlDeviceGetNvLinkState", handle, number)
        if state is None:
            break
        states.append(bool(state))
    return states


def _listed(calls: NvmlCalls, function: str, handle: object) -> Mapping[int, int | None] | None:
    """Returns bytes by pid, summed over MIG instances; None where the list is refused. Raises GpuGone."""
    processes: list[Any] | None = calls.ask_or(None, function, handle)
    if processes is None:
        return None
    used: dict[int, int | None] = {}
    for process in processes:
        before = used.get(process.pid, 0)
        known = before is not None and process.usedGpuMemory is not None
        used[process.pid] = before + process.usedGpuMemory if known else None
    return used
