"""`topogpu-device-plugin devices`."""

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from deviceplugin.cli.output import print_json, print_text
from deviceplugin.cli.sources import machine_options, read_machine
from deviceplugin.matrix import gpu_facts
from deviceplugin.readings import GpuReading, MachineReading


@click.command()
@machine_options
@click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="For people or programs."
)
def devices(machine: str | None, nvml_library: str | None, sysfs_root: str, output: str) -> None:
    """List the GPUs of this machine: model, memory, NUMA node, address and health."""
    reading = read_machine(machine, nvml_library, sysfs_root)
    if output == "json":
        gpus = [gpu_facts(gpu) for gpu in reading.gpus]
        print_json({"driver": reading.driver, "gpus": gpus, "problems": reading.problems})
    else:
        print_text(_text(reading))


def _text(reading: MachineReading) -> RenderableType:
    problems = [Text(f"! {problem}", "yellow") for problem in reading.problems]
    if not reading.gpus:
        return Group(Text("No NVIDIA GPU on this machine."), *problems)
    table = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), title=f"Driver {reading.driver}", title_justify="left"
    )
    for column in ("GPU", "Model", "Memory", "NUMA", "PCI address", "Health", "UUID"):
        table.add_column(column, no_wrap=True, justify="right" if column == "Memory" else "left")
    for gpu in reading.gpus:
        table.add_row(*_row(gpu))
    return Group(table, *problems)


def _row(gpu: GpuReading) -> tuple[str | Text, ...]:
    memory = "unknown" if gpu.memory_mib is None else f"{gpu.memory_mib:,} MiB"
    health = Text("healthy", "green") if gpu.healthy else Text(gpu.problem, "red")
    numa = str(gpu.numa) if gpu.numa >= 0 else "unknown"
    return (str(gpu.index), gpu.name, memory, numa, gpu.bus_id, health, gpu.uuid)
