"""Makes and destroys MIG instances by nvidia-ml-py, in its own process. Argument: the library's path. Prints JSON."""

import ctypes
import json
import os
import sys
from typing import Any

import pynvml

from simulation.nvml.machine_file import MACHINE_FILE_VARIABLE
from tests.simulation.nvml_probe import asked

SEVENTH, THREE_SEVENTHS = 0, 2
"""NVML_GPU_INSTANCE_PROFILE_1_SLICE and _3_SLICE."""


def shown(gpu: Any) -> list[str]:
    count = pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)
    found = [asked(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, place) for place in range(count)]
    return sorted(pynvml.nvmlDeviceGetName(handle).split()[-1] for handle in found if not isinstance(handle, str))


def make(gpu: Any, profile: int, start: int, size: int) -> Any:
    """With the compute instance that has all of it."""
    info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, profile, version=1)
    placement = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
    made = asked(pynvml.nvmlDeviceCreateGpuInstanceWithPlacement, gpu, info.id, ctypes.byref(placement))
    if isinstance(made, str):
        return made
    compute = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(made, profile, 0, version=1)
    pynvml.nvmlGpuInstanceCreateComputeInstance(made, compute.id)
    return made


def main() -> dict[str, Any]:
    gpu, without = pynvml.nvmlDeviceGetHandleByIndex(0), pynvml.nvmlDeviceGetHandleByIndex(1)
    answers: dict[str, Any] = {"before": shown(gpu)}
    pynvml.nvmlDeviceSetMigMode(gpu, 1)
    info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, THREE_SEVENTHS, version=1)
    answers["profile"] = [info.sliceCount, info.instanceCount, info.memorySizeMB]
    first = make(gpu, THREE_SEVENTHS, 0, 4)
    answers["overlapping"] = make(gpu, SEVENTH, 3, 1)
    answers["no such place"] = make(gpu, THREE_SEVENTHS, 2, 4)
    small = make(gpu, SEVENTH, 4, 1)
    answers["made"] = shown(gpu)
    answers["of another GPU"] = asked(make, without, SEVENTH, 0, 1)
    at = pynvml.nvmlGpuInstanceGetInfo(small).placement
    answers["placement"] = [at.start, at.size]
    os.utime(os.environ[MACHINE_FILE_VARIABLE])
    answers["after a new file"] = shown(gpu)
    answers["in use"] = asked(pynvml.nvmlGpuInstanceDestroy, first)
    pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(first, 0))
    pynvml.nvmlGpuInstanceDestroy(first)
    answers["left"] = shown(gpu)
    return answers


if __name__ == "__main__":
    pynvml.nvmlLib = ctypes.CDLL(sys.argv[1])
    pynvml.nvmlInit()
    print(json.dumps(main()))
