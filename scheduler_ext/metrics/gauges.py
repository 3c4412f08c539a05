"""Writes metric families with many series as Prometheus text.

The client library keeps several objects for each series of a page and takes ten times as long.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from program.words import escaped_label

Rows = Iterable[tuple[Sequence[str], float]]
"""Values of the labels, and the value of the series."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """One family. `rows` are computed at each request; `constant` labels are the same in each row."""

    name: str
    documentation: str
    labels: tuple[str, ...]
    rows: Callable[[], Rows]
    constant: tuple[tuple[str, str], ...] = ()

    def text(self) -> Iterator[str]:
        """Yields the text, line by line."""
        yield f"# HELP {self.name} {self.documentation}\n# TYPE {self.name} gauge\n"
        pairs = [*((label, "%s") for label in self.labels), *self.constant]
        labels = ",".join(f'{label}="{value}"' for label, value in pairs)
        series = f"{self.name}{{{labels}}} %s\n" if labels else f"{self.name} %s\n"
        quotes = 2 * len(pairs)
        for values, value in self.rows():
            line = series % (*values, value)
            # Few values need escaping, and one check per line costs less than one per value.
            if "\\" in line or line.count('"') != quotes or line.count("\n") != 1:
                line = series % (*map(escaped_label, values), value)
            yield line
