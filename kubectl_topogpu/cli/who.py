"""`kubectl topogpu who`."""

import click

from kubectl_topogpu import who as holding
from kubectl_topogpu.cli.completion import TARGETS
from kubectl_topogpu.cli.options import CommonOptions, with_options
from kubectl_topogpu.cluster import Wanted
from kubectl_topogpu.report import Output, TableReport


@click.command()
@click.argument("target", shell_complete=TARGETS)
@with_options
def who(asked: CommonOptions, target: str) -> TableReport:
    """Show who holds TARGET: a node, a GPU (NODE/INDEX, or the beginning of its UUID), or a pod ([NAMESPACE/]NAME).

    With --all-namespaces, pods of this name in any namespace.
    """
    cluster = asked.cluster(Wanted(asks=asked.output is not Output.TEXT))
    found = holding.holders_of(cluster, target)
    if found is None and asked.everywhere:
        found = holding.pods_named(cluster, target)
    if found is None:
        namespace, name = asked.named(target)
        found = holding.pods_named(cluster, name, namespace)
        if found is None and asked.source.pod(namespace, name) is None:
            raise LookupError(
                f"{target!r} is not a node with GPUs, a GPU (node/index or UUID), or a pod of namespace {namespace}"
            )
    return found or holding.nothing(target)
