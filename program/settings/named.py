"""Named configurations: one file each in a folder. A label of the Node names the one to use."""

import re
from collections.abc import Collection

from program.settings.notes import did_you_mean

ENDING = ".yaml"
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""The form of a label's value."""


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def missing(name: str, folder: str, known: Collection[str]) -> str:
    """Returns the error for a name without a file."""
    there = ", ".join(sorted(known)) or "none"
    hint = did_you_mean(name, known) or "."
    return f"there is no configuration {name!r} in {folder}{hint} There are: {there}"
