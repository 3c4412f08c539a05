"""Discovery documents and an OpenAPI v3 outline, from which clients learn the served kinds (pure).

The outline names only what kubectl looks for before it writes: that patches take `fieldValidation` and `dryRun`.
"""

from simulation.apiserver.errors import JsonObject
from simulation.apiserver.kinds import GROUP_VERSIONS, KINDS, POD, ServedKind

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
VERSION = {
    "major": "1",
    "minor": "37",
    "gitVersion": "v1.37.0+topogpu-simulation",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2025-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}


def document(path: str) -> JsonObject | None:
    """Returns the discovery document at a path, None if there is none."""
    return _DOCUMENTS.get(path)


def is_served(path: str) -> bool:
    """Whether a path lies under one of the served groups."""
    return any(path.startswith(f"{_root(one)}/") for one in GROUP_VERSIONS)


def _root(group_version: str) -> str:
    return f"/apis/{group_version}" if "/" in group_version else f"/api/{group_version}"


def _group(name: str) -> JsonObject:
    """Returns a group with its versions. The one that `kinds.py` names first is preferred."""
    found = [one for one in GROUP_VERSIONS if one.startswith(f"{name}/")]
    versions = [{"groupVersion": one, "version": one.removeprefix(f"{name}/")} for one in found]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _resources(group_version: str) -> JsonObject:
    rows = [row for kind in KINDS if kind.group_version == group_version for row in _rows(kind)]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": rows}


def _rows(kind: ServedKind) -> list[JsonObject]:
    base = {"name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced, "kind": kind.kind}
    short_names = {"shortNames": list(kind.short_names)} if kind.short_names else {}
    rows: list[JsonObject] = [base | {"verbs": _VERBS} | short_names]
    if kind is POD or kind.group in ("apps", "batch"):
        rows[0]["categories"] = ["all"]
    if kind.scales:
        scale = {"name": f"{kind.plural}/scale", "kind": "Scale", "group": "autoscaling", "version": "v1"}
        rows.append(base | scale | {"singularName": "", "verbs": ["get", "patch", "update"]})
    if kind is POD:
        rows.append(base | {"name": "pods/binding", "singularName": "", "kind": "Binding", "verbs": ["create"]})
        eviction = {"name": "pods/eviction", "kind": "Eviction", "group": "policy", "version": "v1"}
        rows.append(base | eviction | {"singularName": "", "verbs": ["create"]})
    if kind.has_status:
        rows.append(base | {"name": f"{kind.plural}/status", "singularName": "", "verbs": ["get", "patch", "update"]})
    return rows


def _openapi(group_version: str) -> JsonObject:
    paths = {}
    for kind in KINDS:
        if kind.group_version == group_version:
            scope = "/namespaces/{namespace}" if kind.namespaced else ""
            names = ("dryRun", "fieldManager", "fieldValidation", "force")
            operation = {
                "x-kubernetes-action": "patch",
                "x-kubernetes-group-version-kind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
                "parameters": [{"name": name, "in": "query", "schema": {"type": "string"}} for name in names],
                "responses": {"200": {"description": "OK"}},
            }
            paths[f"{kind.root}{scope}/{kind.plural}/{{name}}"] = {"patch": operation}
    info = {"title": "Embedded Kubernetes API", "version": VERSION["gitVersion"]}
    return {"openapi": "3.0.0", "info": info, "paths": paths}


def _all_documents() -> dict[str, JsonObject]:
    groups = {group: _group(group) for group, slash, _ in (one.partition("/") for one in GROUP_VERSIONS) if slash}
    roots = {_root(one).lstrip("/"): {"serverRelativeURL": f"/openapi/v3{_root(one)}"} for one in GROUP_VERSIONS}
    documents: dict[str, JsonObject] = {
        "/version": dict(VERSION),
        "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [*groups.values()]},
        "/openapi/v3": {"paths": roots},
    }
    for one in GROUP_VERSIONS:
        documents[_root(one)] = _resources(one)
        documents[f"/openapi/v3{_root(one)}"] = _openapi(one)
    for name, group in groups.items():
        documents[f"/apis/{name}"] = group | {"kind": "APIGroup", "apiVersion": "v1"}
    return documents


_DOCUMENTS = _all_documents()
