"""Reads the pods of manifests: pods, and the workloads that contain a template of pods."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from proto.kubernetes.objects import Pod
from scheduler_ext.cli.state import StateError, typed

P = TypeVar("P", bound=Pod)

MOST_PODS = 1000


def read_pods(documents: Iterable[object], where: str, as_: type[P], most: int = MOST_PODS) -> tuple[P, ...]:
    """Returns each pod, and each pod that a workload would create, in the order of the documents. Raises StateError.

    Of a DaemonSet it is one pod. Objects without pods are left out, but one object at least has to have some.
    """
    found: list[P] = []
    kinds: list[str] = []
    for document, place in _objects(documents, where):
        if not isinstance(document, dict):
            raise StateError(f"{place}: holds no object of Kubernetes; write it with kubectl get -o yaml, or by hand")
        kind = document.get("kind")
        if not isinstance(kind, str):
            raise StateError(f"{place}: holds an object without kind")
        kinds.append(kind)
        found += _pods(document, kind, place, as_, range(len(found), most))
    if not found:
        what = f"{', '.join(dict.fromkeys(kinds))}, which has no pods" if kinds else "no object"
        raise StateError(
            f"{where}: holds {what}; give a Pod as kubectl get pod NAME -o yaml prints it, or a Deployment, Job or "
            "other object with a pod template"
        )
    return tuple(found)


def _objects(documents: Iterable[object], where: str) -> Iterator[tuple[object, str]]:
    """Yields the objects, also those of lists, with their places."""
    every = [document for document in documents if document is not None]
    for number, document in enumerate(every, 1):
        place = where if len(every) == 1 else f"{where}: document {number}"
        items = document.get("items") if isinstance(document, dict) else None
        if isinstance(items, list):
            yield from ((item, f"{place}: items[{position}]") for position, item in enumerate(items))
        else:
            yield document, place


def _pods(document: Mapping[str, Any], kind: str, where: str, as_: type[P], free: range) -> list[P]:
    """Returns the pods of an object; `free` are the numbers of pods that there may still be. Raises StateError."""
    if kind == "Pod":
        if not free:
            raise StateError(f"{where}: more than {free.stop} pods; ask about fewer")
        return [_whole(document, as_, where)]
    spec = document.get("spec")
    if isinstance(spec, dict) and isinstance(spec.get("jobTemplate"), dict):
        spec = spec["jobTemplate"].get("spec")
    template = spec.get("template") if isinstance(spec, dict) else document.get("template")
    if not isinstance(template, dict) or not isinstance(template.get("spec"), dict):
        return []
    count = _count(spec if isinstance(spec, dict) else {}, where)
    if count > len(free):
        raise StateError(f"{where}: more than {free.stop} pods; ask about fewer")
    pod = _whole({**template, "metadata": template.get("metadata") or {}, "kind": "Pod"}, as_, where)
    metadata = document.get("metadata")
    owner = metadata if isinstance(metadata, dict) else {}
    name, namespace = str(owner.get("name") or kind.lower()), str(owner.get("namespace") or pod.metadata.namespace)
    return [_named(pod, f"{name}-{number}" if count > 1 else name, namespace) for number in range(count)]


def _whole(document: Mapping[str, Any], as_: type[P], where: str) -> P:
    """Returns a pod that Kubernetes could have. Raises StateError."""
    pod = typed(document, as_, where)
    if not pod.spec.containers:
        raise StateError(f"{where}: the pod has no containers")
    return pod


def _named(pod: P, name: str, namespace: str) -> P:
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, name=name, namespace=namespace))


def _count(spec: Mapping[str, Any], where: str) -> int:
    """Returns the number of pods that run at the same time. Raises StateError."""
    together = 1
    for key in ("replicas", "parallelism", "completions"):
        value = spec.get(key)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise StateError(f"{where}: spec.{key}: expected a number from 0, found {value!r}")
        together = min(together, value) if key == "completions" else value
    return together
