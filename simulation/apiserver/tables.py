"""Rows as `kubectl get` prints them (pure). Source: Kubernetes API concepts, "Receiving resources as Tables"."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from simulation.apiserver.errors import JsonObject
from simulation.apiserver.kinds import ServedKind

Cell = str | int
Column = tuple[str, int, Callable[[JsonObject, datetime], Cell]]
"""Heading, priority (0 always, 1 with -o wide), value."""


def table(kind: ServedKind, items: Sequence[JsonObject], now: datetime, *, headings: bool = True) -> JsonObject:
    """Returns the objects as a Table; kubectl takes the headings from the first table of a watch only."""
    columns = _COLUMNS.get(kind.plural, (_NAMED, _AGED))
    definitions = [
        {
            "name": heading,
            "type": "string",
            "format": "name" if heading == "Name" else "",
            "description": heading,
            "priority": priority,
        }
        for heading, priority, _ in columns
    ]
    rows = [
        {
            "cells": [cell(item, now) for _, _, cell in columns],
            "object": {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": item["metadata"],
            },
        }
        for item in items
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {},
        "columnDefinitions": definitions if headings else None,
        "rows": rows,
    }


def age(since: str | None, now: datetime) -> str:
    """Returns how long ago, in the largest unit that fits: 45s, 12m, 5h, 3d."""
    try:
        seconds = int((now - datetime.fromisoformat(since or "").astimezone(UTC)).total_seconds())
    except ValueError:
        return "<unknown>"
    for unit, length, until in (("s", 1, 120), ("m", 60, 7200), ("h", 3600, 172_800)):
        if seconds < until:
            return f"{max(seconds, 0) // length}{unit}"
    return f"{seconds // 86_400}d"


def _name(item: JsonObject, _: datetime) -> Cell:
    return str(item["metadata"]["name"])


def _age(item: JsonObject, now: datetime) -> Cell:
    return age(item["metadata"].get("creationTimestamp"), now)


def _last_seen(item: JsonObject, now: datetime) -> Cell:
    return age(item.get("lastTimestamp") or item.get("eventTime") or item["metadata"].get("creationTimestamp"), now)


def _text(*path: str, absent: str = "<none>") -> Callable[[JsonObject, datetime], Cell]:
    def value(item: JsonObject, _: datetime) -> Cell:
        found: object = item
        for part in path:
            found = found.get(part) if isinstance(found, dict) else None
        return str(found) if found not in (None, "") else absent

    return value


def _containers(item: JsonObject) -> list[JsonObject]:
    return list((item.get("status") or {}).get("containerStatuses") or [])


def _ready(item: JsonObject, _: datetime) -> Cell:
    ready = sum(bool(status.get("ready")) for status in _containers(item))
    return f"{ready}/{len(item['spec'].get('containers') or [])}"


def _pod_status(item: JsonObject, _: datetime) -> Cell:
    """Returns the phase, or the reason if there is one."""
    status = item.get("status") or {}
    if item["metadata"].get("deletionTimestamp"):
        return "Terminating"
    for container in _containers(item):
        for state in ("waiting", "terminated"):
            if reason := ((container.get("state") or {}).get(state) or {}).get("reason"):
                return str(reason)
    return str(status.get("reason") or status.get("phase") or "Unknown")


def _restarts(item: JsonObject, _: datetime) -> Cell:
    return str(sum(int(status.get("restartCount", 0)) for status in _containers(item)))


def _node_status(item: JsonObject, _: datetime) -> Cell:
    conditions = {c.get("type"): c.get("status") for c in (item.get("status") or {}).get("conditions") or []}
    ready = {"True": "Ready", "False": "NotReady"}.get(str(conditions.get("Ready")), "Unknown")
    return f"{ready},SchedulingDisabled" if item.get("spec", {}).get("unschedulable") else ready


def _roles(item: JsonObject, _: datetime) -> Cell:
    prefix = "node-role.kubernetes.io/"
    labels = item["metadata"].get("labels") or {}
    return ",".join(sorted(key.removeprefix(prefix) for key in labels if key.startswith(prefix))) or "<none>"


def _involved(item: JsonObject, _: datetime) -> Cell:
    involved = item.get("involvedObject") or {}
    return f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}"


def _data_size(item: JsonObject, _: datetime) -> Cell:
    return len(item.get("data") or {})


def _used(prefix: str) -> Callable[[JsonObject, datetime], Cell]:
    def value(item: JsonObject, _: datetime) -> Cell:
        status = item.get("status") or {}
        hard, used = status.get("hard") or {}, status.get("used") or {}
        named = [name for name in sorted(hard) if name.startswith("limits.") is (prefix == "limits.")]
        return ", ".join(f"{name}: {used.get(name, '')}/{hard[name]}" for name in named)

    return value


def _count(*path: str) -> Callable[[JsonObject, datetime], Cell]:
    text = _text(*path, absent="0")
    return lambda item, now: int(text(item, now))


def _share(done: str, wanted: str) -> Callable[[JsonObject, datetime], Cell]:
    """Returns `done` of the status beside `wanted` of the spec."""
    return lambda item, now: f"{_count('status', done)(item, now)}/{_text('spec', wanted, absent='1')(item, now)}"


def _active(item: JsonObject, _: datetime) -> Cell:
    return len((item.get("status") or {}).get("active") or [])


def _last_schedule(item: JsonObject, now: datetime) -> Cell:
    at = (item.get("status") or {}).get("lastScheduleTime")
    return age(at, now) if at else "<none>"


def _job_status(item: JsonObject, _: datetime) -> Cell:
    conditions = (item.get("status") or {}).get("conditions") or []
    over = [one["type"] for one in conditions if one["type"] in {"Complete", "Failed"} and one["status"] == "True"]
    return over[0] if over else "Suspended" if item["spec"].get("suspend") else "Running"


def _job_duration(item: JsonObject, now: datetime) -> Cell:
    status = item.get("status") or {}
    if not status.get("startTime"):
        return ""
    until = status.get("completionTime")
    return age(status["startTime"], now if until is None else datetime.fromisoformat(until))


_NAMED: Column = ("Name", 0, _name)
_AGED: Column = ("Age", 0, _age)
_COLUMNS: dict[str, tuple[Column, ...]] = {
    "pods": (
        _NAMED,
        ("Ready", 0, _ready),
        ("Status", 0, _pod_status),
        ("Restarts", 0, _restarts),
        _AGED,
        ("IP", 1, _text("status", "podIP")),
        ("Node", 1, _text("spec", "nodeName")),
    ),
    "nodes": (
        _NAMED,
        ("Status", 0, _node_status),
        ("Roles", 0, _roles),
        _AGED,
        ("Version", 0, _text("status", "nodeInfo", "kubeletVersion", absent="")),
    ),
    "namespaces": (_NAMED, ("Status", 0, _text("status", "phase")), _AGED),
    "events": (
        ("Last Seen", 0, _last_seen),
        ("Type", 0, _text("type")),
        ("Reason", 0, _text("reason")),
        ("Object", 0, _involved),
        ("Source", 1, _text("source", "component", absent="")),
        ("Message", 0, _text("message", absent="")),
        ("Name", 1, _name),
    ),
    "persistentvolumeclaims": (
        _NAMED,
        ("Status", 0, _text("status", "phase")),
        ("Volume", 0, _text("spec", "volumeName")),
        ("Capacity", 0, _text("status", "capacity", "storage")),
        _AGED,
    ),
    "resourcequotas": (_NAMED, _AGED, ("Request", 0, _used("")), ("Limit", 0, _used("limits."))),
    "configmaps": (_NAMED, ("Data", 0, _data_size), _AGED),
    "secrets": (_NAMED, ("Type", 0, _text("type", absent="Opaque")), ("Data", 0, _data_size), _AGED),
    "leases": (_NAMED, ("Holder", 0, _text("spec", "holderIdentity")), _AGED),
    "deployments": (
        _NAMED,
        ("Ready", 0, _share("readyReplicas", "replicas")),
        ("Up-to-date", 0, _count("status", "updatedReplicas")),
        ("Available", 0, _count("status", "availableReplicas")),
        _AGED,
    ),
    "replicasets": (
        _NAMED,
        ("Desired", 0, _count("spec", "replicas")),
        ("Current", 0, _count("status", "replicas")),
        ("Ready", 0, _count("status", "readyReplicas")),
        _AGED,
    ),
    "statefulsets": (_NAMED, ("Ready", 0, _share("readyReplicas", "replicas")), _AGED),
    "daemonsets": (
        _NAMED,
        ("Desired", 0, _count("status", "desiredNumberScheduled")),
        ("Current", 0, _count("status", "currentNumberScheduled")),
        ("Ready", 0, _count("status", "numberReady")),
        ("Up-to-date", 0, _count("status", "updatedNumberScheduled")),
        ("Available", 0, _count("status", "numberAvailable")),
        _AGED,
    ),
    "cronjobs": (
        _NAMED,
        ("Schedule", 0, _text("spec", "schedule")),
        ("Timezone", 0, _text("spec", "timeZone")),
        ("Suspend", 0, _text("spec", "suspend")),
        ("Active", 0, _active),
        ("Last Schedule", 0, _last_schedule),
        _AGED,
    ),
    "jobs": (
        _NAMED,
        ("Status", 0, _job_status),
        ("Completions", 0, _share("succeeded", "completions")),
        ("Duration", 0, _job_duration),
        _AGED,
    ),
    "priorityclasses": (_NAMED, ("Value", 0, _text("value")), _AGED),
}
