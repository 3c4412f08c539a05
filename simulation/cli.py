"""`topogpu-sim`: machines without GPUs, and the whole path running on them.

What takes long to load is imported by the command that needs it, so that Ctrl-C is answered from the start.
"""

import os
import signal
import sys

import click

from proto import __version__
from simulation.workload import MACHINES, SHAPES

_MOST_NODES = 64
_MOST_PODS = 2000
_INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="topogpu-sim")
def main() -> None:
    """Simulated GPU machines: the real daemons and the real scheduler extender, without any GPU or cluster.

    Start with `topogpu-sim demo`. Shell completion: eval "$(_TOPOGPU_SIM_COMPLETE=bash_source topogpu-sim)"
    """


@main.command()
@click.option("--json", "json_", is_flag=True, help="Print one JSON object on stdout instead of the report.")
@click.option(
    "--nodes",
    type=click.IntRange(1, _MOST_NODES),
    default=len(MACHINES),
    show_default=True,
    help="Machines; the four kinds in turn.",
)
@click.option(
    "--pods",
    type=click.IntRange(1, _MOST_PODS),
    default=len(SHAPES),
    show_default=True,
    help="Pods; the shapes in turn.",
)
@click.option(
    "--api-port", type=click.IntRange(0, 65535), default=0, help="Port of the API server; 0 takes a free one."
)
@click.option("--keep", is_flag=True, help="Keep the directory with logs, kubeconfig and checkpoints.")
def demo(*, json_: bool, nodes: int, pods: int, api_port: int, keep: bool) -> None:
    """The whole path, from GPU to container, verified: exit status 1 when anything differs from what was decided."""
    signal.signal(signal.SIGINT, _leave_at_once)  # until the demo answers it itself
    from simulation.demo import DemoSettings  # noqa: PLC0415 - takes a second
    from simulation.demo_command import run_command  # noqa: PLC0415

    sys.exit(run_command(DemoSettings(nodes=nodes, pods=pods, api_port=api_port, keep=keep), json_=json_))


@main.command()
def machines() -> None:
    """The machines that can be simulated, as described from real ones."""
    from rich.console import Console  # noqa: PLC0415 - as above
    from rich.table import Table  # noqa: PLC0415

    from deviceplugin.machine.yaml_tree import MachineDescriptionError  # noqa: PLC0415
    from simulation import machines as catalogue  # noqa: PLC0415

    table = Table(box=None)
    for heading in ("machine", "GPUs", "what it is"):
        table.add_column(heading, no_wrap=heading != "what it is")
    try:
        for name in catalogue.names():
            description = catalogue.load(name)
            table.add_row(name, str(len(description.gpus)), description.title)
    except MachineDescriptionError as error:
        raise click.ClickException(str(error)) from error
    Console(highlight=False).print(table)


def _leave_at_once(*_: object) -> None:
    """While the program is still being loaded nothing runs that would have to be stopped."""
    os.write(2, b"Interrupted; nothing had been started.\n")
    os._exit(_INTERRUPTED)
