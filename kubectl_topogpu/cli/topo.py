"""`kubectl topogpu topo`."""

from pathlib import Path

import click

from kubectl_topogpu import topo as links
from kubectl_topogpu.cli.completion import NODES
from kubectl_topogpu.cli.options import CommonOptions, node_of, with_options
from kubectl_topogpu.cluster import Wanted
from kubectl_topogpu.kubectl import ObjectsUnreadable
from kubectl_topogpu.report import TableReport


@click.command()
@click.argument("node", shell_complete=NODES, required=False)
@click.option("--svg", metavar="FILE", type=click.Path(), help="Also draw it as SVG, to FILE.")
@with_options()
def topo(options: CommonOptions, node: str | None, svg: str | None) -> TableReport:
    """Show how the GPUs of NODE are connected, and who holds them.

    Without NODE: the racks, cliques and other domains of nodes, and how many nodes of each are free as a whole.
    """
    cluster = options.cluster(Wanted())
    if node is None:
        if svg:
            raise click.UsageError("--svg draws one node: name it")
        return links.domains(cluster)
    found = node_of(cluster, node)
    if svg:
        try:
            Path(svg).write_text(links.topo_svg(found), encoding="utf-8")
        except OSError as error:
            raise ObjectsUnreadable(f"{svg}: {error.strerror or error}") from error
    return links.topo(found, cluster)
