"""The extender's commands."""

import click

from proto import __version__
from scheduler_ext.cli.decide import decide
from scheduler_ext.cli.explain import explain
from scheduler_ext.cli.serve import serve


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="topogpu-scheduler")
def main() -> None:
    """Places pods on shared NVIDIA GPUs, beside a stock kube-scheduler.

    `serve` answers kube-scheduler over HTTP, and `explain` asks it about a pod. `decide` takes decisions offline, on
    files that kubectl or the running extender writes, and shows why.

    Shell completion: eval "$(_TOPOGPU_SCHEDULER_COMPLETE=bash_source topogpu-scheduler)" (or zsh_source, fish_source).
    """


main.add_command(serve)
main.add_command(decide)
main.add_command(explain)
