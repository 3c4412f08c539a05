"""Commands about what the daemon of this node does: `doctor`, `allocations` and `uninstall-node`.

Each imports its work when it runs, because that takes half a second that the help does not need.
"""

import sys

import click

from deviceplugin.cli.named import configuration_options
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
    from deviceplugin.cli.examining import examine  # noqa: PLC0415

    sys.exit(1 if examine(given, as_json=output == "json") else 0)


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
    from deviceplugin.cli.listing import list_allocations  # noqa: PLC0415

    sys.exit(0 if list_allocations(given, output) else 1)


@click.command("uninstall-node", cls=GroupedCommand)
@configuration_options
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@click.option(
    "--force",
    is_flag=True,
    help="Remove it even if pods have GPUs, a plugin serves, or the API server does not answer.",
)
def uninstall_node(*, dry_run: bool, force: bool, **given: str | None) -> None:
    """Remove what the daemon wrote for this node.

    The annotations, feature labels, condition and taint of the Node and the totals in its capacity, the CDI specs,
    HAMi-core as install-hami-core installed it, the folders of its containers, and a socket that a plugin left behind.
    What other programs wrote stays. Run it with the daemon's options, after the daemon has stopped. Missing parts are
    no error: a second run finds nothing.

    Exit status: 0 when nothing of TopoGPU is left, 1 when it was refused or something could not be removed.
    """
    from deviceplugin.cli.uninstalling import uninstall  # noqa: PLC0415

    uninstall(given, dry_run=dry_run, force=force)
