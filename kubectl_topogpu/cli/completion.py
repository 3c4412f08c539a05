"""Completes the names of nodes, pods, namespaces and contexts: kubectl's own completion finds them (edge)."""

from collections.abc import Callable, Sequence

import click
from click.shell_completion import CompletionItem

from kubectl_topogpu.kubectl import Connection, ObjectsUnreadable, run

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def completed(*words: str) -> Complete:
    """Returns what kubectl would offer after these words."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in _offered(ctx, words, incomplete)]

    return complete


def _offered(ctx: click.Context, words: Sequence[str], incomplete: str) -> Sequence[str]:
    if ctx.params.get("file"):
        return ()
    connection = Connection(kubeconfig=ctx.params.get("kubeconfig") or "", context=ctx.params.get("kube_context") or "")
    namespace = ctx.params.get("chosen")
    chosen = [f"--namespace={namespace}"] if namespace else []
    try:
        lines = run(connection, ["__complete", *chosen, *words, incomplete]).splitlines()
    except ObjectsUnreadable:
        return ()
    # The last line directs the shell; a tab begins a description.
    return [line.partition("\t")[0] for line in lines if line and not line.startswith((":", "_activeHelp_"))]


NODES = completed("get", "nodes")
PODS = completed("get", "pods")
NAMESPACES = completed("get", "namespaces")
CONTEXTS = completed("config", "use-context")


def targets(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Returns Nodes and pods."""
    return [*NODES(ctx, parameter, incomplete), *PODS(ctx, parameter, incomplete)]


TARGETS: Complete = targets
