"""Prints three readings of the GPUs' telemetry and the NVML calls of each as JSON, in its own process.

Argument: the library's path.
"""

import json
import sys
from collections import Counter
from typing import Any

import pynvml

from deviceplugin.nvml.reader import Nvml
from deviceplugin.nvml.telemetry import read_telemetry


def main(library: str) -> None:
    nvml = Nvml(library)
    nvml.read_machine()
    asked: Counter[str] = Counter()
    plain = pynvml._nvmlGetFunctionPointer

    def counted(name: str) -> Any:
        asked[name] += 1
        return plain(name)

    pynvml._nvmlGetFunctionPointer = counted
    readings = []
    for _ in range(3):
        asked.clear()
        told = read_telemetry(nvml.calls(), nvml.gpus())
        gpus = [
            {
                "values": one.values,
                "instances": [[each.gi, each.profile, sorted(each.devices), each.values] for each in one.instances],
            }
            for one in told
        ]
        readings.append({"gpus": gpus, "asked": dict(asked)})
    print(json.dumps(readings))


if __name__ == "__main__":
    main(sys.argv[1])
