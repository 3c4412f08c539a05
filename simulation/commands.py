"""Runs demo, cluster and soak as commands: progress on stderr, the outcome on stdout, Ctrl-C answered in order."""

import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from simulation.cluster import SimulationFailed
from simulation.demo import DemoSettings, run_demo
from simulation.interruptible import INTERRUPTED, run_until_signal
from simulation.outcome import DemoOutcome
from simulation.report import as_json, print_report
from simulation.up import UpSettings, run_up

if TYPE_CHECKING:
    from simulation.soak.soak import SoakReport, SoakSettings

T = TypeVar("T")

_PIPED_WIDTH = 100


def run_demo_command(settings: DemoSettings, *, json_: bool) -> int:
    """Returns the exit status. Raises ClickException when the demo could not be run to its end."""
    outcome = _ended(run_demo(settings, _progress_on_stderr(), now))
    if outcome is None:
        left = "everything is stopped" if settings.keep else "everything is stopped and removed"
        click.echo(f"Interrupted; {left}.", err=True)
        return INTERRUPTED
    if json_:
        click.echo(as_json(outcome))
    else:
        _print(outcome)
    return 1 if outcome.violations else 0


def run_up_command(settings: UpSettings) -> None:
    """Returns after a signal. Raises ClickException when the cluster could not be started or has failed."""
    _ended(run_up(settings, click.echo, _progress_on_stderr(), now))
    click.echo("Everything is stopped and removed.", err=True)


def run_soak_command(settings: "SoakSettings") -> int:
    """Returns the exit status. Raises ClickException where the cluster could not be started."""
    from simulation.soak.soak import run_soak  # noqa: PLC0415 - the others do not need it

    report = _ended(run_soak(settings, _progress_on_stderr(), now))
    if report is None:
        click.echo("Interrupted; everything is stopped and removed.", err=True)
        return INTERRUPTED
    _print_soak(report)
    return 1 if report.violations else 0


def _ended(work: Coroutine[None, None, T]) -> T | None:
    """Returns the result; None after a signal. Raises ClickException."""
    try:
        return run_until_signal(work)
    except SimulationFailed as error:
        raise click.ClickException(str(error)) from error


def _progress_on_stderr() -> Callable[[str], None]:
    console = Console(stderr=True, highlight=False)
    return lambda sentence: console.print(Text(sentence, "dim"), soft_wrap=True)


def _print(outcome: DemoOutcome) -> None:
    """Into a pipe or file there is no terminal width to keep to, and no line ends in blanks."""
    console = Console(highlight=False)
    if sys.stdout.isatty():
        print_report(console, outcome)
        return
    console.width = max(_PIPED_WIDTH, console.width)
    with console.capture() as captured:
        print_report(console, outcome)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - the program's clock


def _print_soak(report: "SoakReport") -> None:
    console = Console(highlight=False)
    table = Table("what", "times", box=None)
    for what, times in sorted(report.counts.items(), key=lambda entry: -entry[1]):
        table.add_row(what, str(times))
    console.print(table)
    for name, (before, after) in report.memory_mib.items():
        console.print(f"{name}: {before} MiB when it was ready, {after} MiB at the end")
    console.print(f"settled {report.settled_seconds:.0f} s after the last fault")
    for violation in report.violations:
        console.print(f"VIOLATION: {violation}", soft_wrap=True, markup=False)
    verdict = f"{len(report.violations)} violations" if report.violations else "no violation"
    console.print(f"seed {report.seed}, {report.seconds:.0f} s: {verdict}")
