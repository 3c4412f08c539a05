"""The commands of `kubectl topogpu`."""

import click

from program.commands import LazyCommands
from proto import __version__

_ROOM = "kubectl_topogpu.cli."
_COMMANDS = {
    "top": (_ROOM + "top", "Show nodes, their GPUs, and the pods that hold them."),
    "who": (_ROOM + "who", "Show who holds a node, a GPU, or which GPUs a pod holds."),
    "why": (_ROOM + "why", "Explain why a pod waits and what would help, or why it has its node."),
    "fit": (_ROOM + "fit", "Show how many more pods of one shape fit, and on which nodes."),
    "resize": (_ROOM + "resize", "Change the GPU memory of a pod while it runs."),
    "topo": (_ROOM + "topo", "Show how the GPUs of a node are connected, and who holds them."),
    "waste": (_ROOM + "waste", "Show memory that no pod asked for: idle, unused, or stranded."),
    "frag": (_ROOM + "waste", "Show how large a request still fits."),
}


@click.group(
    cls=LazyCommands,
    lazy=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="kubectl-topogpu")
def main() -> None:
    """Show who holds which GPU, why a pod waits, and what still fits.

    It reads nodes, pods and quotas through kubectl, or from a file, and needs no server. Only `resize` changes
    anything.

    \b
      kubectl topogpu top                    nodes, their GPUs, and the pods on them
      kubectl topogpu why train-0 -n ml      why it waits, and what would help
      kubectl topogpu fit --gpus 2 --memory 8000

    Completion of nodes, pods and policies: docs/kubectl.md, or eval "$(_KUBECTL_TOPOGPU_COMPLETE=bash_source
    kubectl-topogpu)" (or zsh_source, fish_source).
    """
