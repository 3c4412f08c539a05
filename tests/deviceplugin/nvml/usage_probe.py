"""Prints two readings of the GPUs' usage as JSON, in its own process: NVML is one machine per process.

Argument: the library's path.
"""

import json
import sys
from dataclasses import asdict

from deviceplugin.nvml.reader import Nvml
from deviceplugin.nvml.usage import UsageReader


def main(library: str) -> None:
    nvml = Nvml(library)
    nvml.read_machine()
    reader = UsageReader()
    readings = [reader.read(nvml.calls(), nvml.handles()) for _ in range(2)]
    print(json.dumps([[asdict(sample) for sample in reading] for reading in readings]))


if __name__ == "__main__":
    main(sys.argv[1])
