"""Named configurations: one file each in a folder, of which the Node's label names the one that counts."""

import re
from collections.abc import Collection, Iterator

from deviceplugin.configuration.notes import Note, Problem, did_you_mean, from_own_file

ENDING = ".yaml"
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""What a label's value may be."""
_BEFORE = ("node_name", "kubeconfig", "cdi_directory")
"""The label cannot be read before these are known; the name in use is remembered below the last."""


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def missing(name: str, folder: str, known: Collection[str]) -> str:
    """The sentence about a name that no file has."""
    there = ", ".join(sorted(known)) or "none"
    hint = did_you_mean(name, known) or "."
    return f"there is no configuration {name!r} in {folder}{hint} There are: {there}"


def from_named_file(text: str, file: str) -> Iterator[Note]:
    """As our own file, without what must be known before it is chosen."""
    for note in from_own_file(text, file):
        key = getattr(note, "key", "")
        if key in _BEFORE:
            yield Problem(f"{file}: {key} cannot be set here: it is needed before a configuration is chosen")
        else:
            yield note
