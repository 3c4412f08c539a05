"""`kubectl topogpu who`."""

import click

from kubectl_topogpu import who as holding
from kubectl_topogpu.cli.completion import TARGETS
from kubectl_topogpu.cli.options import CommonOptions, meant, with_options
from kubectl_topogpu.cluster import Wanted
from kubectl_topogpu.report import Output, TableReport


@click.command()
@click.argument("target", required=False, shell_complete=TARGETS)
@with_options(selects="pods", sorts=True)
def who(options: CommonOptions, target: str | None) -> TableReport:
    """Show who holds TARGET: a node, a GPU (NODE/INDEX, or the beginning of its UUID), or a pod ([NAMESPACE/]NAME).

    Without TARGET, all pods of the namespace that hold GPUs. With --all-namespaces, pods of any namespace.
    """
    cluster = options.cluster(Wanted(asks=options.output is not Output.TEXT))
    if target is None:
        return holding.everyone(cluster, "" if options.everywhere else options.namespace, options.order)
    if options.selects:
        raise click.UsageError("--selector cannot be used with TARGET: it selects among all pods that hold GPUs")
    found = holding.holders_of(cluster, target, options.order)
    if found is None and options.everywhere:
        found = holding.pods_named(cluster, target, order=options.order)
    if found is None:
        namespace, name = options.named(target)
        found = holding.pods_named(cluster, name, namespace, options.order)
        if found is None and options.source.pod(namespace, name) is None:
            known = [*(node.name for node in cluster.nodes), *options.source.pod_names(namespace)]
            raise LookupError(
                f"{target!r} is not a node with GPUs, a GPU (node/index or UUID), or a pod of namespace {namespace}"
                f"{meant(name, known)}"
            )
    return found or holding.nothing(target)
