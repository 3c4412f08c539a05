"""Writes a table as the manual and as the schema of the chart's values."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from program.settings.declared import Alias, C, Setting, Table

_OBVIOUS = (
    "true or false",
    "a path",
    "an absolute path",
    "a resource name such as nvidia.com/gpu",
    "a whole number from 0 to 2147483647",
    "a name of lower-case letters, digits, - and .",
    "the name of a Node",
    "a number above 0 and up to 1000000",
    "host:port, or :port for every interface",
    "host:port, :port for every interface, or nothing to switch it off",
    "a duration above zero and up to a year, such as 5m, 90s or 1m30s",
    "labels from wide to narrow, such as topology.kubernetes.io/zone,kubernetes.io/hostname",
    "a list, each an XID or all, or with a hyphen before it an XID, all, xids or fabric",
)
"""What name, default and sentence of a setting show already."""
_HEAD = ("key", "default", "meaning")


def manual(settings: Iterable[Setting]) -> str:
    """Returns Markdown: for each group of settings a heading and a table."""
    groups: dict[str, list[Setting]] = {}
    for setting in settings:
        groups.setdefault(setting.group, []).append(setting)
    return "\n".join(f"### {group}\n\n{table_of(each)}" for group, each in groups.items())


def table_of(settings: Iterable[Setting]) -> str:
    return _table(_HEAD, map(_row, settings))


def is_shared(setting: Setting, others: Mapping[str, Setting]) -> bool:
    """Returns whether the other program has the same setting, with the same default."""
    other = others.get(setting.key)
    return other is not None and (setting.help, setting.default) == (other.help, other.default)


def _row(setting: Setting) -> tuple[str, ...]:
    sentences = [setting.help]
    if setting.kind.expected not in _OBVIOUS and not _names_all(setting):
        sentences.append(f"Expected: {setting.kind.expected}.")
    flags = (*setting.flags, *(flag for alias in setting.aliases for flag in alias.flags))
    environment = (*setting.environment, *(alias.environment for alias in setting.aliases if alias.environment))
    for what, names, usual in (
        ("Flag", flags, f"--{setting.key.replace('_', '-')}"),
        ("Variable", environment, setting.key.upper()),
    ):
        if names and names != (usual,):
            sentences.append(f"{what}: {_code(names)}.")
    of_hami = tuple(word for place in _places(setting) for word in (place.device_config, place.node_config) if word)
    if of_hami:
        sentences.append(f"HAMi: {_code(of_hami)}.")
    return _code((setting.key,)), _code((setting.default_text,)), " ".join(sentences)


def _names_all(setting: Setting) -> bool:
    """Returns whether the sentence about the setting names each of its words."""
    return bool(setting.kind.choices) and all(
        re.search(rf"\b{re.escape(word)}\b", setting.help) for word in setting.kind.choices
    )


def _places(setting: Setting) -> tuple[Setting | Alias, ...]:
    return (setting, *setting.aliases)


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ("---",) * len(head), *rows))


def _code(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words if word) or "–"


def put_into_schema(schema: Any, table: Table[C]) -> None:
    """Writes the schema of each setting that has a chart value into `schema`, at the value's place."""
    for setting in table.settings.values():
        if setting.chart:
            *parents, name = setting.chart.split(".")
            place = schema
            for parent in parents:
                place = place["properties"][parent]
            place["properties"][name] = dict(setting.kind.schema)


def filled(page: str, parts: dict[str, str], writer: str = "make docs-settings") -> str:
    """With each part between its marks. Raises ValueError for a page without them."""
    for name, text in parts.items():
        begin, end = f"<!-- {name}: written by `{writer}` -->\n", f"<!-- end of {name} -->\n"
        before, _, rest = page.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"the page lacks the marks {begin}{end}")
        page = f"{before}{begin}\n{text}\n{end}{after}"
    return page
