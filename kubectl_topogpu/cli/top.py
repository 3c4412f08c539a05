"""`kubectl topogpu top`."""

import click

from kubectl_topogpu import top as tree
from kubectl_topogpu.cli.completion import NODES
from kubectl_topogpu.cli.options import CommonOptions, node_of, with_options
from kubectl_topogpu.cli.readings import readings
from kubectl_topogpu.cluster import Wanted
from kubectl_topogpu.report import Output, TableReport


@click.command()
@click.argument("nodes", nargs=-1, shell_complete=NODES)
@click.option("--level", type=click.Choice([each.value for each in tree.Level]),
              help=f"Level of detail [default: pods; as text at most {tree.MOST_LINES} lines].")  # fmt: skip
@click.option("--used", is_flag=True, help="Show what processes use now. Reads the metrics of each node's daemon.")
@with_options(selects="nodes", sorts=True)
def top(asked: CommonOptions, nodes: tuple[str, ...], level: str | None, *, used: bool) -> TableReport:
    """Show nodes, their GPUs, and the pods that hold them: memory, cores and slots.

    With --namespace, GPUs on which a pod of that namespace is, and these pods alone.
    """
    cluster = asked.cluster(Wanted(asks=asked.output is not Output.TEXT))
    shown = [node_of(cluster, name) for name in nodes] or cluster.nodes
    return tree.top(
        cluster,
        tree.of_namespace(shown, asked.chosen_namespace),
        None if level is None else tree.Level(level),
        readings(asked.source, cluster, shown) if used else None,
        asked.order,
    )
