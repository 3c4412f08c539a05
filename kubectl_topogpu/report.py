"""What a command says, once for programs and once for people. No IO."""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from io import StringIO

import msgspec
from rich.console import RenderableType

Value = str | int | float | bool | None
Row = Mapping[str, Value]


class Output(StrEnum):
    TEXT = "text"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`rows` have the same keys each; `document` is what JSON and YAML print, the rows unless there is more to say.

    `text` makes what people see; it is told whether they want all columns.
    """

    rows: Sequence[Row]
    text: Callable[[bool], RenderableType]
    document: object = field(default=None)

    def encoded(self, output: Output) -> str:
        """For JSON, YAML and CSV."""
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
    """A name that begins like a formula would be computed by the spreadsheet that opens the file."""
    return {
        key: f"'{value}" if isinstance(value, str) and value[:1] in "=+-@" and value else value
        for key, value in row.items()
    }


def gib(mib: int) -> str:
    """`39.6 GiB`; small amounts in MiB."""
    return f"{mib} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"


def spaced(number: int) -> str:
    """`30 000`."""
    return f"{number:,}".replace(",", " ")


def counted(number: int, noun: str) -> str:
    """`1 GPU`, `3 GPUs`."""
    return f"{spaced(number)} {noun}" if number == 1 else f"{spaced(number)} {noun}s"


def ranges(indices: Sequence[int]) -> str:
    """`0–3, 6`."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def model(type_: str) -> str:
    """`A100-SXM4-80GB` of `NVIDIA A100-SXM4-80GB`: all of them are NVIDIA's."""
    return type_.removeprefix("NVIDIA ").removeprefix("NVIDIA-")
