"""The report of a command, for programs and for people. No IO."""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from io import StringIO

import msgspec
from rich.console import RenderableType

from program.words import printable

Value = str | int | float | bool | None
Row = Mapping[str, Value]


class Output(StrEnum):
    TEXT = "text"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReport:
    """A report. All `rows` have the same keys. JSON and YAML print `document`, which is the rows unless there are
    further facts.

    `text` returns the text for people; its argument is True if all columns are wanted.
    """

    rows: Sequence[Row]
    text: Callable[[bool], RenderableType]
    document: object = field(default=None)

    def encoded(self, output: Output) -> str:
        """Returns the report as JSON, YAML or CSV."""
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


def _without_formulas(row: Row) -> Row:
    """Escapes a name that begins like a formula, because a spreadsheet would compute it."""
    texts = {key: printable(value) for key, value in row.items() if isinstance(value, str)}
    return {**row, **{key: f"'{text}" if text.startswith(tuple("=+-@")) else text for key, text in texts.items()}}
