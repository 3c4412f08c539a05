"""`kubectl topogpu top`."""

import gc
import sys
from collections.abc import Callable

import click

from kubectl_topogpu import top as tree
from kubectl_topogpu.cli.completion import NODES
from kubectl_topogpu.cli.options import CommonOptions, node_of, with_options
from kubectl_topogpu.cluster import GpuCluster, GpuNode, Wanted
from kubectl_topogpu.report import Output, TableReport
from kubectl_topogpu.sources import readings

_NO_TEXTUAL = "top -i needs textual: python -m pip install 'topogpu[tui]'"


@click.command()
@click.argument("nodes", nargs=-1, shell_complete=NODES)
@click.option("--level", type=click.Choice([each.value for each in tree.Level]),
              help=f"Level of detail [default: pods; as text at most {tree.MOST_LINES} lines].")  # fmt: skip
@click.option("--used", is_flag=True, help="Show what processes use now. Reads the metrics of each node's daemon.")
@click.option("-i", "--interactive", is_flag=True, help="Keep it on the terminal: tables to sort, filter and search.")
@with_options(selects="nodes", sorts=True)
def top(
    options: CommonOptions, nodes: tuple[str, ...], level: str | None, *, used: bool, interactive: bool
) -> TableReport | None:
    """Show nodes, their GPUs, and the pods that hold them: memory, cores and replicas.

    With --namespace, GPUs on which a pod of that namespace is, and these pods alone.
    """

    def chosen(cluster: GpuCluster) -> tuple[GpuNode, ...]:
        return tuple(node_of(cluster, name) for name in nodes) or cluster.nodes

    if interactive:
        _run(options, chosen, level, used=used)
        return None
    cluster = options.cluster(Wanted(asks=options.output is not Output.TEXT))
    shown = chosen(cluster)
    return tree.top(
        cluster,
        tree.of_namespace(shown, options.chosen_namespace),
        None if level is None else tree.Level(level),
        readings(options.source, cluster, shown) if used else None,
        options.order,
    )


def _run(
    options: CommonOptions, chosen: Callable[[GpuCluster], tuple[GpuNode, ...]], level: str | None, *, used: bool
) -> None:
    """Shows the terminal until it is left. Raises ClickException without textual."""
    if options.output is not Output.TEXT:
        raise click.UsageError("-i is for a terminal: it cannot be used with --output")
    if not sys.stdout.isatty():
        raise click.UsageError("-i needs a terminal: standard output is none")
    try:
        from kubectl_topogpu.interactive import EVERY_SECONDS, TopApp  # noqa: PLC0415 - optional, and takes long
    except ModuleNotFoundError as error:
        raise click.ClickException(_NO_TEXTUAL) from error
    from kubectl_topogpu.views import Observed, View, ViewChoice  # noqa: PLC0415
    from kubectl_topogpu.waiting import waiting  # noqa: PLC0415

    gc.enable()  # it runs for hours

    def read() -> Observed:
        cluster = options.cluster(Wanted(decisions=True, fgd=True, waiting=True))
        shown = chosen(cluster)
        return Observed(
            cluster=cluster,
            nodes=tree.of_namespace(shown, options.chosen_namespace),
            readings=readings(options.source, cluster, shown) if used else None,
            waiting=waiting(cluster, options.chosen_namespace).rows,
        )

    choice = ViewChoice(view=View.NODES if level is None else View(level), order=options.order)
    TopApp(read, choice, every=0 if options.is_recorded else EVERY_SECONDS).run()
