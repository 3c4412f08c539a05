"""Server-side apply: fields that a manager applied before and leaves out now are removed, all others merge (pure).

What a manager applied is kept as the API server does, in metadata.managedFields. Unlike there, no field is in conflict:
the last manager wins. Source: Kubernetes documentation, "Server-Side Apply".
"""

import json
from typing import Any

from simulation.apiserver import patches
from simulation.apiserver.errors import JsonObject

MEDIA_TYPE = "application/apply-patch+yaml"
_IDENTITY = {"apiVersion", "kind"}


def applied(before: JsonObject | None, body: JsonObject, manager: str) -> JsonObject:
    """Returns the object after `manager` applied `body`; `before` is None for a new one."""
    fields = _fields({key: value for key, value in body.items() if key not in _IDENTITY})
    others: list[JsonObject] = []
    if before is not None:
        owned = before["metadata"].get("managedFields") or []
        others = [entry for entry in owned if entry["manager"] != manager]
        for entry in owned:
            if entry["manager"] == manager:
                before = _without(before, entry["fieldsV1"], fields)
    after = body if before is None else patches.strategic(before, body)
    entry = {
        "manager": manager,
        "operation": "Apply",
        "apiVersion": body.get("apiVersion", ""),
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }
    return after | {"metadata": after["metadata"] | {"managedFields": [*others, entry]}}


def _fields(value: Any, merge_key: str = "") -> JsonObject:
    """Returns the paths within a value: `f:` and a field, `k:` and the key of an item in a list."""
    if isinstance(value, dict):
        return {f"f:{name}": _fields(inner, _key(name, inner)) for name, inner in value.items()}
    if isinstance(value, list) and merge_key and all(isinstance(item, dict) and merge_key in item for item in value):
        return {f"k:{json.dumps({merge_key: item[merge_key]})}": _fields(item) for item in value}
    return {}


def _key(field: str, value: Any) -> str:
    return patches.merge_key(field, value) if isinstance(value, list) else ""


def _without(value: Any, old: JsonObject, new: JsonObject) -> Any:
    """Returns the value without the paths that `old` has and `new` has not."""
    if isinstance(value, list):
        named = [(item, *_path_of(item, old)) for item in value]
        return [_without(item, inner, new.get(path, {})) for item, path, inner in named if not path or path in new]
    if not isinstance(value, dict):
        return value
    kept = dict(value)
    for path, inner in old.items():
        name = path.removeprefix("f:")
        if name not in kept:
            continue
        if path not in new and not inner:
            del kept[name]
        else:
            kept[name] = _without(kept[name], inner, new.get(path, {}))
            if kept[name] in ({}, []):
                del kept[name]
    return kept


def _path_of(item: Any, old: JsonObject) -> tuple[str, JsonObject]:
    """Returns the path in `old` that names this item of a list; empty where none does."""
    for path, inner in old.items():
        if path.startswith("k:") and json.loads(path[2:]).items() <= item.items():
            return path, inner
    return "", {}
