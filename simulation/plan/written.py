"""Pods from files of Kubernetes objects: Pods, and workloads with a template for them."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import yaml

from proto.kubernetes.objects import Object, ObjectMeta, OwnedMeta
from scheduler_ext.cli.state import StateError, typed
from simulation.plan.objects import Arrival, WholePod, WholePodSpec, arrival_of

WORKLOADS = ("Deployment", "Job", "ReplicaSet", "ReplicationController", "StatefulSet")
MOST_PODS = 100_000


class _Template(Object):
    metadata: OwnedMeta = msgspec.field(default_factory=OwnedMeta)
    spec: WholePodSpec = msgspec.field(default_factory=WholePodSpec)


class _WorkloadSpec(Object):
    replicas: int | None = None
    parallelism: int | None = None
    completions: int | None = None
    template: _Template = msgspec.field(default_factory=_Template)

    @property
    def pods(self) -> int:
        """That run at one time."""
        several = self.replicas if self.parallelism is None else self.parallelism
        most = several if several is not None else 1
        return most if self.completions is None else min(most, self.completions)


class _Workload(Object):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: _WorkloadSpec = msgspec.field(default_factory=_WorkloadSpec)


def read_pods(text: str, where: str) -> list[WholePod]:
    """The pods of JSON or of YAML with one or more documents, without the nodes that they had. Raises StateError."""
    try:
        documents = list(yaml.safe_load_all(text))
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise StateError(f"{where}: neither JSON nor YAML: {' '.join(str(error).split())}") from error
    pods = [pod for place, document in _documents(documents, where) for pod in _pods(document, place)]
    if not pods:
        raise StateError(f"{where}: holds no pod; write Pods, or one of {', '.join(WORKLOADS)}")
    if len(pods) > MOST_PODS:
        raise StateError(f"{where}: {len(pods)} pods; a plan has at most {MOST_PODS}")
    return pods


def arrivals_of(pods: Iterable[WholePod]) -> list[Arrival]:
    return [arrival_of(pod) for pod in pods]


def _documents(documents: Iterable[Any], where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each object with its place; a List is its items."""
    for number, document in enumerate(documents):
        place = f"{where}: document {number + 1}"
        if document is None:
            continue
        if not isinstance(document, dict):
            raise StateError(f"{place}: expected an object with kind and spec")
        if not isinstance(document.get("items"), list):
            yield place, document
            continue
        for position, item in enumerate(document["items"]):
            if not isinstance(item, dict):
                raise StateError(f"{place}: items[{position}]: expected an object with kind and spec")
            yield f"{place}: items[{position}]", item


def _pods(document: dict[str, Any], place: str) -> Iterator[WholePod]:
    kind = document.get("kind")
    if kind == "Pod":
        yield typed(document, WholePod, place)
    elif kind in WORKLOADS:
        workload = typed(document, _Workload, place)
        if not 0 <= workload.spec.pods <= MOST_PODS:
            raise StateError(f"{place}: {workload.spec.pods} pods; a plan has at most {MOST_PODS}")
        template, own = workload.spec.template, workload.metadata
        for number in range(workload.spec.pods):
            metadata = msgspec.structs.replace(template.metadata, name=f"{own.name}-{number}", namespace=own.namespace)
            yield WholePod(metadata=metadata, spec=template.spec)
    else:
        raise StateError(f"{place}: a {kind} where a Pod or one of {', '.join(WORKLOADS)} is expected")
