"""Runs the demo as a command: progress on stderr, the outcome on stdout, Ctrl-C answered in order."""

import asyncio
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime

import click
from rich.console import Console

from simulation.demo import DemoFailed, DemoSettings, run_demo
from simulation.outcome import DemoOutcome
from simulation.report import as_json, print_report

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 130
_PIPED_WIDTH = 100


def run_command(settings: DemoSettings, *, json_: bool) -> int:
    """The exit status. Raises ClickException when the demo could not be run to its end."""
    console = Console(stderr=True, highlight=False)

    def progress(sentence: str) -> None:
        console.print(sentence, style="dim", markup=False, soft_wrap=True)

    try:
        outcome = asyncio.run(_interruptible(settings, progress))
    except DemoFailed as error:
        raise click.ClickException(str(error)) from error
    if outcome is None:
        # The interpreter takes handlers back before it is gone; what is ignored stays ignored.
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        left = "everything is stopped" if settings.keep else "everything is stopped and removed"
        click.echo(f"Interrupted; {left}.", err=True)
        return INTERRUPTED
    if json_:
        click.echo(as_json(outcome))
    else:
        print_report(_stdout_console(), outcome)
    return 1 if outcome.violations else 0


def _stdout_console() -> Console:
    """Into a pipe or file there is no terminal width to keep to."""
    console = Console(highlight=False)
    if not sys.stdout.isatty():
        console.width = max(_PIPED_WIDTH, console.width)
    return console


async def _interruptible(settings: DemoSettings, progress: Callable[[str], None]) -> DemoOutcome | None:
    """None when SIGINT or SIGTERM came; by then everything is stopped. Further signals do not cut that short."""
    running = asyncio.ensure_future(run_demo(settings, progress, lambda: datetime.now(UTC)))  # noqa: TID251 - the program's clock
    loop = asyncio.get_running_loop()
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            running.cancel()

    def heard(*_: object) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(interrupt)

    # Not through the loop, which takes its handlers back when it closes: a late signal would still kill the process.
    for number in _SIGNALS:
        signal.signal(number, heard)
    try:
        return await running
    except asyncio.CancelledError:
        return None
