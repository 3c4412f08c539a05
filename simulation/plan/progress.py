"""Shows on standard error how far a plan is: a bar on a terminal, elsewhere a line now and then."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

FIRST_LINE_SECONDS = 5.0
LINES_SECONDS = 10.0
LEAST_PART = 0.05
"""What is done before a time that is left can be estimated."""


@contextmanager
def shown_progress(of: str) -> Iterator[Callable[[float, str], None]]:
    """Yields what takes the part that is done, from 0 to 1, and words for it."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(of).done
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(of, total=1.0)
        yield lambda part, words: bar.update(task, completed=part, description=f"{of} {words}".rstrip())


class Lines:
    """Writes nothing about what takes only seconds."""

    def __init__(self, of: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._of, self._clock = of, clock
        self._began = clock()
        self._next = FIRST_LINE_SECONDS

    def done(self, part: float, words: str) -> None:
        after = self._clock() - self._began
        if after < self._next or part >= 1:
            return
        self._next = after + LINES_SECONDS
        left = f", about {after * (1 - part) / part:.0f} s left" if part >= LEAST_PART else ""
        far = f"{int(100 * part)} % done after {after:.0f} s{left}"
        what = ", ".join((f"{self._of} {words}".rstrip(), far))
        click.echo(what, err=True)
