"""`kubectl topogpu waste` and `frag`."""

import click

from kubectl_topogpu import waste as spare
from kubectl_topogpu.cli.options import CommonOptions, with_options
from kubectl_topogpu.cluster import Wanted
from kubectl_topogpu.report import TableReport
from kubectl_topogpu.sources import readings


@click.command()
@click.option("--used", is_flag=True, help="Show held memory that no process uses. Reads the metrics of each daemon.")
@with_options(selects="nodes", sorts=True)
def waste(options: CommonOptions, *, used: bool) -> TableReport:
    """Show memory that no pod requested: idle, unused, and stranded where no pod can get it."""
    cluster = options.cluster(Wanted())
    return spare.waste(cluster, readings(options.source, cluster, cluster.nodes) if used else None, options.order)


@click.command()
@with_options(selects="nodes", names=False)
def frag(options: CommonOptions) -> TableReport:
    """Show how large a request still fits: whole GPUs together on a node, and the largest share."""
    return spare.frag(options.cluster(Wanted()))
