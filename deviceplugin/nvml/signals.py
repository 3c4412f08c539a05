"""What NVML says of a GPU's health when asked. Calls block and belong to the thread that owns the library."""

import ctypes
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from deviceplugin.health.step import GpuLost, Polled, Signals
from deviceplugin.nvml.calls import FUNCTION_NOT_FOUND, NOT_SUPPORTED, CallFailed, GpuGone, NvmlCalls
from proto.devices import DeviceUUID

RECOVERY_ACTION_FIELD = 230

_ARGUMENT_VERSION_MISMATCH = 25
_UNCORRECTED, _VOLATILE = 1, 0  # nvmlMemoryErrorType_t, nvmlEccCounterType_t
_FABRIC_COMPLETED = 3
_FABRIC_UNHEALTHY = 2  # NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY

T = TypeVar("T")


class NvmlHealth:
    """Remembers which GPU has which signal, until the library is opened again."""

    def __init__(self) -> None:
        self._calls: NvmlCalls | None = None
        self._absent: set[tuple[DeviceUUID, str]] = set()

    def poll(self, calls: NvmlCalls, gpus: Iterable[DeviceUUID]) -> tuple[Polled | GpuLost, ...]:
        """One answer for each GPU; they fail one by one."""
        if calls is not self._calls:
            self._calls, self._absent = calls, set()
        return tuple(self._poll(calls, uuid) for uuid in gpus)

    @staticmethod
    def missing(calls: NvmlCalls, gpus: Iterable[DeviceUUID]) -> tuple[GpuLost, ...]:
        """Those that have fallen off the bus, told by two cheap calls each."""
        return tuple(lost for uuid in gpus if (lost := _missing(calls, uuid)) is not None)

    def _poll(self, calls: NvmlCalls, uuid: DeviceUUID) -> Polled | GpuLost:
        try:
            handle = calls.ask("nvmlDeviceGetHandleByUUID", uuid)
            return Polled(gpu=uuid, signals=self._signals(calls, uuid, handle))
        except CallFailed as error:
            return GpuLost(gpu=uuid, problem=error.problem)

    def _signals(self, calls: NvmlCalls, uuid: DeviceUUID, handle: object) -> Signals:
        """Raises GpuGone."""
        unread: list[str] = []

        def read(signal: str, default: T, function: Callable[[], T]) -> T:
            """`default` where the GPU does not have the signal, and where it cannot be read now."""
            if (uuid, signal) in self._absent:
                return default
            try:
                return function()
            except GpuGone:
                raise
            except CallFailed as error:
                if error.code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
                    self._absent.add((uuid, signal))
                else:
                    unread.append(f"{signal}: {error.problem}")
                return default

        nothing = (0, 0, 0, 0)
        action = read("recovery action", None, lambda: calls.ask_field(handle, RECOVERY_ACTION_FIELD))
        rows = read("remapped rows", nothing, lambda: calls.ask("nvmlDeviceGetRemappedRows", handle))
        pages = read("retired pages", 0, lambda: calls.ask("nvmlDeviceGetRetiredPagesPendingStatus", handle))
        ecc = ("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE)
        uncorrected = read("memory errors", None, lambda: calls.ask(*ecc))
        state, status, summary = read("fabric", (0, 0, 0), lambda: _fabric(calls, handle))
        return Signals(
            recovery_action=action,
            remap_pending=bool(rows[2]),
            remap_failed=bool(rows[3]),
            pages_pending=bool(pages),
            uncorrected=uncorrected,
            # State 0: no fabric to register with; the status has no meaning before completion.
            fabric_broken=state != 0 and (state, status) != (_FABRIC_COMPLETED, 0),
            fabric_unhealthy=state == _FABRIC_COMPLETED and summary == _FABRIC_UNHEALTHY,
            unread="; ".join(unread),
        )


def _missing(calls: NvmlCalls, uuid: DeviceUUID) -> GpuLost | None:
    try:
        calls.field(calls.ask("nvmlDeviceGetHandleByUUID", uuid), RECOVERY_ACTION_FIELD)
    except CallFailed as error:
        return GpuLost(gpu=uuid, problem=error.problem)
    return None


def _fabric(calls: NvmlCalls, handle: object) -> tuple[int, int, int]:
    """State, status and health summary, 0 from drivers that do not summarise. Raises CallFailed."""
    try:
        info = _fabric_info(calls, handle, "c_nvmlGpuFabricInfo_v3_t")
    except CallFailed as error:
        if error.code != _ARGUMENT_VERSION_MISMATCH:
            raise
        info = _fabric_info(calls, handle, "c_nvmlGpuFabricInfo_v2_t")
    return info.state, info.status, getattr(info, "healthSummary", 0)


def _fabric_info(calls: NvmlCalls, handle: object, struct: str) -> Any:
    make = getattr(calls.pynvml, struct, None)
    if make is None:
        raise CallFailed("nvmlDeviceGetGpuFabricInfoV", FUNCTION_NOT_FOUND, f"this nvidia-ml-py has no {struct}")
    info = make()
    calls.ask("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info))
    return info
