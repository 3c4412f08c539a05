"""The report of a command, for programs and for people. No IO."""

import csv
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from io import StringIO

import msgspec
from rich.console import RenderableType

from program.words import nearest, printable

Value = str | int | float | bool | None
Row = Mapping[str, Value]


class Output(StrEnum):
    TEXT = "text"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    NAME = "name"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReport:
    """A report. All `rows` have the same keys. JSON and YAML print `document`, which is the rows unless there are
    further facts.

    `text` returns the text for people; its argument is True if all columns are wanted.
    """

    rows: Sequence[Row]
    text: Callable[[bool], RenderableType]
    document: object = field(default=None)
    named: str = "node"
    """The kind of object that `-o name` prints, which is a key of the rows."""

    def encoded(self, output: Output) -> str:
        """Returns the report as JSON, YAML, CSV, or names as kubectl prints them: `node/gpu-1`, `pod/train-0`."""
        if output is Output.NAME:
            names = dict.fromkeys(str(row[self.named]).rpartition("/")[2] for row in self.rows if row.get(self.named))
            return "".join(f"{self.named}/{printable(name)}\n" for name in names)
        document = self.rows if self.document is None else self.document
        if output is Output.JSON:
            return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
        if output is Output.YAML:
            return msgspec.yaml.encode(document).decode()
        table = StringIO()
        writer = csv.DictWriter(table, self.rows[0].keys() if self.rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(_without_formulas, self.rows))
        return table.getvalue()


class UnknownOrder(ValueError):
    """The rows have no such key. The message names those that they have."""


def key_of(order: str, keys: Collection[str]) -> str:
    """Returns the key that `order` names in full or begins: `memory` is `memory_used_mib`. Raises UnknownOrder."""
    wanted = order.replace("-", "_")
    found = wanted if wanted in keys else next((key for key in keys if wanted and key.startswith(wanted)), "")
    if not found:
        raise UnknownOrder(f"--sort-by {order}: {nearest(order, keys)}possible are {', '.join(keys)}")
    return found


def in_order(rows: Sequence[Row], order: str) -> Sequence[Row]:
    """Returns the rows with the largest number first, or by name; as they are without an order. Raises UnknownOrder."""
    if not (order and rows):
        return rows
    key = key_of(order, rows[0])
    return sorted(rows, key=lambda row: rank(row[key]))


def rank(value: Value) -> tuple[bool, float, str]:
    """Returns the key by which a value is sorted. What is not known comes last."""
    number = -float(value) if isinstance(value, int | float) else 0.0
    return value is None, number, value if isinstance(value, str) else ""


def _without_formulas(row: Row) -> Row:
    """Escapes a name that begins like a formula, because a spreadsheet would compute it."""
    texts = {key: printable(value) for key, value in row.items() if isinstance(value, str)}
    return {**row, **{key: f"'{text}" if text.startswith(tuple("=+-@")) else text for key, text in texts.items()}}
