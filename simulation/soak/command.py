"""Runs a soak as a command: progress on stderr, figures on stdout, exit status 1 when anything was found (edge)."""

import click
from rich.console import Console
from rich.table import Table

from simulation.cluster import SimulationFailed
from simulation.demo_command import now, progress_on_stderr
from simulation.interruptible import INTERRUPTED, run_until_signal
from simulation.soak.soak import SoakReport, SoakSettings, run_soak


def run_command(settings: SoakSettings) -> int:
    """Returns the exit status. Raises ClickException where the cluster could not be started."""
    try:
        report = run_until_signal(run_soak(settings, progress_on_stderr(), now))
    except SimulationFailed as error:
        raise click.ClickException(str(error)) from error
    if report is None:
        click.echo("Interrupted; everything is stopped and removed.", err=True)
        return INTERRUPTED
    _print(report)
    return 1 if report.violations else 0


def _print(report: SoakReport) -> None:
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
