"""The three kinds of patch: JSON merge (RFC 7386), JSON (RFC 6902) and strategic merge (pure).

Every function answers a new document and leaves its arguments as they are.
Source of the strategic rules: Kubernetes documentation, "Update API Objects in Place Using kubectl patch", and the
patch keys of the API reference.
"""

from copy import deepcopy
from typing import Any

from simulation.apiserver.errors import ApiRefusal, JsonObject, bad_request

Json = Any

_MERGE_KEYS = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "secrets": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
    "webhooks": "name",
}
"""Lists of objects that merge by a key. All others are replaced whole, `taints` and `tolerations` among them: the
API marks them atomic, and `kubectl taint` relies on it."""

MERGED_PRIMITIVES = frozenset({"finalizers", "podCIDRs"})
_DIRECTIVES = ("$patch", "$retainKeys", "$setElementOrder/", "$deleteFromPrimitiveList/")


def merge_key(field: str, items: list[Json]) -> str:
    """Returns the key by which the items of a list merge; empty for a list that is replaced whole."""
    if field == "ports":
        # Those of a Service have another key.
        return "port" if any(isinstance(item, dict) and "port" in item for item in items) else "containerPort"
    return _MERGE_KEYS.get(field, "")


def merge(document: Json, patch: Json) -> Json:
    """Returns RFC 7386: objects merge, null deletes, all else replaces."""
    if not isinstance(patch, dict):
        return deepcopy(patch)
    result = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def strategic(document: JsonObject, patch: JsonObject) -> JsonObject:
    """Objects merge as in RFC 7386, lists by their key; the `$patch` directives are obeyed."""
    directive = patch.get("$patch")
    if directive == "replace":
        return deepcopy({key: value for key, value in patch.items() if key != "$patch"})
    if directive == "delete":
        return {}
    if directive not in {None, "merge"}:
        raise bad_request(f"unknown $patch directive {directive!r}; expected replace, delete or merge")
    result = _retained(document, patch)
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            field = key.partition("/")[2]
            result[field] = [item for item in result.get(field) or [] if item not in value]
    for key, value in patch.items():
        if not key.startswith(_DIRECTIVES):
            _set_strategically(result, key, value, patch.get(f"$setElementOrder/{key}"))
    return result


def _retained(document: JsonObject, patch: JsonObject) -> JsonObject:
    kept = patch.get("$retainKeys")
    return dict(document) if kept is None else {key: document[key] for key in document if key in kept}


def _set_strategically(result: JsonObject, key: str, value: Json, order: list[Json] | None) -> None:
    """Puts one field of a patch into `result`."""
    if value is None:
        result.pop(key, None)
    elif isinstance(value, dict):
        current = result.get(key)
        result[key] = strategic(current if isinstance(current, dict) else {}, value)
    elif isinstance(value, list) and all(isinstance(item, dict) for item in value) and merge_key(key, value):
        result[key] = _merged_list(result.get(key) or [], value, merge_key(key, value), order)
    elif isinstance(value, list) and key in MERGED_PRIMITIVES:
        current = result.get(key) or []
        result[key] = _interleaved([item for item in current if item not in value], value, current)
    else:
        result[key] = deepcopy(value)


def _merged_list(current: list[Json], patch: list[JsonObject], key: str, order: list[Json] | None) -> list[Json]:
    """Returns the list with each patch item merged into the item of the same key; new items go to the end."""
    if any(item.get("$patch") == "replace" for item in patch):
        return [deepcopy(item) for item in patch if item.get("$patch") != "replace"]
    items = list(current)
    for change in patch:
        if key not in change:
            raise bad_request(f"map: {change} does not contain declared merge key: {key}")
        places = [place for place, item in enumerate(items) if item.get(key) == change[key]]
        if change.get("$patch") == "delete":
            items = [item for item in items if item.get(key) != change[key]]
        elif places:
            items[places[0]] = strategic(items[places[0]], change)
        else:
            items.append(strategic({}, change))
    wanted = [item.get(key) for item in (patch if order is None else order)]
    by_key = {item.get(key): item for item in items}
    kept = [item.get(key) for item in items if item.get(key) not in wanted]
    place = [item.get(key) for item in current]
    return [by_key[name] for name in _interleaved(kept, wanted, place) if name in by_key]


def _interleaved(kept: list[Json], wanted: list[Json], place: list[Json]) -> list[Json]:
    """Returns the patch's items in its order; each other one goes before the first of them that it stood before."""
    rest, merged = list(kept), []
    for item in wanted:
        while rest and rest[0] in place and item in place and place.index(rest[0]) < place.index(item):
            merged.append(rest.pop(0))
        merged.append(item)
    return merged + rest


def json_patch(document: Json, operations: list[JsonObject]) -> Json:
    """Returns RFC 6902; a failed `test` or a missing place is refused with 422."""
    result = deepcopy(document)
    for number, operation in enumerate(operations):
        try:
            result = _operated(result, operation)
        except (KeyError, IndexError, ValueError, TypeError, AttributeError) as e:
            path = operation.get("path") if isinstance(operation, dict) else None
            problem = f"operation {number} of the JSON patch cannot be applied at {path!r}: {e!r}"
            raise ApiRefusal(422, "Invalid", problem) from e
    return result


def _operated(document: Json, operation: JsonObject) -> Json:
    name, path = operation["op"], operation["path"]
    if name in {"add", "replace"}:
        return _put(document, path, deepcopy(operation["value"]), insert=name == "add")
    if name == "remove":
        return _taken(document, path)
    if name == "test":
        if _at(document, path) != operation["value"]:
            raise ValueError("the value differs")
        return document
    if name in {"move", "copy"}:
        value = deepcopy(_at(document, operation["from"]))
        base = _taken(document, operation["from"]) if name == "move" else document
        return _put(base, path, value, insert=True)
    raise ValueError(f"unknown op {name!r}")


def _tokens(path: str) -> list[str]:
    if path and not path.startswith("/"):
        raise ValueError("a path starts with /")
    return [token.replace("~1", "/").replace("~0", "~") for token in path.split("/")[1:]]


def _at(document: Json, path: str) -> Json:
    for token in _tokens(path):
        document = document[_index(document, token)]
    return document


def _index(parent: Json, token: str) -> Json:
    if not isinstance(parent, list):
        return token
    if not token.isdigit():
        raise ValueError(f"{token!r} is no index of a list")
    return int(token)


def _parent(document: Json, path: str) -> tuple[Json, str]:
    *above, last = _tokens(path)
    for token in above:
        document = document[_index(document, token)]
    return document, last


def _put(document: Json, path: str, value: Json, *, insert: bool) -> Json:
    if not path:
        return value
    parent, last = _parent(document, path)
    if isinstance(parent, list) and insert:
        place = len(parent) if last == "-" else _index(parent, last)
        if place > len(parent):
            raise IndexError(f"{place} is past the end")
        parent.insert(place, value)
        return document
    if not insert:
        _at(document, path)
    parent[_index(parent, last)] = value
    return document


def _taken(document: Json, path: str) -> Json:
    parent, last = _parent(document, path)
    del parent[_index(parent, last)]
    return document
