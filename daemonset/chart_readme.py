"""The chart's README: every value with its default and meaning, read from values.yaml and its comments.

`python -m daemonset.render`, which `make manifests` calls, writes it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parent / "chart" / "topogpu"
README = CHART / "README.md"
_HEAD = """<!-- Written from values.yaml by `make manifests`; change it there. -->
# Chart topogpu

{description}. [How to install it](../../../docs/install.md), and how to
[open the status page](../../../docs/kubectl.md#the-status-page).

```console
$ helm install topogpu daemonset/chart/topogpu --namespace topogpu-system --create-namespace \\
    --set image.repository=registry.example.com/topogpu
$ helm test topogpu --namespace topogpu-system
```

The second command starts a pod with one GPU and shows what it got. Misspelt values are refused. The folder `nodes`
has values for kinds of nodes, `ci` those that are tested.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartValue:
    """One value, or a group of values: its path, its comment, and for a value the default."""

    path: str
    comment: str
    default: str | None


def text() -> str:
    """Returns the README."""
    description = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))["description"]
    return _HEAD.format(description=description) + "".join(_lines(values((CHART / "values.yaml").read_text("utf-8"))))


def values(document: str) -> list[ChartValue]:
    """Returns what is in a values.yaml, in its order. A map becomes one value where nothing within it has a comment."""
    return list(_read(yaml.compose(document), document.splitlines(), ""))


def _read(node: Any, lines: list[str], parent: str) -> Iterator[ChartValue]:
    for key, value in node.value:
        path, comment = f"{parent}{key.value}", _comment(lines, key.start_mark.line)
        if _is_group(value, lines):
            yield ChartValue(path=path, comment=comment, default=None)
            yield from _read(value, lines, f"{path}.")
        else:
            default = json.dumps(yaml.safe_load(yaml.serialize(value)), ensure_ascii=False)
            yield ChartValue(path=path, comment=comment, default=default)


def _is_group(value: Any, lines: list[str]) -> bool:
    """Returns whether a map in block style has a comment within it, or another map in block style that is a group."""
    if not isinstance(value, yaml.MappingNode) or value.flow_style:
        return False
    return any(_comment(lines, key.start_mark.line) or _is_group(inner, lines) for key, inner in value.value)


def _comment(lines: list[str], line: int) -> str:
    """Returns the comment directly above a line, as one paragraph."""
    found: list[str] = []
    while line and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        found.insert(0, lines[line].lstrip(" #"))
    return " ".join(found)


def _lines(found: list[ChartValue]) -> Iterator[str]:
    """Yields a section for each group at the top, with a table of its values, and first those of no group."""
    head = "\n| value | default | meaning |\n|---|---|---|\n"
    grouped = {each.path for each in found if each.default is None and "." not in each.path}
    yield "\n## Names and objects\n" + head
    yield from (_row(each) for each in found if each.path.partition(".")[0] not in grouped)
    for each in found:
        if each.path in grouped:
            yield f"\n## {each.path}\n" + (f"\n{each.comment}\n" if each.comment else "") + head
        elif each.path.partition(".")[0] in grouped and (each.default is not None or each.comment):
            yield _row(each)


def _row(value: ChartValue) -> str:
    default = "" if value.default is None else f"`{value.default}`"
    return f"| `{value.path}` | {_cell(default)} | {_cell(value.comment)} |\n"


def _cell(words: str) -> str:
    return words.replace("|", "\\|")
