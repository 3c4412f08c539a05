"""The driver's limits of GPU memory by control group, which it has since branch 615.

Source: https://docs.nvidia.com/deploy/mps/mpsv3-memory-partitioning.html. A limit is one of a GPU and of the folder of
a control group of version 2; the driver refuses an allocation that would exceed it.
"""

import ctypes
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from deviceplugin.machine.readings import FIRST_LIMITING_BRANCH, GpuReading, MachineReading, driver_branch
from deviceplugin.nvml.calls import CallFailed, GpuGone, NvmlCalls
from deviceplugin.nvml.lanes import Hangs
from deviceplugin.nvml.library import NvmlUnavailable
from deviceplugin.nvml.reader import Nvml
from deviceplugin.own_threads import OwnThreads
from proto.devices import DeviceUUID

_NONE = ctypes.c_ulonglong(-1).value


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """The limit of one GPU for one control group, and what the group uses of it."""

    hard_bytes: int | None = None
    """None where nothing limits the group."""
    soft_bytes: int = 0
    """The part that no other group gets."""
    used_bytes: int = 0

    def holds(self, hard_bytes: int | None) -> bool:
        """Returns whether this is the limit that was wanted, and reserves nothing."""
        return (self.hard_bytes, self.soft_bytes) == (hard_bytes, 0)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a limit is not read or set. `is_of_gpu`: others may do it."""

    problem: str
    is_of_gpu: bool = False

    def __str__(self) -> str:
        return self.problem


NoAnswer = Refusal | Hangs
Answer = MemoryLimit | NoAnswer
Limits = Mapping[DeviceUUID, int | None]
"""The hard limit of each GPU in bytes; None takes it away."""


def holds(answer: Answer, hard_bytes: int | None) -> bool:
    """Returns whether the driver answers that this limit holds."""
    return isinstance(answer, MemoryLimit) and answer.holds(hard_bytes)


def is_of_gpu(answer: NoAnswer) -> bool:
    """Returns whether only this GPU fails, so that others may be limited. Its health shows what lasts."""
    return isinstance(answer, Hangs) or answer.is_of_gpu


def is_slow(answer: Answer) -> bool:
    """Returns whether the driver may still answer: a driver that is busy takes seconds."""
    return isinstance(answer, Hangs) and not answer.is_lasting


def not_set(refusals: Mapping[DeviceUUID, NoAnswer]) -> str:
    """Returns why limits do not hold, as a clause about the first GPU that refused; empty if none did."""
    return next((f"the driver does not limit the memory of {gpu}: {each}" for gpu, each in refusals.items()), "")


class MemoryLimits:
    """Sets and reads limits, on the thread that owns NVML."""

    def __init__(self, nvml: Nvml, thread: OwnThreads) -> None:
        self._nvml = nvml
        self._thread = thread

    @property
    def driver(self) -> str:
        """Returns the driver's version, empty before the GPUs were read."""
        return self._nvml.driver

    async def set(self, group: str, limits: Limits) -> dict[DeviceUUID, NoAnswer]:
        """Sets the limits and reads them back. Returns why those do not hold that do not."""
        return await self._thread.call(lambda: self._set(group, limits))

    async def read(self, groups: Mapping[str, Collection[DeviceUUID]]) -> dict[str, dict[DeviceUUID, Answer]]:
        """Returns the limits of these GPUs for each group."""
        return await self._thread.call(lambda: self.read_now(groups))

    def read_now(self, groups: Mapping[str, Collection[DeviceUUID]]) -> dict[str, dict[DeviceUUID, Answer]]:
        """Returns the same, on the thread that owns NVML."""
        return {
            group: self._answers(f"limits of {group}", gpus, partial(_read, group)) for group, gpus in groups.items()
        }

    def _set(self, group: str, limits: Limits) -> dict[DeviceUUID, NoAnswer]:
        def set_one(calls: NvmlCalls, handle: object, gpu: DeviceUUID) -> MemoryLimit:
            _set(calls, handle, group, limits[gpu])
            return _read(group, calls, handle, gpu)

        refused: dict[DeviceUUID, NoAnswer] = {}
        for gpu, found in self._answers(f"set limits of {group} to {limits}", limits, set_one).items():
            if not isinstance(found, MemoryLimit):
                refused[gpu] = found
            elif not found.holds(limits[gpu]):
                refused[gpu] = Refusal(f"it took {found.hard_bytes} bytes where {limits[gpu]} were wanted")
        return refused

    def _answers(
        self,
        question: str,
        gpus: Collection[DeviceUUID],
        ask: Callable[[NvmlCalls, object, DeviceUUID], MemoryLimit],
    ) -> dict[DeviceUUID, Answer]:
        try:
            calls, handles = self._nvml.calls(), self._nvml.handles()
        except NvmlUnavailable as error:
            return dict.fromkeys(gpus, Refusal(str(error)))

        def ask_one(gpu: DeviceUUID) -> Answer:
            try:
                return ask(calls, handles[gpu], gpu)
            except CallFailed as error:
                return Refusal(error.problem, is_of_gpu=not error.is_absent)

        answers = calls.lanes.ask(question, {gpu: partial(ask_one, gpu) for gpu in gpus if gpu in handles})
        hidden = Refusal("the driver does not show it", is_of_gpu=True)
        return {gpu: answers.get(gpu, hidden) for gpu in gpus}


def without_reserved(machine: MachineReading, nvml: Nvml) -> MachineReading:
    """Returns the machine without the memory that a driver with limits reserves on each GPU for itself: containers that
    it limits to all of a GPU could not use it. Blocks, on the thread that owns NVML.
    """
    if (driver_branch(machine.driver) or 0) < FIRST_LIMITING_BRANCH:
        return machine
    calls, handles = nvml.calls(), nvml.handles()

    def usable(gpu: GpuReading) -> GpuReading:
        if gpu.memory_mib is None or gpu.mig_enabled or gpu.uuid not in handles:
            return gpu
        try:
            memory: Any = calls.ask_or(None, "nvmlDeviceGetMemoryInfo", handles[gpu.uuid], calls.pynvml.nvmlMemory_v2)
        except GpuGone:
            return gpu
        return gpu if memory is None else replace(gpu, memory_mib=gpu.memory_mib - -(-memory.reserved // (1 << 20)))

    return replace(machine, gpus=tuple(map(usable, machine.gpus)))


def _set(calls: NvmlCalls, handle: object, group: str, hard_bytes: int | None) -> None:
    """Raises CallFailed."""
    hard = _NONE if hard_bytes is None else hard_bytes
    wanted = calls.pynvml.c_nvmlSetMemoryLimits_v1_t(os.fsencode(group), 0, hard)
    calls.ask("nvmlDeviceSetMemoryLimits_v1", handle, wanted)


def _read(group: str, calls: NvmlCalls, handle: object, _: DeviceUUID) -> MemoryLimit:
    """Raises CallFailed."""
    found = calls.pynvml.c_nvmlGetMemoryLimits_v1_t(os.fsencode(group))
    calls.ask("nvmlDeviceGetMemoryLimits_v1", handle, found)
    return MemoryLimit(
        hard_bytes=None if found.hardLimit == _NONE else found.hardLimit,
        soft_bytes=found.softLimit,
        used_bytes=found.currentUsed,
    )
