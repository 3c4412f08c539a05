"""Label and field selectors as the API reads them (pure).

Source of field selectors: Kubernetes documentation, "Field Selectors".
"""

import re
from collections.abc import Callable, Collection, Mapping

from proto.kubernetes.selectors import SelectorError, label_selector, split_terms
from simulation.apiserver.errors import JsonObject, bad_request
from simulation.apiserver.kinds import ServedKind

Selector = Callable[[JsonObject], bool]

_EQUALITY = re.compile(r"^(?P<key>[^=!\s]+)\s*(?P<operator>==|=|!=)\s*(?P<value>[^=!]*)$")


def selector(kind: ServedKind, *, labels: str = "", fields: str = "") -> Selector:
    """Returns whether an object is selected by both texts; a broken text is refused with 400."""
    try:
        wanted = label_selector(labels)
    except SelectorError as error:
        raise bad_request(str(error)) from error
    wanted_fields = [_field_requirement(kind, term) for term in split_terms(fields)]
    if not labels and not wanted_fields:
        return lambda _: True

    def selects(item: JsonObject) -> bool:
        own = item["metadata"].get("labels") or {}
        return wanted(own) and all(holds(item) for holds in wanted_fields)

    return selects


def selects(selector: JsonObject | None, labels: Mapping[str, str]) -> bool:
    """Returns whether a LabelSelector selects what has these labels; without one nothing is selected."""
    if selector is None:
        return False
    wanted: Mapping[str, str] = selector.get("matchLabels") or {}
    expressions: list[JsonObject] = selector.get("matchExpressions") or []
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _HOLDS[each["operator"]](labels.get(each["key"]), each.get("values") or ()) for each in expressions
    )


_HOLDS: Mapping[str, Callable[[str | None, Collection[str]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
}


def field_value(item: JsonObject, path: str, absent: str = "") -> str:
    """Returns the text of a field by its dotted path."""
    value: object = item
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return str(value).lower()
    return absent if value is None or isinstance(value, dict) else str(value)


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
