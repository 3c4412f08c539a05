"""Groups of pods in a plan: members come one after the other, and a copy of a group is another group (pure)."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from msgspec.structs import replace

from proto.kubernetes.objects import PodGroup
from scheduler_ext.membership import GROUP_LABELS, VOLCANO_GROUP, group_of
from simulation.plan.objects import Arrival, Described, WholePod

T = TypeVar("T")


def copied_pod(pod: WholePod, number: int) -> WholePod:
    """Returns the copy; the first is the pod itself."""
    if not number or not group_of(pod):
        return pod
    spec, metadata = pod.spec, pod.metadata
    if (group := spec.scheduling_group) is not None and group.pod_group_name:
        spec = replace(spec, scheduling_group=replace(group, pod_group_name=_named(group.pod_group_name, number)))
    if (workload := spec.workload_ref) is not None:
        spec = replace(spec, workload_ref=replace(workload, name=_named(workload.name, number)))
    labels = {key: _named(value, number) if key in GROUP_LABELS else value for key, value in metadata.labels.items()}
    annotations = {
        key: _named(value, number) if key == VOLCANO_GROUP else value for key, value in metadata.annotations.items()
    }
    return replace(pod, spec=spec, metadata=replace(metadata, labels=labels, annotations=annotations))


def copied_group(group: PodGroup, number: int) -> PodGroup:
    metadata = group.metadata
    return replace(group, metadata=replace(metadata, name=_named(metadata.name, number)))


def _named(group: str, number: int) -> str:
    return f"{group}-{number + 1}" if number and group else group


def gathered(pods: Sequence[T], group: Callable[[T], str]) -> list[T]:
    """Returns the pods with the members of a group at the place of the first: they are scheduled in one cycle."""
    members: dict[str, list[T]] = {}
    for each in pods:
        members.setdefault(group(each), []).append(each)
    return [one for each in pods for one in (members.pop(group(each), ()) if group(each) else (each,))]


def incomplete(cluster: Described, coming: Iterable[Arrival]) -> Iterator[str]:
    """Yields a note for each group with too few pods to start: the plan places them all the same."""
    members = Counter([group_of(pod) for pod in cluster.held] + [each.group for each in coming])
    for group in cluster.groups:
        found = members[_name(group)]
        if 0 < found < group.spec.together:
            yield f"group {_name(group)} needs {group.spec.together} pods and has {found}: it would not start"


def _name(group: PodGroup) -> str:
    return f"{group.metadata.namespace or 'default'}/{group.metadata.name}"
