"""Searches the worlds of `make check-model`, and prints how many states each has."""

import sys
import time

import click

from simulation.model.rules import Bounds, WorldRules
from simulation.model.search import search

WORLDS = (
    Bounds(pods=3, gpus=2, faults=1),
    Bounds(pods=2, gpus=2, faults=2),
    Bounds(pods=1, gpus=2, faults=3),
)
MOST_STATES = 3_000_000


@click.command(help="Search every interleaving of small worlds over the extender's own machines.")
def main() -> None:
    for bounds in WORLDS:
        began, rules = time.monotonic(), WorldRules(bounds)
        found = search(rules.start(), rules.steps, rules.wrong, rules.is_over, most=MOST_STATES)
        click.echo(
            f"{bounds.pods} pods, at most {bounds.faults} faults: {found.states} states, {found.steps} steps, "
            f"{found.longest} deep, in {time.monotonic() - began:.0f} s: {found.problem or 'nothing wrong'}"
        )
        for number, label in enumerate(found.trace, start=1):
            click.echo(f"  {number}. {label}")
        if found.problem:
            sys.exit(1)


if __name__ == "__main__":
    main()
