"""Tables that fit the terminal. No IO.

A table that is too wide first wraps its long texts, then leaves out its least important columns and names them, and
at last shows each row as a block of lines. A matrix continues below with its first column repeated.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text

_GAP = 2
"""Blanks between two columns."""
_NARROW, _NARROWEST = 28, 20
"""The width that a wrapped text keeps while other columns can be left out, and at last."""

Cell = str | Text
Row = Sequence[Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column. Of those that may be left out, the one with the highest `rank` goes first; rank 0 stays."""

    title: str
    rank: int = 0
    right: bool = False
    wraps: bool = False
    """True if a cell may continue on the next line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Places and widths of the shown columns. `blocks` shows rows as blocks, with all columns."""

    shown: tuple[int, ...]
    widths: tuple[int, ...] = ()
    blocks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingTable:
    """A table for `print_text`. `more` is a hint for the columns that are left out."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    title: str = ""
    more: str = "A wider terminal shows all."
    everything: bool = False
    """True if no column may be left out: `-o wide`."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = [replace(column, rank=0) for column in self.columns] if self.everything else list(self.columns)
        layout = lay_out(columns, _natural_widths(columns, self.rows), options.max_width)
        if self.title:
            yield Text(self.title, "bold")
        if layout.blocks:
            for row in self.rows:
                yield from self._block(row, console, options.max_width)
            return
        yield from _grid(columns, self.rows, layout.shown, layout.widths, console)
        left_out = [column.title for place, column in enumerate(columns) if place not in layout.shown]
        if left_out:
            yield Text(f"Left out for lack of room: {', '.join(left_out)}. {self.more}", "dim")

    def _block(self, row: Row, console: Console, room: int) -> RenderResult:
        """Returns the first cell as a heading, and below it a line for each cell that is not empty."""
        (first, heading), *rest = zip((column.title for column in self.columns), row, strict=True)
        yield Text(f"{first} {heading}".lstrip(), "bold", overflow="fold")
        lines = [(" " * _GAP + title, cell) for title, cell in rest if str(cell).strip()]
        width = max((cell_len(title) for title, _ in lines), default=0)
        for line in lines:
            yield from _line(line, (width, max(room - width - _GAP, 1)), (False, False), console)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A table for `print_text` whose first column names the rows. What does not fit beside it continues below."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    title: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = _natural_widths(self.columns, self.rows)
        if self.title:
            yield Text(self.title, "bold")
        for number, part in enumerate(parts(widths, options.max_width)):
            if number:
                yield Text()
            shown = (0, *part)
            room = max(options.max_width - widths[0] - _GAP, 1)
            fitted = [widths[0], *(min(widths[place], room) for place in part)]
            yield from _grid(self.columns, self.rows, shown, fitted, console)


def lay_out(columns: Sequence[Column], widths: Sequence[int], room: int) -> Layout:
    """Chooses the columns and their widths for `room`. `widths` are those of the longest cells, titles included."""
    shown = list(range(len(columns)))
    while True:
        droppable = [place for place in shown if columns[place].rank > 0]
        least = _NARROW if droppable else _NARROWEST
        fitted = _wrapped([columns[place] for place in shown], [widths[place] for place in shown], room, least)
        if fitted:
            return Layout(shown=tuple(shown), widths=fitted)
        if not droppable:
            return Layout(shown=tuple(range(len(columns))), blocks=True)
        shown.remove(max(droppable, key=lambda place: (columns[place].rank, place)))


def parts(widths: Sequence[int], room: int) -> tuple[tuple[int, ...], ...]:
    """Splits the columns behind the first into runs that fit beside it; a run has at least one."""
    runs: list[list[int]] = []
    left = 0
    for place, width in enumerate(widths[1:], 1):
        if not runs or width + _GAP > left:
            runs.append([])
            left = room - widths[0]
        runs[-1].append(place)
        left -= width + _GAP
    return tuple(map(tuple, runs)) or ((),)


def _wrapped(columns: Sequence[Column], widths: Sequence[int], room: int, least: int) -> tuple[int, ...]:
    """Returns the widths at which they fit: texts that wrap share the rest, at least `least` each. Empty if they
    do not fit.
    """
    fitted = list(widths)
    left = room - sum(widths) - _GAP * (len(widths) - 1)
    if left >= 0:
        return tuple(fitted)
    wrapping = sorted((place for place, column in enumerate(columns) if column.wraps), key=lambda place: widths[place])
    left += sum(widths[place] for place in wrapping)
    for number, place in enumerate(wrapping):
        fitted[place] = min(widths[place], left // (len(wrapping) - number))
        left -= fitted[place]
        if fitted[place] < min(widths[place], least):
            return ()
    return tuple(fitted) if wrapping and left >= 0 else ()


def _natural_widths(columns: Sequence[Column], rows: Iterable[Row]) -> list[int]:
    widths = [cell_len(column.title) for column in columns]
    for row in rows:
        for place, cell in enumerate(row):
            widths[place] = max(widths[place], *map(cell_len, str(cell).split("\n")))
    return widths


def _grid(
    columns: Sequence[Column], rows: Iterable[Row], shown: Sequence[int], widths: Sequence[int], console: Console
) -> Iterator[Segment]:
    """Rich's own table takes ten times as long, and a cluster has thousands of rows."""
    rights = [columns[place].right for place in shown]
    yield from _line([Text(columns[place].title, "bold") for place in shown], widths, rights, console)
    for row in rows:
        yield from _line([row[place] for place in shown], widths, rights, console)


def _line(row: Row, widths: Sequence[int], rights: Sequence[bool], console: Console) -> Iterator[Segment]:
    """Yields one line, or more if a text is wider than its column."""
    for cells in zip_longest(*map(partial(_folded, console), row, widths), fillvalue=""):
        for place, (cell, width, right) in enumerate(zip(cells, widths, rights, strict=True)):
            blanks = " " * (width - cell_len(str(cell)))
            yield Segment(" " * _GAP * (place > 0) + blanks * right)
            yield from _styled(cell, console) if isinstance(cell, Text) else [Segment(cell)]
            yield Segment(blanks * (not right))
        yield Segment.line()


def _styled(cell: Text, console: Console) -> Iterable[Segment]:
    return Segment.apply_style(cell.render(console), console.get_style(cell.style))


def _folded(console: Console, cell: Cell, width: int) -> Sequence[Cell]:
    if cell_len(str(cell)) <= width and "\n" not in str(cell):
        return [cell]
    return [*(cell if isinstance(cell, Text) else Text(cell)).wrap(console, width, overflow="fold")]
