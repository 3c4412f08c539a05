"""Runs the demo as a command: progress on stderr, the outcome on stdout, Ctrl-C answered in order."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime

import click
from rich.console import Console
from rich.text import Text

from simulation.cluster import SimulationFailed
from simulation.demo import DemoSettings, run_demo
from simulation.interruptible import INTERRUPTED, run_until_signal
from simulation.outcome import DemoOutcome
from simulation.report import as_json, print_report

_PIPED_WIDTH = 100


def run_command(settings: DemoSettings, *, json_: bool) -> int:
    """Returns the exit status. Raises ClickException when the demo could not be run to its end."""
    try:
        outcome = run_until_signal(run_demo(settings, progress_on_stderr(), now))
    except SimulationFailed as error:
        raise click.ClickException(str(error)) from error
    if outcome is None:
        left = "everything is stopped" if settings.keep else "everything is stopped and removed"
        click.echo(f"Interrupted; {left}.", err=True)
        return INTERRUPTED
    if json_:
        click.echo(as_json(outcome))
    else:
        _print(outcome)
    return 1 if outcome.violations else 0


def progress_on_stderr() -> Callable[[str], None]:
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
