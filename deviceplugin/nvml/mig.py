"""MIG devices of a GPU as NVML reports them."""

import math
from typing import Any

from deviceplugin.machine.readings import GpuReading, MigReading, MigSize
from deviceplugin.nvml.calls import NOT_FOUND, CallFailed, GpuGone, NvmlCalls, read_uuid

_MOST_DEVICES = 32
"""The most MIG devices that are read of one GPU, whatever the driver reports. GPUs of 2026 have up to 7."""
_MEMORY_SLICES = 8
"""A profile's name rounds its memory up to eighths of the GPU's (NVIDIA/go-nvlib pkg/nvlib/device/mig_profile.go)."""


def read_mig_devices(
    calls: NvmlCalls, handle: object, gpu: GpuReading
) -> tuple[tuple[MigReading, ...], tuple[str, ...]]:
    """Returns the MIG devices with an identity, and a sentence for each that does not. Raises GpuGone."""
    found: list[MigReading] = []
    problems: list[str] = []
    for place in range(min(calls.ask_or(0, "nvmlDeviceGetMaxMigDeviceCount", handle), _MOST_DEVICES)):
        try:
            device = calls.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
            found.append(_read(calls, device, gpu))
        except GpuGone:
            raise
        except CallFailed as error:
            if error.code != NOT_FOUND:  # places that hold no device lie between others
                problems.append(f"MIG device {place}: {error.problem}")
    return tuple(found), tuple(problems)


def _read(calls: NvmlCalls, handle: object, gpu: GpuReading) -> MigReading:
    """Raises CallFailed."""
    calls.forget_refusals(handle)  # it may have been that of another device before
    memory: Any = calls.ask_or(None, "nvmlDeviceGetMemoryInfo", handle)
    return MigReading(
        uuid=read_uuid(calls, handle),
        profile=_profile(calls, handle, gpu.memory_mib),
        gi=calls.ask("nvmlDeviceGetGpuInstanceId", handle),
        ci=calls.ask("nvmlDeviceGetComputeInstanceId", handle),
        parent=gpu.uuid,
        memory_mib=memory.total // 1_048_576 if memory is not None else None,
        size=_size(calls.ask_or(None, "nvmlDeviceGetAttributes", handle)),
    )


def _size(attributes: Any) -> MigSize | None:
    if attributes is None:
        return None
    return MigSize(
        gpu_slices=attributes.gpuInstanceSliceCount,
        compute_slices=attributes.computeInstanceSliceCount,
        multiprocessors=attributes.multiprocessorCount,
        copy_engines=attributes.sharedCopyEngineCount,
        decoders=attributes.sharedDecoderCount,
        encoders=attributes.sharedEncoderCount,
        jpeg_engines=attributes.sharedJpegCount,
        ofa_engines=attributes.sharedOfaCount,
    )


def _profile(calls: NvmlCalls, handle: object, gpu_memory_mib: int | None) -> str:
    """Returns the profile at the end of the device's name, else the name of its size. Raises CallFailed."""
    name: str = calls.ask_or("", "nvmlDeviceGetName", handle)
    if profile := name.partition(" MIG ")[2].strip():
        return profile
    size: Any = calls.ask("nvmlDeviceGetAttributes", handle)
    slices = (size.computeInstanceSliceCount, size.gpuInstanceSliceCount)
    compute = f"{slices[0]}c." if slices[0] != slices[1] else ""
    return f"{compute}{slices[1]}g.{_named_gb(size.memorySizeMB, gpu_memory_mib)}gb"


def _named_gb(memory_mib: int, gpu_memory_mib: int | None) -> int:
    """4864 MiB of 40960 are called 5gb."""
    if not gpu_memory_mib:
        return round(memory_mib / 1024)
    share = math.ceil(memory_mib / gpu_memory_mib * _MEMORY_SLICES) / _MEMORY_SLICES
    return round(share * math.ceil(gpu_memory_mib / 1024))
