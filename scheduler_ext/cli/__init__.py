"""The commands of `topogpu-scheduler`."""

import click

from program.commands import LazyCommands
from proto import __version__

_COMMANDS = {
    "serve": ("scheduler_ext.cli.serve", "Answer kube-scheduler's /filter, /prioritize, /preempt and /bind."),
    "decide": ("scheduler_ext.cli.decide", "Show where this pod would go, and why not elsewhere."),
    "explain": ("scheduler_ext.cli.explain", "Show where this pod is and why, or why it is pending."),
}


@click.group(
    cls=LazyCommands,
    lazy=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="topogpu-scheduler")
def main() -> None:
    """Places pods on shared NVIDIA GPUs, beside a stock kube-scheduler.

    `serve` answers kube-scheduler over HTTP. `explain` shows what a running extender knows of a pod. `decide` takes
    decisions offline and shows the reasons; its input is a file from kubectl or from the running extender.

    Shell completion: eval "$(_TOPOGPU_SCHEDULER_COMPLETE=bash_source topogpu-scheduler)" (or zsh_source, fish_source).
    """
