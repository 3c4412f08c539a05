"""Whose turn is it, when kubelet asks which ids to take?

Kubelet does not say. It admits one pod after the other, in the order in which the API server's watch showed them on the
node, which is the order in which they were bound, and writes its checkpoint after each container. So the turn is that
of the first pod, from the last on that the checkpoint names, whose next container asks for so many; a pod before that
was refused. A kubelet that has just started admits what it finds in another order: then the answer may be another
pod's. That is a fault of kubelet's books alone: nothing is handed out by this.
Source: pkg/kubelet/kubelet.go (HandlePodAdditions) and pkg/kubelet/cm/devicemanager of Kubernetes.
"""

from collections.abc import Sequence

from deviceplugin.allocation.checkpoint import Witness
from deviceplugin.allocation.decision import decided_devices, gpus_asked
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.devices import ContainerShares, PodShares
from proto.kubernetes.objects import Pod


def shares_in_turn(pods: Sequence[Pod], served: Witness, ids: int, resource: str) -> ContainerShares | None:
    """What was decided for the container that asks for `ids` GPUs; empty where nothing readable was. None where no pod
    waits for so many. `pods` are those of the node, in the order in which they were bound.
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
    """By container: how many GPUs kubelet asks for, and which were decided."""
    containers = pod.all_containers
    try:
        decided: PodShares = decided_devices(pod, DEVICES_ALLOCATED, resource)
    except AnnotationError:
        return [(each.name, gpus_asked(each, resource), ()) for each in containers]
    return [(each.name, len(held), held) for each, held in zip(containers, decided, strict=True)]
