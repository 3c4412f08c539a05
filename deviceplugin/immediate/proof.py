"""Strategy `immediate`: finds the container and pod that an Allocate call is for.

Kubelet does not name them. It calls for one container at a time, init containers first, and only for containers with
GPUs. So the container is the first unserved one of its pod that has this many GPUs. The pod is the one that the node
lock names, or the only one with such a container. Anything less certain is refused, also where the call may be for a
pod without a decision.

Served are the containers that this process has answered since kubelet started, and those in kubelet's checkpoint. So an
answer that kubelet lost by a restart is given again. If the checkpoint cannot be read, the entries that are erased from
the annotation replace it.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from deviceplugin.allocation.decision import decided_devices, gpus_requested, unfit
from deviceplugin.records.holdings import Witness
from program.words import enumerated
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import BIND_PHASE, DEVICES_ALLOCATED, DEVICES_TO_ALLOCATE, NODE_LOCK, POD_NODE
from proto.annotations.node_lock import BindPhase, NodeLock
from proto.annotations.pod_devices import encode_pod_devices
from proto.devices import ContainerShares, Device, DeviceUUID, PodShares
from proto.kubernetes.objects import Pod

Served = Mapping[str, frozenset[int]]
"""Maps a pod's UID to the positions of the containers that were answered already, init containers first."""


@dataclass(frozen=True, slots=True)
class ProvenContainer:
    """The container at position `container` of `pod`, init containers counted first."""

    pod: Pod
    container: int
    shares: ContainerShares
    served: frozenset[int] = frozenset()
    """Positions served before this one."""
    is_kept: bool = False
    """It is served because its pod has begun, with GPUs or amounts that its node does not offer any more."""


@dataclass(frozen=True, slots=True)
class NoneProven:
    """No container can be served; `sentence` is the reason."""

    sentence: str
    may_change: bool
    """Changes from the API server may still prove a pod."""
    pod: Pod | None = None
    """The pod that was proven but must not be served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """The facts known at a call of kubelet. `pods` are those bound to the node."""

    name: str
    resource: str
    """The resource by which containers request GPUs."""
    pods: Collection[Pod]
    lock: NodeLock | None
    lock_uid: str = ""
    """The UID of the pod that took the lock; empty if it was not written, as by HAMi's schedulers."""
    inventory: Mapping[DeviceUUID, Device]
    problems: Mapping[DeviceUUID, str] = field(default_factory=dict)
    """The reason why each unhealthy GPU is unhealthy."""
    remembered: Served = field(default_factory=dict)
    recorded: Witness | None = None
    """kubelet's own record; None while it cannot be read."""


def prove(view: NodeView, ids: int) -> ProvenContainer | NoneProven:
    """Returns the one container that waits for `ids` GPUs, or why none is proven."""
    starting = [pod for pod in view.pods if pod.is_pending and pod.spec.node_name == view.name]
    waiting = [pod for pod in starting if _awaits_devices(pod, view)]
    answer = _decided(waiting, view, ids)
    strangers = sorted(pod.full_name for pod in starting if _is_stranger(pod, ids, view))
    if isinstance(answer, ProvenContainer) and strangers:
        named = (
            f"pod {answer.pod.full_name} waits for {ids} GPUs, and so do {' and '.join(strangers)} without a decision"
        )
        return NoneProven(f"{named}; kubelet may ask for any of them", may_change=True)
    return answer


def _decided(waiting: list[Pod], view: NodeView, ids: int) -> ProvenContainer | NoneProven:
    """Looks for the answer among the pods for which something was decided."""
    holder = None if view.lock is None else _named(waiting, view.lock, view.lock_uid)
    if view.lock is not None and view.lock.pod and holder is None and not _is_done(view.lock, view):
        owner = f"{view.lock.namespace}/{view.lock.pod}"
        return NoneProven(f"{NODE_LOCK} of node {view.name} names pod {owner}, which waits for no GPUs here", True)
    if holder is not None and _unserved(holder, view) != ():
        rivals = [pod for pod in waiting if pod is not holder and _asks(pod, ids, view)]
        if rivals:
            names = " and ".join(sorted(each.full_name for each in rivals))
            problem = f"names pod {holder.full_name}, but {names} also wait for {ids} GPUs"
            unlocked = enumerated(sorted(pod.full_name for pod in rivals if not _locks_a_node(pod, view.resource)))
            why = f"; HAMi's scheduler takes no lock for GPUs of init containers only: {unlocked}" if unlocked else ""
            return NoneProven(
                f"{NODE_LOCK} of node {view.name} {problem}, and kubelet may ask for any of them{why}", True
            )
        return _serve(holder, ids, view)
    return _only_candidate(waiting, ids, view)


def consumed(pod: Pod, served: frozenset[int], resource: str) -> str:
    """Returns `vgpu-devices-to-allocate` without what was served. Raises AnnotationError."""
    shares = decided_devices(pod, DEVICES_TO_ALLOCATE, resource)
    return encode_pod_devices(tuple(() if position in served else held for position, held in enumerate(shares)))


def is_finished(pod: Pod, served: frozenset[int], resource: str) -> bool:
    """Returns whether every container that holds GPUs was served. Raises AnnotationError."""
    decided = decided_devices(pod, DEVICES_ALLOCATED, resource)
    return not any(held and position not in served for position, held in enumerate(decided))


def settlement(pod: Pod, served: frozenset[int], phase: BindPhase | None, resource: str) -> Mapping[str, object]:
    """Returns the merge patch that records what was served; it applies to this pod's UID only."""
    annotations: dict[str, str] = {} if phase is None else {BIND_PHASE: phase.value}
    with suppress(AnnotationError):
        if phase is not BindPhase.FAILED:
            annotations[DEVICES_TO_ALLOCATE] = consumed(pod, served, resource)
    return {"metadata": {"uid": pod.metadata.uid, "annotations": annotations}}


def overtaken_phase(pod: Pod) -> BindPhase | None:
    """Returns the phase for a pod whose admission ended while no daemon ran; None while it has not ended.

    Kubelet starts nothing before every Allocate was answered, so a running pod was served.
    """
    if pod.metadata.annotations.get(BIND_PHASE) != BindPhase.ALLOCATING:
        return None
    if not (pod.is_running or pod.has_ended):
        return None
    return BindPhase.FAILED if pod.has_failed else BindPhase.SUCCESS


def _awaits_devices(pod: Pod, view: NodeView) -> bool:
    """Returns whether a starting pod waits for GPUs. Phase `success` counts while kubelet's record may lack the pod."""
    annotations = pod.metadata.annotations
    phases = (BindPhase.ALLOCATING,) if view.recorded is None else (BindPhase.ALLOCATING, BindPhase.SUCCESS)
    return (
        annotations.get(BIND_PHASE) in phases
        and annotations.get(POD_NODE, view.name) == view.name
        and DEVICES_TO_ALLOCATE in annotations
    )


def _is_stranger(pod: Pod, ids: int, view: NodeView) -> bool:
    """Returns whether kubelet's call may be for this pod although nothing was decided for it: it bypassed the
    scheduler, or its annotations were removed.
    """
    if _awaits_devices(pod, view):
        return False
    if pod.metadata.annotations.get(BIND_PHASE) in (BindPhase.SUCCESS, BindPhase.FAILED):
        return False  # it was answered
    served = (view.recorded or {}).get(pod.metadata.uid, frozenset())
    return any(gpus_requested(each, view.resource) == ids for each in pod.all_containers if each.name not in served)


def _named(pods: Iterable[Pod], lock: NodeLock, uid: str) -> Pod | None:
    owner = (lock.namespace, lock.pod)
    pods = (pod for pod in pods if uid in ("", pod.metadata.uid))
    return next((pod for pod in pods if (pod.metadata.namespace, pod.metadata.name) == owner), None)


def _is_done(lock: NodeLock, view: NodeView) -> bool:
    """Returns whether the lock is a left-over: its pod was served, and the release is on its way."""
    pod = _named(view.pods, lock, view.lock_uid)
    return pod is not None and (not pod.is_pending or _unserved(pod, view) == ())


def _only_candidate(waiting: list[Pod], ids: int, view: NodeView) -> ProvenContainer | NoneProven:
    candidates = [pod for pod in waiting if _wants(pod, ids, view)]
    if not candidates:
        return NoneProven(f"no known pod on node {view.name} waits for {ids} GPUs", True)
    if len(candidates) > 1:
        names = " and ".join(sorted(each.full_name for each in candidates))
        return NoneProven(
            f"pods {names} wait for {ids} GPUs on node {view.name}, and no node lock names one of them", True
        )
    return _serve(candidates[0], ids, view)


def _wants(pod: Pod, ids: int, view: NodeView) -> bool:
    """Returns whether kubelet's call may be for the pod. A pod with an unreadable annotation is a candidate for any
    number of GPUs, so that no other pod is taken for it.
    """
    unserved = _unserved(pod, view)
    return unserved is None or any(len(held) == ids for _, held in unserved)


def _asks(pod: Pod, ids: int, view: NodeView) -> bool:
    """Returns whether an unserved container of the pod has this many GPUs of this resource."""
    containers = pod.all_containers
    unserved = _unserved(pod, view) or ()
    return any(len(held) == ids and view.resource in containers[n].resources.limits for n, held in unserved)


def _locks_a_node(pod: Pod, resource: str) -> bool:
    """Returns whether HAMi's scheduler locks the node for the pod: an app container requests GPUs."""
    return any(gpus_requested(container, resource) for container in pod.spec.containers)


def _unserved(pod: Pod, view: NodeView) -> tuple[tuple[int, ContainerShares], ...] | None:
    """Returns positions and shares of the containers that still wait for GPUs; None if that cannot be read."""
    try:
        decided = decided_devices(pod, DEVICES_ALLOCATED, view.resource)
        done = _served(pod, decided, view)
    except AnnotationError:
        return None
    return tuple((position, held) for position, held in enumerate(decided) if held and position not in done)


def _served(pod: Pod, decided: PodShares, view: NodeView) -> frozenset[int]:
    """Raises AnnotationError."""
    waiting = decided_devices(pod, DEVICES_TO_ALLOCATE, view.resource)
    remembered = view.remembered.get(pod.metadata.uid, frozenset())
    if view.recorded is None:
        return remembered.union(n for n, held in enumerate(decided) if held and not waiting[n])
    names = view.recorded.get(pod.metadata.uid, frozenset())
    return remembered.union(n for n, container in enumerate(pod.all_containers) if container.name in names)


def _serve(pod: Pod, ids: int, view: NodeView) -> ProvenContainer | NoneProven:
    name = pod.full_name
    try:
        waiting = decided_devices(pod, DEVICES_TO_ALLOCATE, view.resource)
        decided = decided_devices(pod, DEVICES_ALLOCATED, view.resource)
        done = _served(pod, decided, view)
    except AnnotationError as error:
        return NoneProven(f"pod {name}: {error}", may_change=False, pod=pod)
    unserved = _unserved(pod, view) or ()
    position = next((position for position, held in unserved if len(held) == ids), None)
    if position is None:
        counts = " and ".join(str(len(held)) for _, held in unserved) or "no"
        problem = f"{counts} GPUs were decided for the containers still waiting, but kubelet asks for {ids}"
        return NoneProven(f"pod {name}: {problem}", may_change=True)
    held = decided[position]
    where = f"pod {name}, container {pod.all_containers[position].name}"
    if waiting[position] not in ((), held):
        problem = f"{DEVICES_TO_ALLOCATE} and {DEVICES_ALLOCATED} differ, so one was changed after the decision"
        return NoneProven(f"{where}: {problem}", may_change=False, pod=pod)
    problem = unfit(held, view.inventory, view.problems)
    return (
        NoneProven(f"{where}: {problem}", may_change=False, pod=pod)
        if problem
        else ProvenContainer(pod, position, held, done)
    )
