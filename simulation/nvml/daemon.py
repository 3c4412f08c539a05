"""The node daemon over the stand-in: `python -m simulation.nvml.daemon MACHINE_FILE -- ARGS...`."""

import sys
from pathlib import Path

from simulation.nvml.machine import MachineFileError
from simulation.nvml.standin import install


def main(given: list[str]) -> None:
    """MACHINE_FILE -- ARGS: the node daemon's command line over the stand-in."""
    if not given:
        sys.exit("usage: python -m simulation.nvml.daemon MACHINE_FILE -- ARGS...")
    try:
        install(Path(given[0]))
    except MachineFileError as e:
        sys.exit(f"Error: {e}")
    from deviceplugin.cli import main as daemon  # noqa: PLC0415 - after the library is in place

    arguments = given[2:] if given[1:2] == ["--"] else given[1:]
    daemon(args=arguments, prog_name="topogpu-device-plugin")


if __name__ == "__main__":
    main(sys.argv[1:])
