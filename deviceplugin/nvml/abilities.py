"""Reads the abilities of a driver and a GPU through NVML."""

import ctypes
from dataclasses import replace
from uuid import UUID

from deviceplugin.health.step import recovery_problem
from deviceplugin.machine.readings import Fabric, GpuReading
from deviceplugin.nvml.calls import CallFailed, NvmlCalls
from deviceplugin.nvml.signals import RECOVERY_ACTION_FIELD


def with_abilities(calls: NvmlCalls, handle: object, gpu: GpuReading) -> GpuReading:
    """Raises GpuGone."""
    capability = calls.ask_or(None, "nvmlDeviceGetCudaComputeCapability", handle)
    return replace(
        gpu,
        compute_capability=None if capability is None else tuple(capability),
        # The current generation drops when idle, the maximum width can exceed the slot.
        pcie_gen=calls.ask_or(None, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
        pcie_width=calls.ask_or(None, "nvmlDeviceGetCurrPcieLinkWidth", handle),
        fabric=_fabric(calls, handle),
        problem=recovery_problem(calls.field(handle, RECOVERY_ACTION_FIELD)),
    )


def driver_version(calls: NvmlCalls) -> str:
    """Returns the version; empty if the driver does not report it."""
    try:
        return str(calls.ask("nvmlSystemGetDriverVersion"))
    except CallFailed:
        return ""


def cuda_version(calls: NvmlCalls) -> tuple[int, int] | None:
    """Returns the newest CUDA version that the driver serves. NVML writes 12.4 as 12040."""
    try:
        number = int(calls.ask("nvmlSystemGetCudaDriverVersion"))
    except CallFailed:
        return None
    return number // 1000, number % 1000 // 10


def _fabric(calls: NvmlCalls, handle: object) -> Fabric | None:
    """Returns None before Hopper and on drivers without the call."""
    info = calls.pynvml.c_nvmlGpuFabricInfoV_t()
    if calls.ask_or(None, "nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info)) is None:
        return None
    cluster = str(UUID(bytes=bytes(info.clusterUuid)))
    return Fabric(state=info.state, status=info.status, cluster=cluster, clique=info.cliqueId)
