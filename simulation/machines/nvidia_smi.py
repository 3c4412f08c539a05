"""Reads what `nvidia-smi topo -m` prints, as the tool writes it and as people paste it.

Cells are counted from the left of the matrix, never by position: terminals turn tabs into blanks and let columns
run together at their right edge. A text that stops early or holds no matrix is refused, never half read.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from deviceplugin.machine.matrix import AffinityColumn
from deviceplugin.machine.topology import SELF, Matrix
from simulation.machines.smi_affinity import AffinityError, SmiAffinity, read_affinity
from simulation.machines.smi_lines import Line, clean_lines, without_prefix


class SmiError(Exception):
    """The text is not a complete link matrix. `line` and `column` count from 1."""

    def __init__(self, line: int, column: int, problem: str) -> None:
        super().__init__(f"line {line}, column {column}: {problem}")
        self.line = line
        self.column = column
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class SmiTopology:
    """One printed matrix. `links` is n x n and `nic_links` n x NICs, tokens as printed, `X` for oneself."""

    gpus: tuple[str, ...]
    links: Matrix
    nics: tuple[str, ...] = ()
    nic_links: Matrix = ()
    cpu_affinity: AffinityColumn = None
    numa_affinity: AffinityColumn = None
    gpu_numa_id: AffinityColumn = None

    def disagreements(self) -> tuple[tuple[int, int], ...]:
        """Pairs (row < column) whose two cells differ."""
        size = range(len(self.gpus))
        return tuple((i, j) for i in size for j in size if i < j and self.links[i][j] != self.links[j][i])


@dataclass(frozen=True, slots=True)
class _Header:
    line: Line
    prefix_words: int
    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    affinities: tuple[tuple[str, int], ...]
    """Names of the columns after the matrix, with the display column each begins in."""
    lines_used: int


@dataclass(frozen=True, slots=True)
class _SmiRow:
    cells: tuple[str, ...]
    line: Line
    end: int


_GPU = re.compile(r"GPU\d+")
_COLUMN = re.compile(
    r"(?P<affinity>CPU\s+Affinity|NUMA\s+Affinity|GPU\s+NUMA\s+ID)"
    r"|(?P<gpu>GPU\d+)"
    r"|(?P<nic>NIC\d+|(?!NV\d+\b)[A-Za-z][\w.-]*?\d[\w.-]*?(?=\s|$|CPU\s+Affinity))"
)
_AFFINITY = re.compile(r"\s*(?:CPU Affinity|NUMA Affinity|GPU NUMA ID)")
_KNOWN = r"NV\d+|NODE|SYS|SOC|PIX|PXB|PHB|PSB|X"
_LINK = re.compile(_KNOWN)
_CELL = re.compile(rf"(?:{_KNOWN})(?=\s|$|\d|N/A|{_KNOWN})|[A-Z][A-Z0-9#]*(?=\s|$)")
_BEGINS = re.compile(rf"\s*(?:$|Legend|NIC Legend|(?:GPU|NIC|mlx)\S*\s+(?:{_KNOWN})(?=\s|$))")
"""A row, or what is below the matrix."""


def parse_topology(text: str) -> SmiTopology:
    """Returns the first matrix in the text. Raises SmiError."""
    lines = clean_lines(text)
    try:
        return _parsed(lines)
    except SmiError as error:
        whole = _unwrapped(lines)
        if len(whole) == len(lines):
            raise
        try:
            return _parsed(whole)
        except SmiError:
            how = "lines look wrapped: write them with `nvidia-smi topo -m > FILE`"
            raise SmiError(error.line, error.column, f"{error.problem}; {how}") from None


def _unwrapped(lines: Sequence[Line]) -> Sequence[Line]:
    """Joins what a terminal of fixed width has broken: between header and legend, each line that begins no row."""
    start = next((at for at, line in enumerate(lines) if _GPU.search(line.text)), len(lines))
    width = max((len(line.text) for line in lines[start:]), default=0)
    whole = list(lines[: start + 1])
    for before, line in pairwise(lines[start:]):
        if _BEGINS.match(line.text) or not before.text.strip():
            whole.append(line)
        else:
            missing = -len(whole[-1].text) % width  # blanks at its end that were lost
            whole[-1] = replace(whole[-1], text=whole[-1].text + " " * missing + line.text)
    return [replace(line, number=number) for number, line in enumerate(whole, 1)]


def _parsed(lines: Sequence[Line]) -> SmiTopology:
    header = _find_header(lines)
    rest = [_undressed(line, header) for line in lines[header.line.number - 1 + header.lines_used :]]
    rows = _read_rows(header, rest, len(lines))
    count = len(header.gpus)
    gpu_rows = rows[:count]
    affinities = _read_affinities(header, gpu_rows, lines)
    return SmiTopology(
        gpus=header.gpus,
        links=tuple(row.cells[:count] for row in gpu_rows),
        nics=header.nics,
        nic_links=tuple(row.cells[count:] for row in gpu_rows),
        cpu_affinity=_column(affinities, "CPU Affinity"),
        numa_affinity=_column(affinities, "NUMA Affinity"),
        gpu_numa_id=_column(affinities, "GPU NUMA ID"),
    )


def _undressed(line: Line, header: _Header) -> Line:
    """Returns lines without the words before the header, such as a bullet; a row that has no such words stays."""
    begins_as_row = line.text.split(maxsplit=1)[:1] in [[name] for name in (*header.gpus, *header.nics)]
    return line if begins_as_row else without_prefix(line, header.prefix_words)


def _find_header(lines: Sequence[Line]) -> _Header:
    """Returns the first line that is one; otherwise the complaint that fits what is there."""
    complaint: SmiError | None = None
    for position, line in enumerate(lines):
        found = _GPU.search(line.text)
        if found is None:
            continue
        header = _read_header(line, lines[position + 1 : position + 2])
        if isinstance(header, _Header):
            return header
        after = line.text[found.end() :].split()
        if complaint is None and after and _LINK.fullmatch(after[0]):
            problem = f"row {found[0]} has no header line that names the columns"
            complaint = SmiError(line.number, found.start() + 1, problem)
        elif complaint is None and (not after or _COLUMN.match(after[0])):
            complaint = header
    raise complaint or _no_matrix(lines)


def _no_matrix(lines: Sequence[Line]) -> SmiError:
    said = [line for line in lines if line.text.strip(" \t`{}")]
    if not said:
        return SmiError(1, 1, "the text is empty")
    words = next((line for line in said if not line.text.rstrip().endswith(":")), said[0])
    indent = len(words.text) - len(words.text.lstrip())
    return SmiError(words.number, indent + 1, f"no link matrix here; the text has {words.text.strip()[:200]!r}")


def _read_header(line: Line, following: Sequence[Line]) -> _Header | SmiError:
    """A terminal may have broken the header, also inside a word: then the next line is its end."""
    start = _GPU.search(line.text)
    assert start is not None  # noqa: S101 - callers pass lines that name a GPU
    header = _read_columns(line, line.text, start.start())
    if following and (isinstance(header, SmiError) or _AFFINITY.match(following[0].text)):
        joined = _read_columns(line, line.text + following[0].text, start.start())
        if isinstance(joined, _Header):
            return replace(joined, lines_used=2)
    return header


def _read_columns(line: Line, text: str, start: int) -> _Header | SmiError:
    names: dict[str, list[str]] = {"gpu": [], "nic": [], "affinity": []}
    begins: list[int] = []
    position = start
    while text[position:].strip():
        position += len(text[position:]) - len(text[position:].lstrip())
        column = _COLUMN.match(text, position)
        if column is None:
            word = text[position:].split(maxsplit=1)[0]
            return SmiError(line.number, position + 1, f"{word!r} is not a column of a link matrix")
        kind = str(column.lastgroup)
        names[kind].append(" ".join(column[0].split()))
        if kind == "affinity":
            begins.append(len(text[:position].expandtabs()))
        position = column.end()
    every = [name for kind in names.values() for name in kind]
    twice = next((name for name in every if every.count(name) > 1), None)
    if twice is not None:
        return SmiError(line.number, text.rfind(twice) + 1, f"column {twice} is named twice")
    return _Header(
        line=line,
        prefix_words=len(text[:start].split()),
        gpus=tuple(names["gpu"]),
        nics=tuple(names["nic"]),
        affinities=tuple(zip(names["affinity"], begins, strict=True)),
        lines_used=1,
    )


def _read_rows(header: _Header, lines: Sequence[Line], last_line: int) -> tuple[_SmiRow, ...]:
    """Returns one row for each name of the header, in its order; blank lines and the header may lie between."""
    names = (*header.gpus, *header.nics)
    again = without_prefix(header.line, header.prefix_words).text.split()
    candidates = (line for line in lines if _has_words(line) and line.text.split() != again)
    return tuple(_read_row(names, position, candidates, last_line) for position in range(len(names)))


def _has_words(line: Line) -> bool:
    return any(word.strip("{}") for word in line.text.split())


def _read_row(names: Sequence[str], position: int, lines: Iterator[Line], last_line: int) -> _SmiRow:
    name = names[position]
    line = next(lines, None)
    if line is None:
        raise SmiError(last_line, 1, f"the text ends before row {name}; the header names {len(names)} rows")
    indent = len(line.text) - len(line.text.lstrip())
    if not re.match(rf"{re.escape(name)}(?=\s|$)", line.text[indent:]):
        raise SmiError(line.number, indent + 1, f"expected row {name}, found {line.text.split()[0][:40]!r}")
    row = _read_cells(line, indent + len(name), name, len(names))
    _check_diagonal(row, name, position)
    return row


def _read_cells(line: Line, position: int, name: str, count: int) -> _SmiRow:
    cells: list[str] = []
    for _ in range(count):
        position += len(line.text[position:]) - len(line.text[position:].lstrip())
        cell = _CELL.match(line.text, position)
        if cell is None:
            found = line.text[position:].split()[:1]
            problem = f"expected a link such as NV12 or SYS, found {found[0][:40]!r}" if found else "the row ends"
            raise SmiError(line.number, position + 1, f"row {name}, cell {len(cells) + 1} of {count}: {problem}")
        cells.append(cell[0])
        position = cell.end()
    return _SmiRow(tuple(cells), line, position)


def _check_diagonal(row: _SmiRow, name: str, own: int) -> None:
    for position, cell in enumerate(row.cells):
        if (cell == SELF) != (position == own):
            problem = f"cell {position + 1} is {cell}, but X belongs where a row meets its own column, cell {own + 1}"
            raise SmiError(row.line.number, row.line.text.find(cell) + 1, f"row {name}: {problem}")


def _read_affinities(header: _Header, rows: Sequence[_SmiRow], lines: Sequence[Line]) -> tuple[SmiAffinity, ...]:
    """Returns the cells after the matrix, row by row."""
    read: list[SmiAffinity] = []
    for row in rows:
        try:
            affinity = read_affinity(row.line.text, row.end, header.affinities)
        except AffinityError as error:
            raise SmiError(row.line.number, error.column, error.problem) from None
        read.append(affinity)
    # A text cut inside its last row is noticed only because that row has fewer cells than the others.
    last = rows[-1].line
    if not header.nics and last.number == len(lines) and len(read) > 1 and read[-1].words < read[0].words:
        raise SmiError(last.number, len(last.text) + 1, "the text ends inside the last row")
    return tuple(read)


def _column(affinities: Sequence[SmiAffinity], name: str) -> AffinityColumn:
    if not affinities or name not in affinities[0].cells:
        return None
    return tuple(affinity.cells[name] for affinity in affinities)
