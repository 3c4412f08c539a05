"""Prints for people and programs: a terminal, a pipe, and encodings that lack some characters (edge)."""

import sys
from dataclasses import dataclass

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment

from program.words import printable

PIPE_WIDTH = 100_000
"""Columns of a pipe or file: there a program or a pager reads, and nothing is wrapped or left out."""

_PLAIN = str.maketrans("█░–—…✓✗→·×≤≥", "#.--~+x>.x<>")
"""Replacements for a terminal that has only ASCII. Each becomes one character, so that columns stay where they are."""


@dataclass(frozen=True, slots=True)
class Printable:
    """Renders `inner` in the terminal's encoding, without control characters except our own colours."""

    inner: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for text, style, control in console.render(self.inner, options):
            shown = printable(text)
            yield Segment(shown.translate(_PLAIN) if options.ascii_only else shown, style, control)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self.inner)


def print_text(content: RenderableType) -> None:
    """Prints on standard output: in the width and colours of a terminal, plain and in full width elsewhere."""
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    if console.is_terminal:
        console.print(Printable(content))
        return
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False, width=PIPE_WIDTH, no_color=True)
    with console.capture() as captured:
        console.print(Printable(content))
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def print_json(content: object) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n")
