"""What the site needs beside the documents themselves; mkdocs calls it for every page."""

import re

_LEAVES = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+)\)")


def on_page_markdown(markdown: str, **_: object) -> str:
    """A link out of this folder leads to a file of the repository, which the site does not have: it is named."""
    return _LEAVES.sub(r"\1 (`\2`)", markdown)
