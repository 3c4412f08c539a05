"""`topogpu-device-plugin uninstall-node`."""

import click

from deviceplugin.cli.options import configuration_options
from program.settings.options import GroupedCommand


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
    # Imported here, because it takes half a second that the help does not need.
    from deviceplugin.cli.uninstalling import uninstall  # noqa: PLC0415

    uninstall(given, dry_run=dry_run, force=force)
