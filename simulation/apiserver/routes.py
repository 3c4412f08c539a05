"""Turns a URL path and method into an operation on an object (pure)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from simulation.apiserver.kinds import KINDS, NAMESPACE, ServedKind

_KINDS = {(kind.root, kind.plural): kind for kind in KINDS}
_NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})
_NAME_SELECTED = re.compile(r"metadata\.name=([^,]+)")
"""A list or watch of one name is a right on that name."""
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The target of a path: a collection while `name` is empty."""

    kind: ServedKind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """One request as role-based access control sees it; a non-resource path has an empty resource."""

    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    user: str
    user_agent: str
    path: str


def parse_target(path: str) -> Target | None:
    """Returns the collection or object of a path, None for anything that is not served."""
    parts = path.strip("/").split("/")
    depth = 2 if parts[0] == "api" else 3
    root, rest = "/" + "/".join(parts[:depth]), parts[depth:]
    namespace = ""
    if len(rest) >= 3 and rest[0] == "namespaces" and rest[2] not in _NAMESPACE_SUBRESOURCES:
        namespace, rest = rest[1], rest[2:]
    if rest == ["bindings"]:
        rest = ["pods", "", "binding"]
    kind = _KINDS.get((root, rest[0])) if rest else None
    if kind is None or len(rest) > 3 or (namespace and not kind.namespaced):
        return None
    name, subresource = (*rest[1:], "", "")[:2]
    if name and kind.namespaced and not namespace:
        return None
    own = name if kind is NAMESPACE else namespace
    return Target(kind=kind, namespace="" if kind is NAMESPACE else own, name=name, subresource=subresource)


def recorded(method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> RecordedRequest:
    """Returns the request as the log keeps it. Nothing is verified: a bearer token is the user's name."""
    target = parse_target(path)
    kind = target.kind if target else None
    verb = _VERBS.get(method, method.lower())
    if target and not target.name and verb == "get":
        verb = "watch" if is_true(query.get("watch", "")) else "list"
    if target and not target.name and verb == "delete":
        verb = "deletecollection"
    selected = _NAME_SELECTED.fullmatch(query.get("fieldSelector", ""))
    name = selected[1] if selected else ""
    return RecordedRequest(
        verb=verb,
        group=kind.group if kind else "",
        resource=kind.plural if kind else "",
        subresource=target.subresource if target else "",
        namespace=target.namespace if target else "",
        name=(target.name or name) if target else "",
        user=headers.get("Authorization", "").removeprefix("Bearer ") or "simulation",
        user_agent=headers.get("User-Agent", ""),
        path=path,
    )


def is_true(text: str) -> bool:
    """Returns a query flag as Go's ParseBool reads it."""
    return text in {"1", "t", "T", "true", "TRUE", "True"}
