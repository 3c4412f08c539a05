"""Measures one scrape of the node daemon's page with DCGM exporter's names, in this process so that its calls can be
counted.

`python -m benchmarks.scrapes` takes a second. It prints CPU time, so a busy machine shows the same.
"""

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import click
import pynvml

from deviceplugin.metrics.telemetry import telemetry_page
from deviceplugin.metrics.view import DaemonView
from deviceplugin.nvml.reader import Nvml
from deviceplugin.nvml.telemetry import read_telemetry
from deviceplugin.usage.telemetry import NodeTelemetry
from simulation import machines
from simulation.nvml.build import build_library
from simulation.nvml.machine_file import MACHINE_FILE_VARIABLE, write_machine_file

NODE = "node-1"
SCRAPES = 100


@dataclass(frozen=True, slots=True)
class Scrape:
    """Calls into NVML, CPU seconds of reading and writing, bytes of the page."""

    calls: float
    cpu_seconds: float
    page: int

    def __str__(self) -> str:
        return f"{self.calls:.0f} NVML calls, {1000 * self.cpu_seconds:.1f} ms of CPU, {self.page / 1024:.0f} KiB"


def scrapes(machine_name: str) -> Scrape:
    """The mean of many. The daemon has already asked which fields a GPU lacks."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ[MACHINE_FILE_VARIABLE] = f"{folder}/machine"
        write_machine_file(machines.load(machine_name), Path(folder, "machine"), NODE)
        nvml = Nvml(str(build_library()))
        machine = nvml.read_machine()
        calls, page, plain = 0, "", pynvml._nvmlGetFunctionPointer

        def counted(name: str) -> object:
            nonlocal calls
            calls += 1
            return plain(name)

        pynvml._nvmlGetFunctionPointer = counted
        read_telemetry(nvml.calls(), nvml.gpus())
        calls, began = 0, time.process_time()
        for _ in range(SCRAPES):
            gpus = read_telemetry(nvml.calls(), nvml.gpus())
            page = telemetry_page(DaemonView(node_name=NODE), NodeTelemetry(driver=machine.driver, gpus=gpus), 0.0)
        cpu_seconds = time.process_time() - began
        pynvml._nvmlGetFunctionPointer = plain
        nvml.close()
        return Scrape(calls / SCRAPES, cpu_seconds / SCRAPES, len(page))


@click.command(context_settings={"show_default": True})
@click.option("--machine", default="hgxh100-8x-h100-80g", help="One of simulation/machines.")
def main(machine: str) -> None:
    """Print calls, CPU time and size of one scrape."""
    click.echo(scrapes(machine))


if __name__ == "__main__":
    main()
