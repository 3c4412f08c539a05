"""What the site needs beside the documents themselves; mkdocs calls it for the files and for every page."""

import re
from itertools import zip_longest
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parent.parent
_MANIFEST = re.compile(r"^\[(examples/[\w-]+\.yaml)\]\(\.\./\1\)$", re.MULTILINE)
_BY_FILE = re.compile(r"\[([\w-]+\.md)\]\((?=\1)")
_LEAVES = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+)\)")
_ITEM = re.compile(r"^\d+\. .*\n(?:(?: {3}.*)?\n)*", re.MULTILINE)
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
_CODE = re.compile(r"(?<!<pre>)<code>([^<]*)</code>")
_SEPARATOR = re.compile(r"(?<=[\w)])([./_:=,-]+)(?=\w)")
_TAGS = re.compile(r"<[^>]+>")


def on_files(files: Any, config: Any, **_: object) -> None:
    """README.md is the first page."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "index.md", content=home((_ROOT / "README.md").read_text(encoding="utf-8"))))


def home(readme: str) -> str:
    """README.md as it reads from this folder."""
    inside = re.sub(r"\]\((?!docs/|https:)", "](../", readme)
    return re.sub(r"""(?<=[("])docs/""", "", inside)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Links out of this folder lead to files that the site does not have. A line that is the link of an example becomes
    the example's text; the file of any other link is named. A link that reads as its file reads as that page's title.
    Steps are numbered: Python's Markdown wants what belongs to one four columns to the right, where three are enough
    for others.
    """
    shown = _MANIFEST.sub(lambda found: _block(found[1]), markdown)
    steps = _ITEM.sub(lambda found: re.sub(r"^ {3}", "    ", found[0], flags=re.MULTILINE), shown)
    titled = _BY_FILE.sub(lambda found: f"[{_title(found[1])}](", steps)
    return _LEAVES.sub(r"\1 (`\2`)", titled)


def on_page_content(html: str, **_: object) -> str:
    """Every cell of a table gets its column's title, for phones. A key in code may break after a separator."""
    return _CODE.sub(
        lambda found: f"<code>{breakable(found[1])}</code>", _TABLE.sub(lambda found: _rows(found[0]), html)
    )


def breakable(key: str) -> str:
    return _SEPARATOR.sub(r"\1<wbr>", key)


def _title(page: str) -> str:
    return (_ROOT / "docs" / page).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _block(path: str) -> str:
    text = (_ROOT / path).read_text(encoding="utf-8")
    return f'```yaml title="{path}"\n{text}```'


def _rows(table: str) -> str:
    """Each cell with its `data-label`; `data-rows` says that they have it."""
    titles = [
        _TAGS.sub("", title).replace('"', "&quot;") for title in re.findall(r"<th[^>]*>(.*?)</th>", table, re.DOTALL)
    ]

    def labelled(row: re.Match[str]) -> str:
        first, *cells = row[0].split("<td")
        pairs = zip_longest(titles[: len(cells)], cells, fillvalue="")
        return first + "".join(f'<td data-label="{title}"{cell}' if title else f"<td{cell}" for title, cell in pairs)

    return _ROW.sub(labelled, table).replace("<table>", "<table data-rows>", 1)
