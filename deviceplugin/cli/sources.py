"""Options for the source of a machine's description, and how it is read."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from deviceplugin.machine.described import describe_reading
from deviceplugin.machine.description import read_machine_description
from deviceplugin.machine.readings import MachineReading
from deviceplugin.machine.yaml_tree import MachineDescriptionError
from deviceplugin.nvml.reader import Nvml, NvmlUnavailable
from program.text_files import read_text

Command = TypeVar("Command", bound=Callable[..., object])


def machine_options(command: Command) -> Command:
    """Adds `--machine`, and the two options that choose NVML."""
    options = (
        click.option("--machine", metavar="FILE", help="Read a machine description (YAML) instead of NVML."),
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
            return describe_reading(read_machine_description(read_text(machine), machine))
        except MachineDescriptionError as error:
            raise click.ClickException(str(error)) from error
    nvml = Nvml(nvml_library, sysfs_root=Path(sysfs_root))
    try:
        return nvml.read_machine()
    except NvmlUnavailable as error:
        raise click.ClickException(str(error)) from error
    finally:
        nvml.close()
