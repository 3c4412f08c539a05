"""`topogpu-device-plugin doctor`."""

import sys

import click

from deviceplugin.cli.options import configuration_options
from program.commands import output_option
from program.settings.options import GroupedCommand


@click.command(cls=GroupedCommand)
@configuration_options
@output_option()
def doctor(*, output: str, **given: str | None) -> None:
    """Find what keeps this node from serving its GPUs, and suggest what to do.

    It checks the driver, kubelet's sockets, HAMi-core, CDI, the API server and the Node, each separately, and changes
    nothing. Run it where the daemon runs, with the daemon's options: it compares its own results with what the daemon
    wrote.

    Exit status: 0 without a problem (there may be warnings), 1 with one.
    """
    # Imported here, because it takes half a second that the help does not need.
    from deviceplugin.cli.examining import examine  # noqa: PLC0415

    sys.exit(1 if examine(given, as_json=output == "json") else 0)
