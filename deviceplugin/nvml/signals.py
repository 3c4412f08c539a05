"""Reads a GPU's health signals from NVML. Calls block and belong to the thread that owns the library."""

import ctypes
from collections.abc import Iterable
from functools import partial
from typing import Any

from deviceplugin.health.step import GpuLost, Polled, Signals
from deviceplugin.nvml.calls import ARGUMENT_VERSION_MISMATCH, CallFailed, GpuGone, NvmlCalls
from deviceplugin.nvml.lanes import Hangs
from proto.devices import DeviceUUID

RECOVERY_ACTION_FIELD = 230

_UNCORRECTED, _VOLATILE = 1, 0  # nvmlMemoryErrorType_t, nvmlEccCounterType_t
_FABRIC_COMPLETED = 3
_FABRIC_UNHEALTHY = 2  # NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY


def poll_health(calls: NvmlCalls, gpus: Iterable[DeviceUUID]) -> tuple[Polled | GpuLost, ...]:
    """Returns an answer for each GPU, except for one that has been silent for too short a time.

    A signal that a GPU does not have is read once, until the library is opened again.
    """
    answers = calls.lanes.ask("health", {uuid: partial(_poll, calls, uuid) for uuid in gpus})
    found = ((_silent(uuid, answer) if isinstance(answer, Hangs) else answer) for uuid, answer in answers.items())
    return tuple(answer for answer in found if answer is not None)


def fallen_off(calls: NvmlCalls, gpus: Iterable[DeviceUUID]) -> tuple[GpuLost, ...]:
    """Returns the GPUs that have fallen off the bus for certain, by two cheap calls each."""
    answers = calls.lanes.ask("presence", {uuid: partial(_missing, calls, uuid) for uuid in gpus})
    return tuple(lost for lost in answers.values() if isinstance(lost, GpuLost) and lost.certain)


def _poll(calls: NvmlCalls, uuid: DeviceUUID) -> Polled | GpuLost:
    try:
        handle = calls.ask("nvmlDeviceGetHandleByUUID", uuid)
        return Polled(gpu=uuid, signals=_signals(calls.noting(), handle))
    except CallFailed as error:
        return _lost(uuid, error)


def _signals(calls: NvmlCalls, handle: object) -> Signals:
    """Raises GpuGone."""
    rows = calls.ask_or((0, 0, 0, 0), "nvmlDeviceGetRemappedRows", handle)
    state, status, summary, unread = _fabric(calls, handle)
    return Signals(
        recovery_action=calls.field(handle, RECOVERY_ACTION_FIELD),
        remap_pending=bool(rows[2]),
        remap_failed=bool(rows[3]),
        pages_pending=bool(calls.ask_or(0, "nvmlDeviceGetRetiredPagesPendingStatus", handle)),
        uncorrected=calls.ask_or(None, "nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE),
        # State 0: no fabric to register with; the status has no meaning before completion.
        fabric_broken=state != 0 and (state, status) != (_FABRIC_COMPLETED, 0) and not _is_divided(calls, handle),
        fabric_unhealthy=state == _FABRIC_COMPLETED and summary == _FABRIC_UNHEALTHY,
        unread=unread if calls.failure is None else str(calls.failure),
    )


def _missing(calls: NvmlCalls, uuid: DeviceUUID) -> GpuLost | None:
    try:
        calls.field(calls.ask("nvmlDeviceGetHandleByUUID", uuid), RECOVERY_ACTION_FIELD)
    except CallFailed as error:
        return _lost(uuid, error)
    return None


def _lost(uuid: DeviceUUID, error: CallFailed) -> GpuLost:
    return GpuLost(gpu=uuid, problem=error.problem, certain=not error.is_passing)


def _silent(uuid: DeviceUUID, hangs: Hangs) -> GpuLost | None:
    return GpuLost(gpu=uuid, problem=str(hangs)) if hangs.is_lasting else None


def _is_divided(calls: NvmlCalls, handle: object) -> bool:
    """Returns whether MIG is on: then the GPU uses no NVLink (NVIDIA's MIG user guide), and so no fabric."""
    return bool(calls.ask_or([0, 0], "nvmlDeviceGetMigMode", handle)[0])


def _fabric(calls: NvmlCalls, handle: object) -> tuple[int, int, int, str]:
    """Returns state, status and health summary, 0 from drivers that do not summarise, and why they cannot be read now.
    Raises GpuGone.
    """
    try:
        try:
            info = _fabric_info(calls, handle, "c_nvmlGpuFabricInfo_v3_t")
        except CallFailed as error:
            if error.code != ARGUMENT_VERSION_MISMATCH:
                raise
            info = _fabric_info(calls, handle, "c_nvmlGpuFabricInfo_v2_t")
    except GpuGone:
        raise
    except CallFailed as error:
        return 0, 0, 0, "" if error.is_absent else str(error)
    return info.state, info.status, getattr(info, "healthSummary", 0), ""


def _fabric_info(calls: NvmlCalls, handle: object, struct: str) -> Any:
    info = getattr(calls.pynvml, struct)()
    calls.ask("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info))
    return info
