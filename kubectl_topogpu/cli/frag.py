"""`kubectl topogpu frag`."""

import click

from kubectl_topogpu import waste as unasked
from kubectl_topogpu.cli.options import CommonOptions, with_options
from kubectl_topogpu.cluster import Wanted
from kubectl_topogpu.report import TableReport


@click.command()
@with_options(selects="nodes", names=False)
def frag(asked: CommonOptions) -> TableReport:
    """Show how large a request still fits: whole GPUs together on a node, and the largest share."""
    return unasked.frag(asked.cluster(Wanted()))
