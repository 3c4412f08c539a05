"""Tables that fit the terminal. No IO.

A table that is too wide first wraps its long texts, then leaves out its least important columns and names them, and
at last shows each row as a block of lines. A matrix continues below with its first column repeated.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_GAP = 2
"""Blanks between two columns."""
_NARROW, _NARROWEST = 28, 20
"""What a wrapped text keeps while other columns can be left out, and at last."""

Cell = str | Text
Row = Sequence[Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column. Of those that may be left out, the one with the highest `rank` goes first; rank 0 stays."""

    title: str
    rank: int = 0
    right: bool = False
    wraps: bool = False
    """Whether a cell may continue on the next line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Places and widths of the shown columns. `blocks` shows rows as blocks, with all columns."""

    shown: tuple[int, ...]
    widths: tuple[int, ...] = ()
    blocks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingTable:
    """A table for `print_text`. `more` says how to see the columns that are left out."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    title: str = ""
    more: str = "A wider terminal shows all."
    everything: bool = False
    """Whether no column may be left out: `-o wide`."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = [replace(column, rank=0) for column in self.columns] if self.everything else list(self.columns)
        layout = lay_out(columns, _natural_widths(columns, self.rows), options.max_width)
        if self.title:
            yield Text(self.title, "bold")
        if layout.blocks:
            yield from map(self._block, self.rows)
            return
        yield _grid([columns[place] for place in layout.shown], layout.widths, layout.shown, self.rows)
        left_out = [column.title for place, column in enumerate(columns) if place not in layout.shown]
        if left_out:
            yield Text(f"Left out for lack of room: {', '.join(left_out)}. {self.more}", "dim")

    def _block(self, row: Row) -> RenderableType:
        """The first cell as a heading, and below it a line for each cell that has something to say."""
        heading, *rest = row
        lines = Table.grid(padding=(0, _GAP, 0, 0))
        lines.add_column(no_wrap=True)
        lines.add_column(overflow="fold")
        for column, cell in zip(self.columns[1:], rest, strict=True):
            if str(cell).strip():
                lines.add_row(column.title, cell)
        named = f"{self.columns[0].title} {heading}".lstrip()
        return Group(Text(named, "bold", overflow="fold"), Padding(lines, (0, 0, 0, _GAP)))


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
            columns = [replace(self.columns[place], wraps=True) for place in shown]
            yield _grid(columns, fitted, shown, self.rows)


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
    """The widths at which they fit: texts that wrap share what the others leave, at least `least` each. Empty if they
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
    widths = [Text(column.title).cell_len for column in columns]
    for row in rows:
        for place, cell in enumerate(row):
            lines = str(cell).split("\n")
            widths[place] = max(widths[place], *(Text(line).cell_len for line in lines))
    return widths


def _grid(columns: Sequence[Column], widths: Sequence[int], shown: Sequence[int], rows: Iterable[Row]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for column, width in zip(columns, widths, strict=True):
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            overflow="fold",
            no_wrap=not column.wraps,
            width=width,
        )
    for row in rows:
        table.add_row(*(row[place] for place in shown))
    return table
