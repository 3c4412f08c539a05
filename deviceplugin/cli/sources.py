"""Options that choose the driver's library, and how the machine is read."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from deviceplugin.machine.readings import MachineReading
from deviceplugin.nvml.reader import Nvml, NvmlUnavailable

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
    sysfs = click.option(
        "--sysfs-root",
        metavar="DIR",
        default="/sys",
        envvar="SYSFS_ROOT",
        show_envvar=True,
        show_default=True,
        help="Where the host's /sys is mounted.",
    )
    return library(sysfs(command))


def read_machine(nvml_library: str | None, sysfs_root: str) -> MachineReading:
    """Reads NVML. Raises click.ClickException."""
    nvml = Nvml(nvml_library, sysfs_root=Path(sysfs_root))
    try:
        return nvml.read_machine()
    except NvmlUnavailable as error:
        raise click.ClickException(str(error)) from error
    finally:
        nvml.close()
