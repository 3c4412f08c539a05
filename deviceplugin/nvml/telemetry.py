"""The state of each GPU: clocks, temperatures, errors, traffic. Ten calls a GPU, and one for each MIG instance.

PCIe's momentary throughput is not read: NVML measures it for 20 ms within the call (nvmlDeviceGetPcieThroughput).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from deviceplugin.machine.readings import GpuReading
from deviceplugin.nvml.calls import CallFailed, GpuGone, NvmlCalls
from deviceplugin.nvml.lanes import Hangs
from deviceplugin.usage.telemetry import Instance, Quantity, Telemetry, Values, instances_of

_ALL_LINKS = 0xFFFFFFFF
_KIB = 1024
_FIELDS: Mapping[tuple[int, int], tuple[Quantity, int]] = {
    (3, 0): (Quantity.ECC_SBE_VOLATILE, 1),
    (4, 0): (Quantity.ECC_DBE_VOLATILE, 1),
    (5, 0): (Quantity.ECC_SBE_AGGREGATE, 1),
    (6, 0): (Quantity.ECC_DBE_AGGREGATE, 1),
    (38, 0): (Quantity.NVLINK_CRC_FLIT, 1),
    (45, 0): (Quantity.NVLINK_CRC_DATA, 1),
    (52, 0): (Quantity.NVLINK_REPLAYS, 1),
    (59, 0): (Quantity.NVLINK_RECOVERIES, 1),
    (82, 0): (Quantity.MEMORY_TEMP, 1),
    (83, 0): (Quantity.ENERGY, 1),
    (94, 0): (Quantity.PCIE_REPLAYS, 1),
    (138, _ALL_LINKS): (Quantity.NVLINK_SENT, _KIB),
    (139, _ALL_LINKS): (Quantity.NVLINK_RECEIVED, _KIB),
    (142, 0): (Quantity.ROWS_CORRECTABLE, 1),
    (143, 0): (Quantity.ROWS_UNCORRECTABLE, 1),
    (145, 0): (Quantity.ROWS_FAILED, 1),
    (197, 0): (Quantity.PCIE_SENT, 1),
    (198, 0): (Quantity.PCIE_RECEIVED, 1),
}
"""Maps a field (NVML_FI_DEV_* of nvml.h) and its scope to our quantity, and to how many of our units one of the
driver's is.
"""
_DIE = 0
_SM, _MEMORY = 1, 2  # nvmlClockType_t


def read_telemetry(calls: NvmlCalls, gpus: Sequence[tuple[GpuReading, object]]) -> tuple[Telemetry, ...]:
    """Reads each GPU with its handle; a GPU that is gone or does not answer is left out."""
    functions = {gpu.uuid: partial(_telemetry, calls, gpu, handle) for gpu, handle in gpus}
    answers = calls.lanes.ask("telemetry", functions)
    found = [(gpu, answers[gpu.uuid]) for gpu, _ in gpus]
    return tuple(Telemetry(gpu=gpu) if isinstance(answer, Hangs) else answer for gpu, answer in found)


def _telemetry(calls: NvmlCalls, gpu: GpuReading, handle: object) -> Telemetry:
    try:
        values = {**dict(_quantities(calls, handle)), **_memory(calls, handle), **_fields(calls, handle)}
        instances = tuple(_with_memory(calls, instance) for instance in instances_of(gpu))
    except GpuGone:
        return Telemetry(gpu=gpu)
    return Telemetry(gpu=gpu, values=values, instances=instances)


def _quantities(calls: NvmlCalls, handle: object) -> Iterator[tuple[Quantity, float]]:
    rates: Any = calls.ask_or(None, "nvmlDeviceGetUtilizationRates", handle)
    encoder: Any = calls.ask_or(None, "nvmlDeviceGetEncoderUtilization", handle)
    decoder: Any = calls.ask_or(None, "nvmlDeviceGetDecoderUtilization", handle)
    milliwatts = calls.ask_or(None, "nvmlDeviceGetPowerUsage", handle)
    found: Mapping[Quantity, float | None] = {
        Quantity.GPU_UTIL: None if rates is None else rates.gpu,
        Quantity.MEM_COPY_UTIL: None if rates is None else rates.memory,
        Quantity.ENC_UTIL: None if encoder is None else encoder[0],
        Quantity.DEC_UTIL: None if decoder is None else decoder[0],
        Quantity.GPU_TEMP: calls.ask_or(None, "nvmlDeviceGetTemperature", handle, _DIE),
        Quantity.POWER_USAGE: None if milliwatts is None else milliwatts / 1000,
        Quantity.SM_CLOCK: calls.ask_or(None, "nvmlDeviceGetClockInfo", handle, _SM),
        Quantity.MEM_CLOCK: calls.ask_or(None, "nvmlDeviceGetClockInfo", handle, _MEMORY),
        # The older of its two names, which every driver has.
        Quantity.CLOCK_REASONS: calls.ask_or(None, "nvmlDeviceGetCurrentClocksThrottleReasons", handle),
    }
    for quantity, value in found.items():
        if value is not None:
            yield quantity, value


def _memory(calls: NvmlCalls, handle: object) -> Values:
    """Version 2 separates the driver's reserved part from what is used; drivers before R510 have version 1 alone."""
    memory: Any = calls.ask_or(None, "nvmlDeviceGetMemoryInfo", handle, calls.pynvml.nvmlMemory_v2)
    reserved = {} if memory is None else {Quantity.FB_RESERVED: memory.reserved >> 20}
    if memory is None:
        memory = calls.ask_or(None, "nvmlDeviceGetMemoryInfo", handle)
    if memory is None:
        return {}
    return {Quantity.FB_USED: memory.used >> 20, Quantity.FB_FREE: memory.free >> 20, **reserved}


def _fields(calls: NvmlCalls, handle: object) -> Values:
    found = calls.fields(handle, tuple(_FIELDS))
    return {_FIELDS[field][0]: _FIELDS[field][1] * value for field, value in found.items()}


def _with_memory(calls: NvmlCalls, instance: Instance) -> Instance:
    """Raises GpuGone."""
    try:
        handle = calls.ask("nvmlDeviceGetHandleByUUID", min(instance.devices))
    except GpuGone:
        raise
    except CallFailed:
        return instance  # it went since the GPUs were read
    return replace(instance, values=_memory(calls, handle))
