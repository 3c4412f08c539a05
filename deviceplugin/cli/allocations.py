"""`topogpu-device-plugin allocations`."""

import sys

import click

from deviceplugin.cli.options import configuration_options
from program.commands import output_option


@click.command()
@configuration_options
@output_option(wide=True)
def allocations(*, output: str, **given: str | None) -> None:
    """List which containers hold replicas of this node's GPUs, and whether all sources agree.

    For every container that holds replicas: its pod, its slot, its GPUs and their limits, and whether kubelet's
    checkpoint, pod-resources, the pod's annotation and the slot's CDI spec agree. It changes nothing. Run it where the
    daemon runs, with the daemon's options.

    Exit status: 0 when all readable sources agree, 1 when something differs or no source can be read.
    """
    # Imported here, because it takes half a second that the help does not need.
    from deviceplugin.cli.listing import list_allocations  # noqa: PLC0415

    sys.exit(0 if list_allocations(given, output) else 1)
