"""`topogpu-device-plugin devices`."""

from collections.abc import Iterator

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from deviceplugin.cli.output import print_json, print_text
from deviceplugin.cli.sources import machine_options, read_machine
from deviceplugin.machine.matrix import gpu_facts
from deviceplugin.machine.readings import GpuReading, MachineReading


@click.command()
@machine_options
@click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="For people or programs."
)
def devices(machine: str | None, nvml_library: str | None, sysfs_root: str, output: str) -> None:
    """List the GPUs of this machine and their MIG devices: model, memory, NUMA node, address and health."""
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
        for row in _mig_rows(gpu):
            table.add_row(*row)
    return Group(table, *problems)


def _row(gpu: GpuReading) -> tuple[str | Text, ...]:
    health = Text("healthy", "green") if gpu.healthy else Text(gpu.problem, "red")
    numa = str(gpu.numa) if gpu.numa >= 0 else "unknown"
    return (str(gpu.index), gpu.name, _memory(gpu.memory_mib), numa, gpu.bus_id, health, gpu.uuid)


def _mig_rows(gpu: GpuReading) -> Iterator[tuple[str, ...]]:
    """Rows of MIG devices; they have the NUMA node, address and health of their GPU."""
    if gpu.mig_enabled and not gpu.mig_devices:
        yield ("", "MIG is on, without a MIG device")
    for mig in gpu.mig_devices:
        yield ("", f"  MIG {mig.profile}", _memory(mig.memory_mib), "", "", "", mig.uuid)


def _memory(mib: int | None) -> str:
    return "unknown" if mib is None else f"{mib:,} MiB"
