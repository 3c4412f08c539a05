"""Options that choose the driver's library, and how the machine is read."""

from collections.abc import Callable
from typing import TypeVar

import click

from deviceplugin.host_paths import sysfs
from deviceplugin.machine.readings import MachineReading
from deviceplugin.nvml.library import NvmlUnavailable
from deviceplugin.nvml.reader import Nvml

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
