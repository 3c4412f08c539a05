"""The cells behind the link matrix: CPU affinity, NUMA affinity, GPU NUMA ID.

The tool writes one tab between cells, two before a NUMA ID and before a NUMA affinity of N/A, so positions after
the matrix are not fixed; and where tabs became blanks two cells may have run together.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CPU, NUMA, GPU_NUMA_ID = "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"
NOT_AVAILABLE = "N/A"

_VALUE = re.compile(r"N/A|\d[\d,-]*")


class AffinityError(Exception):
    """A cell holds neither a list of numbers nor N/A. `column` counts from 1."""

    def __init__(self, column: int, problem: str) -> None:
        super().__init__(problem)
        self.column = column
        self.problem = problem


@dataclass(frozen=True, slots=True)
class SmiAffinity:
    """The cells by column name: "" for an empty one, None for one that cannot be separated from its neighbour."""

    cells: Mapping[str, str | None]
    words: int


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    start: int


def read_affinity(line: str, start: int, columns: Sequence[tuple[str, int]]) -> SmiAffinity:
    """Returns the cells of `columns` (name, column of the header) in `line` from `start`. Raises AffinityError."""
    names = [name for name, _ in columns]
    words = _values(line, start, len(names))
    values = [word.text for word in words]
    if len(values) == len(names):
        return SmiAffinity(dict(zip(names, values, strict=True)), len(values))
    cells: dict[str, str | None] = dict.fromkeys(names, "")
    if GPU_NUMA_ID in cells and values:
        cells[GPU_NUMA_ID] = values[-1]
        values = values[:-1]
    if values == [NOT_AVAILABLE] and NUMA in cells:
        cells[NUMA] = NOT_AVAILABLE
    elif values:
        cells |= _place(line, start, words[0], dict(columns))
    return SmiAffinity(cells, len(words))


def _values(line: str, start: int, wanted: int) -> list[_Word]:
    """Returns at most `wanted` words; what follows them is a remark in the pasted text."""
    words: list[_Word] = []
    for token in re.finditer(r"\S+", line[start:]):
        position = start + token.start()
        while position < start + token.end() and len(words) < wanted:
            value = _VALUE.match(line, position)
            if value is None:
                raise AffinityError(position + 1, f"expected numbers or N/A, found {token[0][:40]!r}")
            words.append(_Word(value[0], position))
            position = value.end()
    return words


def _place(line: str, start: int, word: _Word, begins: Mapping[str, int]) -> dict[str, str | None]:
    """Splits one value for CPU and NUMA affinity: it may be either, or both without a gap."""
    if "\t" in line[start:].rstrip():
        is_numa = line[start : word.start].count("\t") > 1
        return {NUMA: word.text} if is_numa else {CPU: word.text}
    if NUMA in begins and len(line[: word.start].expandtabs()) >= begins[NUMA] > 0 and word.text.isdecimal():
        return {CPU: "", NUMA: word.text}
    return {CPU: None, NUMA: None}
