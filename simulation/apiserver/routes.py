"""URL path and method -> what is asked of which object (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass

from simulation.apiserver.kinds import KINDS, NAMESPACE, Kind

_KINDS = {(kind.root, kind.plural): kind for kind in KINDS}
_NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a path addresses: a collection while `name` is empty."""

    kind: Kind
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
    user_agent: str
    path: str


def parse_target(path: str) -> Target | None:
    """The collection or object of a path, None for anything that is not served."""
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


def recorded(method: str, path: str, query: Mapping[str, str], user_agent: str) -> RecordedRequest:
    """The request as the log keeps it."""
    target = parse_target(path)
    verb = _VERBS.get(method, method.lower())
    if target is None:
        return RecordedRequest(
            verb=verb, group="", resource="", subresource="", namespace="", name="", user_agent=user_agent, path=path
        )
    if not target.name and verb == "get":
        verb = "watch" if is_true(query.get("watch", "")) else "list"
    if not target.name and verb == "delete":
        verb = "deletecollection"
    return RecordedRequest(
        verb=verb,
        group=target.kind.group,
        resource=target.kind.plural,
        subresource=target.subresource,
        namespace=target.namespace,
        name=target.name,
        user_agent=user_agent,
        path=path,
    )


def is_true(text: str) -> bool:
    """A query flag as Go's ParseBool reads it."""
    return text in {"1", "t", "T", "true", "TRUE", "True"}
