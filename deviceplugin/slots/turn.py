"""Finds the container whose turn it is when kubelet calls GetPreferredAllocation.

Kubelet does not name it. It admits pods one after the other, in the order in which they were bound, and writes its
checkpoint after each container. So it is the turn of the first pod, beginning with the last one in the checkpoint,
whose next container needs this many ids; a pod before it was refused. A kubelet that has just started admits pods in
another order, and the answer may be for another pod. That affects only kubelet's records: this gives out no GPU.
Source: pkg/kubelet/kubelet.go (HandlePodAdditions) and pkg/kubelet/cm/devicemanager of Kubernetes.
"""

from collections.abc import Sequence

from deviceplugin.allocation.decision import decided_devices, gpus_asked
from deviceplugin.records.checkpoint import Witness
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.devices import ContainerShares, PodShares
from proto.kubernetes.objects import Pod


def shares_in_turn(pods: Sequence[Pod], served: Witness, ids: int, resource: str) -> ContainerShares | None:
    """Returns the shares decided for the container that waits for `ids` GPUs; empty if nothing readable was. None if no
    pod waits for so many. `pods` are those of the node, in the order in which they were bound.
    """
    reached = max((at for at, pod in enumerate(pods) if pod.metadata.uid in served), default=0)
    for pod in (*pods[reached:], *pods[:reached]):
        if not pod.is_pending:
            continue
        names = served.get(pod.metadata.uid, frozenset())
        waiting = (
            (asked, held) for container, asked, held in _asked(pod, resource) if asked and container not in names
        )
        asked, held = next(waiting, (0, ()))
        if asked == ids:
            return held
    return None


def _asked(pod: Pod, resource: str) -> list[tuple[str, int, ContainerShares]]:
    """Returns for each container its name, the number of GPUs that kubelet calls for, and the decided shares."""
    containers = pod.all_containers
    try:
        decided: PodShares = decided_devices(pod, DEVICES_ALLOCATED, resource)
    except AnnotationError:
        return [(each.name, gpus_asked(each, resource), ()) for each in containers]
    return [(each.name, len(held), held) for each, held in zip(containers, decided, strict=True)]
