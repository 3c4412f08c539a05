"""`topogpu-device-plugin devices` and `topo`: what the driver shows of this machine."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import click
from rich.console import Group, RenderableType
from rich.text import Text

from deviceplugin.host_paths import sysfs
from deviceplugin.machine.matrix import LinkView, as_json, as_text, gpu_facts, view_machine
from deviceplugin.machine.readings import GpuReading, MachineReading
from deviceplugin.machine.topology import build_topology
from deviceplugin.nvml.library import NvmlUnavailable
from deviceplugin.nvml.reader import Nvml
from program.commands import output_option
from program.output import print_json, print_text
from program.tables import Column, FittingTable
from program.words import spaced

_COLUMNS = (
    Column(title="GPU"),
    Column(title="Model"),
    Column(title="Memory", right=True),
    Column(title="NUMA", rank=1),
    Column(title="PCI address", rank=2),
    Column(title="Health", wraps=True),
)

Command = TypeVar("Command", bound=Callable[..., object])


def driver_options(command: Command) -> Command:
    """Adds the two options that choose NVML."""
    library = click.option(
        "--nvml-library",
        metavar="PATH",
        envvar="NVML_LIBRARY",
        show_envvar=True,
        help="NVML library to load instead of the system's libnvidia-ml.so.1.",
    )
    host = click.option(
        "--host-root",
        metavar="DIR",
        default="/",
        envvar="HOST_ROOT",
        show_envvar=True,
        show_default=True,
        help="Where the host's folders are mounted; /sys is read below it.",
    )
    return library(host(command))


def read_machine(nvml_library: str | None, host_root: str) -> MachineReading:
    """Reads NVML. Raises click.ClickException."""
    nvml = Nvml(nvml_library, sysfs_root=sysfs(host_root))
    try:
        return nvml.read_machine()
    except NvmlUnavailable as error:
        raise click.ClickException(str(error)) from error
    finally:
        nvml.close()


@click.command()
@driver_options
@output_option(wide=True)
def devices(nvml_library: str | None, host_root: str, output: str) -> None:
    """List the GPUs of this machine and their MIG devices: model, memory, NUMA node, address and health."""
    print_gpus(read_machine(nvml_library, host_root), output)


def print_gpus(reading: MachineReading, output: str) -> None:
    if output == "json":
        gpus = [gpu_facts(gpu) for gpu in reading.gpus]
        print_json({"driver": reading.driver, "gpus": gpus, "problems": reading.problems})
    else:
        print_text(_text(reading, wide=output == "wide"))


def _text(reading: MachineReading, *, wide: bool) -> RenderableType:
    problems = [Text(f"! {problem}", "yellow") for problem in reading.problems]
    if not reading.gpus:
        return Group(Text("No NVIDIA GPU on this machine."), *problems)
    columns = [*_COLUMNS, *([Column(title="UUID")] if wide else [])]
    rows = [row for gpu in reading.gpus for row in (_row(gpu), *_mig_rows(gpu))]
    table = FittingTable(
        columns=columns,
        rows=[row[: len(columns)] for row in rows],
        title=f"Driver {reading.driver}",
        everything=wide,
        more="--output json shows all.",
    )
    return Group(table, *problems)


def _row(gpu: GpuReading) -> tuple[str | Text, ...]:
    health = Text("healthy", "green") if gpu.healthy else Text(gpu.problem, "red")
    numa = str(gpu.numa) if gpu.numa >= 0 else "unknown"
    return (str(gpu.index), gpu.name, _memory(gpu.memory_mib), numa, gpu.bus_id, health, gpu.uuid)


def _mig_rows(gpu: GpuReading) -> Iterator[tuple[str, ...]]:
    """Yields rows of MIG devices; they have the NUMA node, address and health of their GPU."""
    if gpu.mig_enabled and not gpu.mig_devices:
        yield ("", "MIG is on, without a MIG device", "", "", "", "", "")
    for mig in gpu.mig_devices:
        yield ("", f"  MIG {mig.profile}", _memory(mig.memory_mib), "", "", "", mig.uuid)


def _memory(mib: int | None) -> str:
    return "unknown" if mib is None else f"{spaced(mib)} MiB"


@click.command()
@driver_options
@output_option()
def topo(nvml_library: str | None, host_root: str, output: str) -> None:
    """Show how the GPUs of this machine are connected: link matrix, scores, GB/s.

    The scheduler compares scores: 10 (SYS) to 60 for the PCIe path plus 100 for every NVLink, also behind an NVSwitch.
    """
    reading = read_machine(nvml_library, host_root)
    print_links(view_machine(build_topology(reading), reading.problems), output)


def print_links(view: LinkView, output: str) -> None:
    if output == "json":
        print_json(as_json(view))
        for note in view.notes:
            click.echo(note, err=True)
    else:
        print_text(as_text(view))
