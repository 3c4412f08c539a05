"""Which group a pod belongs to: its name and scheduler, and its size where the pod itself has it.

Kubernetes has `spec.schedulingGroup` since 1.36 and `spec.workloadRef` in 1.35, kubernetes-sigs/scheduler-plugins a
label. Kueue has a label and an annotation for groups of plain pods, Volcano annotations (labels.go of
volcano-sh/apis, scheduling/v1beta1). The labels of a JobSet lack the number of pods of each Job, so they make no group.
"""

from dataclasses import dataclass
from enum import StrEnum

from proto.kubernetes.objects import Pod

KUEUE_GROUP = "kueue.x-k8s.io/pod-group-name"
KUEUE_SIZE = "kueue.x-k8s.io/pod-group-total-count"
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
VOLCANO_SIZE = "scheduling.volcano.sh/group-min-member"
COSCHEDULING_GROUPS = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")
"""The labels of kubernetes-sigs/scheduler-plugins' coscheduling: now, and before its release 0.23."""
GROUP_LABELS = (*COSCHEDULING_GROUPS, KUEUE_GROUP)
GROUP_ANNOTATIONS = (KUEUE_SIZE, VOLCANO_GROUP, VOLCANO_SIZE)
MOST_MEMBERS = 10_000
"""The most members remembered of one attempt at a group. More than that are pods that come and go under one name."""


class GroupSource(StrEnum):
    KUBERNETES = "scheduling.k8s.io"
    """kube-scheduler schedules the members in one cycle, without other pods in between."""
    COSCHEDULING = "scheduling.x-k8s.io"
    """Members come one by one, and each waits in Permit for the others."""
    VOLCANO = "scheduling.volcano.sh"
    KUEUE = "kueue.x-k8s.io"
    """Members come one by one, and kube-scheduler binds each at once."""


BOUND_ALONE = frozenset({GroupSource.VOLCANO, GroupSource.KUEUE})
"""kube-scheduler tries and binds each member without a look at the others."""


@dataclass(frozen=True, slots=True)
class Membership:
    """`group` is namespace and name. `size` is 0 if the pod does not have it."""

    group: str
    source: GroupSource
    size: int = 0


def membership_of(pod: Pod) -> Membership | None:
    """Returns the group of the pod; None for a pod without one."""
    spec, labels, annotations = pod.spec, pod.metadata.labels, pod.metadata.annotations
    namespace = pod.metadata.namespace or "default"
    if spec.scheduling_group is not None and spec.scheduling_group.pod_group_name:
        return Membership(f"{namespace}/{spec.scheduling_group.pod_group_name}", GroupSource.KUBERNETES)
    if spec.workload_ref is not None and spec.workload_ref.name:
        reference = spec.workload_ref
        parts = filter(None, (reference.name, reference.pod_group, reference.pod_group_replica_key))
        return Membership(f"{namespace}/{'/'.join(parts)}", GroupSource.COSCHEDULING)
    for label in COSCHEDULING_GROUPS:
        if labels.get(label):
            return Membership(f"{namespace}/{labels[label]}", GroupSource.COSCHEDULING)
    if annotations.get(VOLCANO_GROUP):
        size = _size(annotations.get(VOLCANO_SIZE, ""))
        return Membership(f"{namespace}/{annotations[VOLCANO_GROUP]}", GroupSource.VOLCANO, size)
    if labels.get(KUEUE_GROUP):
        return Membership(
            f"{namespace}/{labels[KUEUE_GROUP]}", GroupSource.KUEUE, _size(annotations.get(KUEUE_SIZE, ""))
        )
    return None


def group_of(pod: Pod) -> str:
    """Returns namespace and name of the pod's group; empty for a pod without one."""
    found = membership_of(pod)
    return "" if found is None else found.group


def _size(text: str) -> int:
    """Returns the number; 0 for text that is none, or for more members than are remembered."""
    size = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
    return size if size <= MOST_MEMBERS else 0
