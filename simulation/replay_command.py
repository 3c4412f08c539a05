"""`topogpu-sim replay`: takes the decisions of recorded clusters, line by line."""

import sys
from collections.abc import Iterator

import click
import msgspec

from program.settings.options import GroupedCommand, read_configuration, setting_options
from scheduler_ext.cli.deciding import BAD_INPUT, DOES_NOT_FIT, FITS, BadInput, warn
from scheduler_ext.configuration import REQUESTS, TABLE, warnings
from simulation.replay import answers, fits, is_unreadable


@click.command(cls=GroupedCommand)
@setting_options(TABLE, groups=(REQUESTS,))
def replay(**given: object) -> None:
    """Answer each line of JSON on standard input with a line of JSON: the decision.

    A line holds a state and a pod, or the GPUs of one node and containers. Each answer is written before the next line
    is read.

    Exit status: 0 when every pod fits, 1 when one does not, 2 when a line cannot be used.
    """
    effective = read_configuration(TABLE, given)
    warn(warnings(effective))
    if sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError("give JSON lines on standard input")
    status = FITS
    for answer in answers(_lines(), effective.configuration.requests):
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()
        status = max(status, BAD_INPUT if is_unreadable(answer) else FITS if fits(answer) else DOES_NOT_FIT)
    sys.exit(status)


def _lines() -> Iterator[bytes]:
    try:
        yield from sys.stdin.buffer
    except OSError as error:
        raise BadInput(f"standard input cannot be read: {error.strerror or error}") from error
