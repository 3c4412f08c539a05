"""Steps of the stand-in controllers, and what they read and make of objects (pure)."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Any

JsonObject = dict[str, Any]
INDEX = "batch.kubernetes.io/job-completion-index"
REVISION = "controller-revision-hash"
"""The label of a pod with the digest of its template."""
MOST_CREATED = 500
"""Pods that an owner gets at once; the next turn makes more."""
_LONGEST_PAUSE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Create:
    item: JsonObject


@dataclass(frozen=True, slots=True)
class ControllerWrite:
    """A merge patch of an object, or of its status."""

    plural: str
    item: JsonObject
    patch: JsonObject
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """A deletion; a pod has its time to stop. `policy` is what becomes of what the object owns."""

    plural: str
    item: JsonObject
    policy: str = "Background"


Step = Create | ControllerWrite | Delete


def pod_of(owner: JsonObject, prefix: str, index: str = "") -> JsonObject:
    """Returns a pod of the owner's template, named by the prefix and a draw. `index` is that of an indexed Job."""
    own = {INDEX: index} if index else {}
    spec = {"hostname": prefix.removesuffix("-")} if index else {}
    return templated(owner, spec, name=prefix, labels=own, annotations=own)


def templated(
    owner: JsonObject,
    spec: JsonObject,
    *,
    name: str,
    labels: JsonObject,
    annotations: JsonObject | None = None,
) -> JsonObject:
    """Returns a pod of the owner's template with these additions. A name that ends in a hyphen begins a drawn one."""
    template = owner["spec"]["template"]
    metadata = template.get("metadata") or {}
    both = {
        "labels": (metadata.get("labels") or {}) | labels,
        "annotations": (metadata.get("annotations") or {}) | (annotations or {}),
    }
    child = child_of(owner, "" if name.endswith("-") else name, **both)
    drawn = {"generateName": name} if name.endswith("-") else {}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": child | drawn, "spec": template["spec"] | spec}


def child_of(owner: JsonObject, name: str, labels: JsonObject, annotations: JsonObject) -> JsonObject:
    metadata = {"namespace": owner["metadata"]["namespace"], "labels": labels, "annotations": annotations}
    return metadata | {"ownerReferences": [reference_to(owner)]} | ({"name": name} if name else {})


def reference_to(owner: JsonObject) -> JsonObject:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": name_of(owner),
        "uid": uid_of(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def owner_of(item: JsonObject) -> JsonObject | None:
    references = item["metadata"].get("ownerReferences") or []
    return next((one for one in references if one.get("controller")), None)


def status_written(plural: str, item: JsonObject, status: JsonObject) -> Iterator[Step]:
    """Yields the write of a status that has changed; what it has no more is null."""
    if status != item.get("status"):
        without = dict.fromkeys(status_of(item).keys() - status.keys())
        yield ControllerWrite(plural, item, {"status": without | status}, "status")


def living(pods: Iterable[JsonObject]) -> list[JsonObject]:
    """Returns the pods that have neither ended nor been deleted."""
    return [pod for pod in pods if not has_ended(pod) and not is_leaving(pod)]


def digest_of(template: JsonObject) -> str:
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


def labels_of(item: JsonObject) -> JsonObject:
    labels: JsonObject = item["metadata"].get("labels") or {}
    return labels


def status_of(item: JsonObject) -> JsonObject:
    status: JsonObject = item.get("status") or {}
    return status


def is_ready(pod: JsonObject) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in status_of(pod).get("conditions") or [])


def has_ended(pod: JsonObject) -> bool:
    return status_of(pod).get("phase") in {"Succeeded", "Failed"}


def is_leaving(item: JsonObject) -> bool:
    return bool(item["metadata"].get("deletionTimestamp"))


def name_of(item: JsonObject) -> str:
    return str(item["metadata"]["name"])


def uid_of(item: JsonObject) -> str:
    return str(item["metadata"]["uid"])


def written_time(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def part_of(share: str | int, of: int, *, up: bool) -> int:
    if isinstance(share, int):
        return share
    exact = int(share.removesuffix("%")) * of / 100
    return ceil(exact) if up else int(exact)


def condition_of(item: JsonObject, kind: str, status: bool, reason: str, now: datetime) -> JsonObject:
    """Returns the condition; its time is that of its last change."""
    fresh = {"type": kind, "status": str(status), "reason": reason}
    for before in status_of(item).get("conditions") or []:
        if before["type"] == kind and before["status"] == fresh["status"]:
            return fresh | {"lastTransitionTime": before["lastTransitionTime"]}
    return fresh | {"lastTransitionTime": written_time(now)}


def may_try(pods: list[JsonObject], now: datetime) -> bool:
    """Returns whether to make more: the pause doubles with each pod that failed."""
    failed = [pod for pod in pods if status_of(pod).get("phase") == "Failed"]
    if not failed:
        return True
    pause = min(2.0 ** len(failed), _LONGEST_PAUSE_SECONDS)
    last = max(datetime.fromisoformat(pod["metadata"]["creationTimestamp"]) for pod in failed)
    return now >= last + timedelta(seconds=pause)
