"""Runs a simulated cluster as a command: what to try on stdout, progress on stderr, Ctrl-C answered in order (edge)."""

import click

from simulation.cluster import SimulationFailed
from simulation.demo_command import now, progress_on_stderr
from simulation.interruptible import run_until_signal
from simulation.up import UpSettings, run_up


def run_command(settings: UpSettings) -> None:
    """Returns after a signal. Raises ClickException when the cluster could not be started or has failed."""
    try:
        run_until_signal(run_up(settings, click.echo, progress_on_stderr(), now))
    except SimulationFailed as error:
        raise click.ClickException(str(error)) from error
    click.echo("Everything is stopped and removed.", err=True)
