"""Label and field selectors as the API reads them (pure).

Source: Kubernetes documentation, "Labels and Selectors" and "Field Selectors".
"""

import re
from collections.abc import Callable, Mapping

from simulation.apiserver.errors import JsonObject, bad_request
from simulation.apiserver.kinds import ServedKind

Selector = Callable[[JsonObject], bool]
Requirement = Callable[[Mapping[str, str]], bool]

_SET = re.compile(r"^(?P<key>\S+)\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)$")
_EQUALITY = re.compile(r"^(?P<key>[^=!\s]+)\s*(?P<operator>==|=|!=)\s*(?P<value>[^=!]*)$")
_EXISTS = re.compile(r"^(?P<no>!?)\s*(?P<key>[^=!<>\s]+)$")


def selector(kind: ServedKind, *, labels: str = "", fields: str = "") -> Selector:
    """Returns whether an object is selected by both texts; a broken text is refused with 400."""
    wanted_labels = [_label_requirement(term) for term in split_terms(labels)]
    wanted_fields = [_field_requirement(kind, term) for term in split_terms(fields)]
    if not wanted_labels and not wanted_fields:
        return lambda _: True

    def selects(item: JsonObject) -> bool:
        own = item["metadata"].get("labels") or {}
        return all(holds(own) for holds in wanted_labels) and all(holds(item) for holds in wanted_fields)

    return selects


def split_terms(text: str) -> list[str]:
    """Returns the comma-separated terms; commas inside brackets belong to their term."""
    return [term.strip() for term in re.split(r",(?![^(]*\))", text) if term.strip()]


def field_value(item: JsonObject, path: str, absent: str = "") -> str:
    """Returns the text of a field by its dotted path."""
    value: object = item
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return str(value).lower()
    return absent if value is None or isinstance(value, dict) else str(value)


def _label_requirement(term: str) -> Requirement:
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
    raise bad_request(f"unable to parse requirement: {term!r} in the label selector")


def _field_requirement(kind: ServedKind, term: str) -> Selector:
    found = _EQUALITY.match(term)
    if not found:
        raise bad_request(f"invalid field selector: {term!r}; expected FIELD=VALUE or FIELD!=VALUE")
    path, value, equal = found["key"], found["value"].strip(), found["operator"] != "!="
    if path not in kind.fields and path not in {"metadata.name", "metadata.namespace"}:
        raise bad_request(f"field label not supported: {path}")
    absent = kind.fields.get(path, "")
    # An Event's `source` selects by its component, as the field label of the core API does.
    place = "source.component" if kind.plural == "events" and path == "source" else path
    return lambda item: (field_value(item, place, absent) == value) is equal
