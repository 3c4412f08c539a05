"""Sets and reads limits of GPU memory by nvidia-ml-py, in its own process. Prints JSON.

Arguments: the library's path, then steps: `set GPU FOLDER MiB`, `clear GPU FOLDER` or `get GPU FOLDER`.
"""

import ctypes
import json
import sys
from typing import Any

import pynvml

from tests.simulation.nvml_probe import asked

MIB = 1 << 20


def step(words: list[str]) -> Any:
    verb, number, folder, *amount = words
    gpu = pynvml.nvmlDeviceGetHandleByIndex(int(number))
    if verb == "get":
        found = pynvml.c_nvmlGetMemoryLimits_v1_t(folder.encode())
        problem = asked(pynvml.nvmlDeviceGetMemoryLimits_v1, gpu, found)
        hard = None if found.hardLimit == pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX else found.hardLimit // MIB
        return problem or [found.softLimit, hard, found.currentUsed // MIB]
    hard = int(amount[0]) * MIB if amount else pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX
    return asked(pynvml.nvmlDeviceSetMemoryLimits_v1, gpu, pynvml.c_nvmlSetMemoryLimits_v1_t(folder.encode(), 0, hard))


if __name__ == "__main__":
    pynvml.nvmlLib = ctypes.CDLL(sys.argv[1])
    pynvml.nvmlInit()
    print(json.dumps([step(words.split()) for words in sys.argv[2:]]))
