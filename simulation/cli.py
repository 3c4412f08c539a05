"""`topogpu-sim`: machines without GPUs, and the whole path running on them."""

import asyncio
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

import click
from rich.console import Console
from rich.table import Table

from deviceplugin.machine_description import MachineDescriptionError
from simulation import machines as catalogue
from simulation.demo import MACHINES, DemoFailed, DemoSettings, run_demo
from simulation.outcome import DemoOutcome
from simulation.report import as_json, print_report
from simulation.workload import SHAPES

_MOST_NODES = 64
_MOST_PODS = 2000
_INTERRUPTED = 130


def _version() -> str:
    try:
        return version("topogpu")
    except PackageNotFoundError:
        return "unknown"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_version(), prog_name="topogpu-sim")
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
    console = Console(stderr=True, highlight=False)

    def progress(sentence: str) -> None:
        console.print(sentence, style="dim", markup=False)

    settings = DemoSettings(nodes=nodes, pods=pods, api_port=api_port, keep=keep)
    try:
        outcome = asyncio.run(_interruptible(settings, progress))
    except DemoFailed as error:
        raise click.ClickException(str(error)) from error
    if outcome is None:
        click.echo("Interrupted; everything is stopped and removed.", err=True)
        sys.exit(_INTERRUPTED)
    if json_:
        click.echo(as_json(outcome))
    else:
        print_report(Console(highlight=False), outcome)
    sys.exit(1 if outcome.violations else 0)


@main.command()
def machines() -> None:
    """The machines that can be simulated, as described from real ones."""
    table = Table(box=None)
    for heading in ("machine", "GPUs", "what it is"):
        table.add_column(heading)
    try:
        for name in catalogue.names():
            description = catalogue.load(name)
            table.add_row(name, str(len(description.gpus)), description.title)
    except MachineDescriptionError as error:
        raise click.ClickException(str(error)) from error
    Console(highlight=False).print(table)


async def _interruptible(settings: DemoSettings, progress: Callable[[str], None]) -> DemoOutcome | None:
    """None when SIGINT or SIGTERM came; by then everything is stopped."""
    running = asyncio.ensure_future(run_demo(settings, progress, lambda: datetime.now(UTC)))  # noqa: TID251 - the program's clock
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    try:
        return await running
    except asyncio.CancelledError:
        return None
