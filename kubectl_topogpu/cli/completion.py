"""Completes the names of nodes, pods, namespaces and contexts: kubectl's own completion finds them (edge)."""

import sys
from collections.abc import Callable, Sequence

import click
from click.shell_completion import CompletionItem, ShellComplete

from kubectl_topogpu.cli import main as commands
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


_FILES, _NO_FILES = 0, 4
"""True if the shell may offer files."""


def choices(words: list[str]) -> list[str]:
    """Returns the lines that `kubectl_complete-topogpu` prints, which kubectl runs to complete `kubectl topogpu …`.

    Source: docs of kubectl's plugins, "Using the command line completion": the words so far are arguments, the last one
    is the word to complete; a choice for each line, and at last a directive of the library cobra.
    """
    *before, incomplete = words or [""]
    found = ShellComplete(commands, {}, "kubectl topogpu", "").get_completions(before, incomplete)
    if any(item.type in ("file", "dir") for item in found):
        return [f":{_FILES}"]
    lines = [f"{item.value}\t{item.help}" if item.help else str(item.value) for item in found]
    return [*(" ".join(line.splitlines()) for line in lines), f":{_NO_FILES}"]


def main() -> None:
    for line in choices(sys.argv[1:]):
        click.echo(line)
