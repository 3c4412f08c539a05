"""What the site needs beside the documents themselves; mkdocs calls it for every page."""

import re
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_MANIFEST = re.compile(r"^\[(examples/[\w-]+\.yaml)\]\(\.\./\1\)$", re.MULTILINE)
_LEAVES = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+)\)")


def on_page_markdown(markdown: str, **_: object) -> str:
    """Links out of this folder lead to files that the site does not have. A line that is the link of an example becomes
    the example's text; the file of any other link is named.
    """
    shown = _MANIFEST.sub(lambda found: _block(found[1]), markdown)
    return _LEAVES.sub(r"\1 (`\2`)", shown)


def _block(path: str) -> str:
    text = (_ROOT / path).read_text(encoding="utf-8")
    return f'```yaml title="{path}"\n{text}```'
