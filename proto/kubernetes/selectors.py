"""Label selectors, as the API server and `kubectl -l` read them.

Source: Kubernetes documentation, "Labels and Selectors".
"""

import re
from collections.abc import Callable, Mapping

LabelSelector = Callable[[Mapping[str, str]], bool]
"""Returns whether an object with these labels is selected."""

_SET = re.compile(r"^(?P<key>\S+)\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)$")
_EQUALITY = re.compile(r"^(?P<key>[^=!\s]+)\s*(?P<operator>==|=|!=)\s*(?P<value>[^=!]*)$")
_EXISTS = re.compile(r"^(?P<no>!?)\s*(?P<key>[^=!<>\s]+)$")


class SelectorError(ValueError):
    """A text is no label selector; one sentence."""


def label_selector(text: str) -> LabelSelector:
    """Returns what the text selects; an empty text selects everything. Raises SelectorError."""
    wanted = [_requirement(term) for term in split_terms(text)]
    return lambda own: all(holds(own) for holds in wanted)


def split_terms(text: str) -> list[str]:
    """Returns the comma-separated terms; commas inside brackets belong to their term."""
    return [term.strip() for term in re.split(r",(?![^(]*\))", text) if term.strip()]


def _requirement(term: str) -> LabelSelector:
    if found := _SET.match(term):
        key, values = found["key"], {value.strip() for value in found["values"].split(",")}
        if found["operator"] == "in":
            return lambda own: own.get(key) in values
        return lambda own: own.get(key) not in values
    if found := _EQUALITY.match(term):
        key, value = found["key"], found["value"].strip()
        if found["operator"] == "!=":
            return lambda own: own.get(key) != value
        return lambda own: own.get(key) == value
    if found := _EXISTS.match(term):
        key, present = found["key"], not found["no"]
        return lambda own: (key in own) is present
    raise SelectorError(f"unable to parse requirement: {term!r} in the label selector")
