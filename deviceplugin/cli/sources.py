"""Options for the source of a machine's description, and how it is read."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import click

from deviceplugin.machine.described import describe_reading
from deviceplugin.machine.description import read_machine_description
from deviceplugin.machine.readings import MachineReading
from deviceplugin.machine.yaml_tree import MachineDescriptionError
from deviceplugin.nvml.reader import Nvml, NvmlUnavailable
from program.text_files import read_text
from program.words import nearest

Command = TypeVar("Command", bound=Callable[..., object])


def machine_options(command: Command) -> Command:
    """Adds `--machine`, and the two options that choose NVML."""
    options = (
        click.option(
            "--machine",
            metavar="NAME|FILE",
            help="Read a simulated machine (topogpu-sim machines lists them) or a description (YAML) instead of NVML; "
            "- is standard input.",
        ),
        click.option(
            "--nvml-library",
            metavar="PATH",
            envvar="NVML_LIBRARY",
            show_envvar=True,
            help="NVML library to load instead of the system's libnvidia-ml.so.1.",
        ),
        click.option(
            "--sysfs-root",
            metavar="DIR",
            default="/sys",
            envvar="SYSFS_ROOT",
            show_envvar=True,
            show_default=True,
            help="Where the host's /sys is mounted.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def read_machine(machine: str | None, nvml_library: str | None, sysfs_root: str) -> MachineReading:
    """Reads a description if one is named, else NVML. Raises click.ClickException."""
    if machine is not None:
        try:
            return describe_reading(read_machine_description(_description(machine), machine))
        except MachineDescriptionError as error:
            raise click.ClickException(str(error)) from error
    nvml = Nvml(nvml_library, sysfs_root=Path(sysfs_root))
    try:
        return nvml.read_machine()
    except NvmlUnavailable as error:
        raise click.ClickException(str(error)) from error
    finally:
        nvml.close()


def _description(machine: str) -> str:
    """The text of a machine. A file wins over a name. Raises click.ClickException."""
    known = _simulated()
    if machine in known and not Path(machine).exists():
        return read_text(str(known[machine]))
    try:
        return read_text(machine)
    except click.ClickException as error:
        if machine == "-" or Path(machine).exists() or "/" in machine:
            raise
        raise click.ClickException(f"{error.format_message()}; {_nearest(machine, known)}") from error


def _simulated() -> Mapping[str, Path]:
    """The machines of the distribution topogpu-simulation by their names; none where it is not installed."""
    simulation = find_spec("simulation")
    folders = simulation.submodule_search_locations if simulation is not None else None
    return {file.stem: file for folder in folders or () for file in sorted(Path(folder, "machines").glob("*.yaml"))}


def _nearest(machine: str, known: Mapping[str, Path]) -> str:
    if not known:
        return "names of simulated machines need topogpu-simulation, which is not installed"
    return f"{nearest(machine, known)}Simulated machines are {', '.join(known)}"
