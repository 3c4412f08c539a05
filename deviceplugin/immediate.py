"""Strategy `immediate`: for which container of which pod is this Allocate?

Kubelet does not say. It asks for one container at a time, init containers first, and only for containers that
hold GPUs. So the container is the first one of its pod that was not served yet, and the pod is the one the node
lock names or the only one whose next container has this many GPUs. Anything less certain is refused.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from proto.annotations.bind_phase import BindPhase
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import BIND_PHASE, DEVICES_ALLOCATED, DEVICES_TO_ALLOCATE, NODE_LOCK, POD_NODE
from proto.annotations.node_lock import NodeLock
from proto.annotations.pod_devices import decode_pod_devices, encode_pod_devices
from proto.devices import ContainerShares, Device, DeviceUUID, PodShares
from proto.kubernetes.objects import Container, Pod

Served = Mapping[str, frozenset[int]]
"""By pod UID: positions of the containers that were answered already, init containers first."""


@dataclass(frozen=True, slots=True)
class Proven:
    """The container at position `container` of `pod`, init containers counted first."""

    pod: Pod
    container: int
    shares: ContainerShares


@dataclass(frozen=True, slots=True)
class Refused:
    """Why nobody can be served."""

    sentence: str
    may_change: bool
    """News from the API server may still prove a pod."""
    pod: Pod | None = None
    """The pod that was proven but must not be served."""


def prove(
    pods: Collection[Pod],
    lock: NodeLock | None,
    ids: int,
    served: Served,
    *,
    node_name: str,
    inventory: Mapping[DeviceUUID, Device],
) -> Proven | Refused:
    """The one container that asks for `ids` GPUs. `pods` are those bound to the node."""
    waiting = [pod for pod in pods if _awaits_devices(pod, node_name)]
    holder = None if lock is None else _named(waiting, lock)
    if lock is not None and lock.pod and holder is None and not _is_done(pods, lock, served):
        return Refused(
            f"{NODE_LOCK} of node {node_name} names pod {lock.namespace}/{lock.pod}, which waits for no GPUs here",
            may_change=True,
        )
    if holder is not None and _next_container(holder, served) is not None:
        return _serve(holder, ids, served, inventory)
    return _only_candidate(waiting, ids, served, node_name, inventory)


def containers_of(pod: Pod) -> tuple[Container, ...]:
    """In the order of the device annotations."""
    return (*pod.spec.init_containers, *pod.spec.containers)


def consumed(pod: Pod, served: frozenset[int]) -> str:
    """`vgpu-devices-to-allocate` without what was served. Raises AnnotationError."""
    shares = _to_allocate(pod)
    return encode_pod_devices(tuple(() if position in served else held for position, held in enumerate(shares)))


def is_finished(pod: Pod, served: frozenset[int]) -> bool:
    """Every container that holds GPUs was served. Raises AnnotationError."""
    return not any(held and position not in served for position, held in enumerate(_to_allocate(pod)))


def settlement(pod: Pod, served: frozenset[int], phase: BindPhase | None) -> Mapping[str, object]:
    """The merge patch that tells the cluster what was served, only for this very pod, never a namesake's."""
    annotations: dict[str, str] = {} if phase is None else {BIND_PHASE: phase.value}
    with suppress(AnnotationError):
        if phase is not BindPhase.FAILED:
            annotations[DEVICES_TO_ALLOCATE] = consumed(pod, served)
    return {"metadata": {"uid": pod.metadata.uid, "annotations": annotations}}


def overtaken_phase(pod: Pod) -> BindPhase | None:
    """The phase a pod should show whose admission ended while nobody kept book, None while it has not.

    Kubelet starts nothing before every Allocate was answered, so a running pod was served.
    """
    if pod.metadata.annotations.get(BIND_PHASE) != BindPhase.ALLOCATING:
        return None
    if pod.status.phase in ("Running", "Succeeded"):
        return BindPhase.SUCCESS
    return BindPhase.FAILED if pod.status.phase == "Failed" else None


def _awaits_devices(pod: Pod, node_name: str) -> bool:
    annotations = pod.metadata.annotations
    return (
        pod.spec.node_name == node_name
        and pod.status.phase in ("", "Pending")
        and annotations.get(BIND_PHASE) == BindPhase.ALLOCATING
        and annotations.get(POD_NODE, node_name) == node_name
        and DEVICES_TO_ALLOCATE in annotations
    )


def _named(pods: Iterable[Pod], lock: NodeLock) -> Pod | None:
    owner = (lock.namespace, lock.pod)
    return next((pod for pod in pods if (pod.metadata.namespace, pod.metadata.name) == owner), None)


def _is_done(pods: Iterable[Pod], lock: NodeLock, served: Served) -> bool:
    """The lock is a left-over: its pod was served, the release is on its way."""
    pod = _named(pods, lock)
    if pod is None:
        return False
    return pod.status.phase not in ("", "Pending") or _next_container(pod, served) is None


def _only_candidate(
    waiting: list[Pod], ids: int, served: Served, node_name: str, inventory: Mapping[DeviceUUID, Device]
) -> Proven | Refused:
    candidates = [pod for pod in waiting if _wants(pod, ids, served)]
    if not candidates:
        return Refused(f"no pod bound to node {node_name} is known to wait for {ids} GPUs", may_change=True)
    if len(candidates) > 1:
        names = " and ".join(sorted(map(pod_name, candidates)))
        return Refused(
            f"pods {names} wait for {ids} GPUs on node {node_name} and no node lock says which is asked for",
            may_change=True,
        )
    return _serve(candidates[0], ids, served, inventory)


def _wants(pod: Pod, ids: int, served: Served) -> bool:
    """An unreadable annotation may want anything: it is a candidate, so that no other pod is taken for it."""
    try:
        position = _next_container(pod, served)
        return position is not None and len(_to_allocate(pod)[position]) == ids
    except AnnotationError:
        return True


def _next_container(pod: Pod, served: Served) -> int | None:
    """The first container with GPUs that was not served; -1 when the annotation cannot be read."""
    try:
        shares = _to_allocate(pod)
    except AnnotationError:
        return -1
    done = served.get(pod.metadata.uid, frozenset())
    return next((position for position, held in enumerate(shares) if held and position not in done), None)


def _serve(pod: Pod, ids: int, served: Served, inventory: Mapping[DeviceUUID, Device]) -> Proven | Refused:
    name = pod_name(pod)
    try:
        shares = _to_allocate(pod)
        decided = _allocated(pod)
    except AnnotationError as error:
        return Refused(f"pod {name}: {error}", may_change=False, pod=pod)
    position = _next_container(pod, served)
    if position is None:
        return Refused(f"pod {name}: every container has its GPUs already", may_change=True)
    held = shares[position]
    where = f"pod {name}, container {containers_of(pod)[position].name}"
    if len(held) != ids:
        return Refused(
            f"{where}: {len(held)} GPUs were decided, but kubelet asks for {ids}",
            may_change=True,
        )
    if held != decided[position]:
        problem = f"{DEVICES_TO_ALLOCATE} and {DEVICES_ALLOCATED} differ, so one was changed after the decision"
        return Refused(f"{where}: {problem}", may_change=False, pod=pod)
    problem = _unfit(held, inventory)
    return Refused(f"{where}: {problem}", may_change=False, pod=pod) if problem else Proven(pod, position, held)


def _unfit(held: ContainerShares, inventory: Mapping[DeviceUUID, Device]) -> str:
    """Why these GPUs cannot be handed out, empty when they can."""
    if len({share.uuid for share in held}) < len(held):
        return "one GPU was decided twice for the same container"
    for share in held:
        device = inventory.get(share.uuid)
        if device is None:
            return f"{share.uuid} is not a GPU of this node"
        if not device.healthy:
            return f"{share.uuid} is unhealthy"
        if share.memory_mib > device.memory_mib:
            return f"{share.memory_mib} MiB were decided of {share.uuid}, which has {device.memory_mib}"
        if share.cores > device.cores:
            return f"{share.cores} % of the cores were decided of {share.uuid}, which has {device.cores}"
    return ""


def pod_name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _to_allocate(pod: Pod) -> PodShares:
    return _devices(pod, DEVICES_TO_ALLOCATE)


def _allocated(pod: Pod) -> PodShares:
    return _devices(pod, DEVICES_ALLOCATED)


def _devices(pod: Pod, key: str) -> PodShares:
    value = pod.metadata.annotations.get(key)
    if value is None:
        raise AnnotationError(key, "", "missing")
    return decode_pod_devices(key, value, len(containers_of(pod)))
