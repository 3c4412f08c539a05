"""Strategy `slots`: finds the containers that hold the given device ids, and their pod.

Kubelet has two sources. Its pod-resources socket names app containers and sidecars by namespace, pod and container; its
checkpoint names every container by pod UID. A container is proven when it holds exactly the ids of the call, both
sources agree where both have an entry, and the API server's pod with that UID is alive on this node. Anything less is
refused, never guessed.

Ordinary init containers are only in the checkpoint, and kubelet gives their ids to later containers of the pod; two of
them never run at the same time. Kubelet does not name the one that it is about to start, but its checkpoint has the
slot of each. Source: pkg/kubelet/cm/devicemanager and pkg/kubelet/apis/podresources of Kubernetes.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from deviceplugin.allocation.decision import decided_devices, unfit
from deviceplugin.container.cdi import slot_in
from deviceplugin.records.holdings import Holding, ListedContainer
from program.words import enumerated
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.devices import ContainerShares, Device, DeviceUUID
from proto.kubernetes.objects import Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The facts known when kubelet is about to create a container. `pods` are those bound to the node."""

    node: str
    resource: str
    pods: Collection[Pod]
    inventory: Mapping[DeviceUUID, Device]
    problems: Mapping[DeviceUUID, str] = field(default_factory=dict)
    """The reason why each unhealthy GPU is unhealthy."""
    listed: tuple[ListedContainer, ...] | None
    """pod-resources' answer; None while there is none."""
    recorded: tuple[Holding, ...] | None
    """kubelet's checkpoint; None while it cannot be read."""
    problem: str = ""
    """The reason why `listed` is None."""
    named_slot: str = ""
    """The slot that this process named last for the ids; empty where it has not. Counts without a checkpoint."""
    read: Pod | None = None
    """A pod that pod-resources named, as the API server returned it after that."""


@dataclass(frozen=True, slots=True)
class ProvenSlot:
    """The slot of the container at this position, init containers counted first. `shares` are its own."""

    name: str
    position: int
    shares: ContainerShares
    problem: str = ""
    """The reason why the container must not be created, if that is the one that kubelet is about to start."""


@dataclass(frozen=True, slots=True)
class ProvenPod:
    """The pod whose containers hold the ids. Containers that were served without a slot have none of `slots`."""

    pod: Pod
    slots: tuple[ProvenSlot, ...]
    is_kept: bool = False
    """The pod is served because it has begun, with GPUs or amounts that its node does not offer any more."""


@dataclass(frozen=True, slots=True)
class Unproven:
    """No proof; `sentence` names the request of kubelet and what was seen."""

    sentence: str
    may_change: bool
    """Kubelet or the API server may still change this."""
    unknown: str = ""
    """`namespace/name` of the pod that pod-resources names and that has to be read from the API server."""


@dataclass(frozen=True, slots=True)
class _Holder:
    pod: Pod
    containers: frozenset[str]


def prove_slot(ids: frozenset[str], evidence: Evidence) -> ProvenPod | Unproven:
    """Finds the container that holds exactly these ids."""
    # Select the relevant entries of a full node's checkpoint once.
    evidence = replace(evidence, recorded=None if evidence.recorded is None else tuple(_entries(ids, evidence)))
    holder = _holder(ids, evidence)
    if isinstance(holder, _Holder):
        holder = _with_init_containers(ids, holder, evidence)
    answer = holder if isinstance(holder, Unproven) else _decided(ids, holder, evidence)
    if isinstance(answer, ProvenPod):
        return answer
    return Unproven(f"{_wish(ids)}: {answer.sentence}", answer.may_change, answer.unknown)


def _holder(ids: frozenset[str], evidence: Evidence) -> _Holder | Unproven:
    """Uses pod-resources, confirmed by the checkpoint; where it lists no container, the checkpoint alone."""
    matches = [match for match in evidence.listed or () if match.ids == ids]
    found = [(match, _pod_of(match, ids, evidence)) for match in matches]
    alive = [(match, pod) for match, pod in found if pod is None or not pod.has_ended]
    owners = sorted({match.name for match, _ in alive})
    if not owners:
        return _recorded_holder(ids, evidence)
    if len(owners) > 1:
        return Unproven(f"pods {enumerated(owners)} are listed by pod-resources with exactly these", may_change=True)
    pods = [pod for _, pod in alive if pod is not None]
    if len(pods) < len(alive) or len({pod.metadata.uid for pod in pods}) > 1:
        return _unknown(alive[0][0], ids, evidence)
    if pods[0].metadata.deletion_timestamp is not None:
        return Unproven(f"pod {owners[0]} holds them, but it is being deleted", may_change=False)
    return _Holder(pods[0], frozenset(match.container for match, _ in alive))


def _pod_of(match: ListedContainer, ids: frozenset[str], evidence: Evidence) -> Pod | None:
    """Returns the pod of this name that the checkpoint's UID confirms: a later pod of the same name has another UID.
    Without a checkpoint it returns only a pod that was read, because the watch may still show an earlier one.
    """
    if evidence.recorded is None:
        read = evidence.read
        here = read is not None and read.spec.node_name == evidence.node and read.full_name == match.name
        return read if read is not None and here and read.metadata.deletion_timestamp is None else None
    uids = {entry.pod_uid for entry in _entries(ids, evidence) if entry.container_name == match.container}
    found = [pod for pod in _bound(evidence) if pod.full_name == match.name and pod.metadata.uid in uids]
    return found[0] if len(found) == 1 else None


def _unknown(match: ListedContainer, ids: frozenset[str], evidence: Evidence) -> Unproven:
    named = f"pod-resources names pod {match.name}, container {match.container}"
    if evidence.recorded is None:
        problem = f"{named}; kubelet's checkpoint, which names its UID, cannot be read"
        return Unproven(problem, may_change=True, unknown=match.name)
    seen = [pod.metadata.uid for pod in _bound(evidence) if pod.full_name == match.name]
    shown = f"shows that pod with UID {enumerated(seen)}" if seen else "has not shown that pod on this node"
    recorded = sorted({entry.pod_uid for entry in _entries(ids, evidence)})
    noted = f"the pod with UID {enumerated(recorded)}" if recorded else "no pod"
    sentence = f"{named}, kubelet's checkpoint {noted}, and the API server {shown}"
    return Unproven(sentence, may_change=True, unknown=match.name)


def _recorded_holder(ids: frozenset[str], evidence: Evidence) -> _Holder | Unproven:
    """Finds init containers, and what pod-resources does not list yet. Entries of deleted pods do not count."""
    entries = _entries(ids, evidence)
    holders = [pod for pod in _bound(evidence) if pod.metadata.uid in {entry.pod_uid for entry in entries}]
    alive = [pod for pod in holders if _lives(pod)]
    if len(alive) == 1:
        uid = alive[0].metadata.uid
        return _Holder(alive[0], frozenset(entry.container_name for entry in entries if entry.pod_uid == uid))
    if alive:
        names = enumerated(sorted(each.full_name for each in alive))
        return Unproven(f"kubelet's checkpoint has pods {names} with exactly these", may_change=True)
    return Unproven(f"{_listing(ids, evidence)}; {_record(entries, holders, evidence)}", may_change=True)


def _with_init_containers(ids: frozenset[str], holder: _Holder, evidence: Evidence) -> _Holder | Unproven:
    """Returns all containers of the pod to which kubelet gave the same ids."""
    pod = holder.pod
    if evidence.recorded is not None:
        uids = {entry.pod_uid for entry in _entries(ids, evidence)} - {pod.metadata.uid}
        others = sorted(other.full_name for other in _bound(evidence) if other.metadata.uid in uids and _lives(other))
        if others:
            problem = f"pod-resources names pod {pod.full_name}, kubelet's checkpoint also {enumerated(others)}"
            return Unproven(problem, may_change=True)
        names = {entry.container_name for entry in _entries(ids, evidence) if entry.pod_uid == pod.metadata.uid}
        return _Holder(pod, holder.containers | names)
    try:
        decided = decided_devices(pod, DEVICES_ALLOCATED, evidence.resource)
    except AnnotationError:
        return holder
    for init, held in zip(pod.spec.init_containers, decided, strict=False):
        if len(held) == len(ids) and init.name not in holder.containers and not init.is_sidecar:
            problem = "may hold the same, and kubelet's checkpoint, which names the holder, cannot be read"
            return Unproven(f"pod {pod.full_name} holds them; its init container {init.name} {problem}", True)
    return holder


def _decided(ids: frozenset[str], holder: _Holder, evidence: Evidence) -> ProvenPod | Unproven:
    pod, name = holder.pod, holder.pod.full_name
    containers = [container.name for container in pod.all_containers]
    strangers = sorted(holder.containers - set(containers))
    if strangers:
        return Unproven(f"pod {name} has no container {enumerated(strangers)}, which holds them", may_change=True)
    try:
        decided = decided_devices(pod, DEVICES_ALLOCATED, evidence.resource)
    except AnnotationError as error:
        return Unproven(f"pod {name} holds them, but nothing readable was decided for it: {error}", may_change=False)
    positions = tuple(position for position, each in enumerate(containers) if each in holder.containers)
    problems = {at: found for at in positions if (found := _mismatch(containers[at], decided[at], ids, evidence))}
    # An ended init container starts again in a new sandbox only: its GPUs must not delay the others.
    decisive = tuple(at for at in positions if at not in problems or not _has_ended(pod, at)) or positions
    problem = next((problems[at] for at in decisive if at in problems), "")
    if problem:
        return Unproven(f"pod {name}, {problem}", may_change=False)
    slots = _slots(ids, holder, evidence)
    if slots is None:
        problem = "kubelet's checkpoint, which names its slot, cannot be read"
        return Unproven(f"pod {name} holds them; {problem}", may_change=True)
    proven = (
        ProvenSlot(slot, at, (), f"pod {name}, {problems[at]}") if at in problems else ProvenSlot(slot, at, decided[at])
        for at in positions
        if (slot := slots[containers[at]])
    )
    return ProvenPod(pod, tuple(proven))


def _slots(ids: frozenset[str], holder: _Holder, evidence: Evidence) -> dict[str, str] | None:
    """Returns slots by container, empty for one without a slot; None if unknown."""
    if evidence.recorded is None:
        is_known = evidence.named_slot and len(holder.containers) == 1
        return dict.fromkeys(holder.containers, evidence.named_slot) if is_known else None
    uid = holder.pod.metadata.uid
    return {
        entry.container_name: slot_in(entry.cdi_devices) for entry in _entries(ids, evidence) if entry.pod_uid == uid
    }


def _has_ended(pod: Pod, position: int) -> bool:
    """Returns whether the container is an ordinary init container of a pod whose app containers have started."""
    inits = pod.spec.init_containers
    return pod.is_running and position < len(inits) and not inits[position].is_sidecar


def _mismatch(container: str, held: ContainerShares, ids: frozenset[str], evidence: Evidence) -> str:
    if len(held) != len(ids):
        return f"container {container}, holds them, but {len(held)} GPUs were decided for it"
    problem = unfit(held, evidence.inventory, evidence.problems)
    return f"container {container}: {problem}" if problem else ""


def _bound(evidence: Evidence) -> list[Pod]:
    return [pod for pod in evidence.pods if pod.spec.node_name == evidence.node]


def _lives(pod: Pod) -> bool:
    return not pod.has_ended and pod.metadata.deletion_timestamp is None


def _entries(ids: frozenset[str], evidence: Evidence) -> list[Holding]:
    recorded = evidence.recorded or ()
    return [entry for entry in recorded if entry.resource_name == evidence.resource and entry.ids == ids]


def _wish(ids: frozenset[str]) -> str:
    noun = "device" if len(ids) == 1 else "devices"
    return f"kubelet asks for the container with exactly the {len(ids)} {noun} {enumerated(sorted(ids))}"


def _listing(ids: frozenset[str], evidence: Evidence) -> str:
    if evidence.listed is None:
        return f"pod-resources does not answer ({evidence.problem})"
    near = [f"{one.name} container {one.container} ({len(one.ids)})" for one in evidence.listed if one.ids & ids]
    return f"pod-resources lists others with some of these: {enumerated(near)}" if near else "pod-resources lists none"


def _record(entries: list[Holding], holders: list[Pod], evidence: Evidence) -> str:
    if evidence.recorded is None:
        return "kubelet's checkpoint cannot be read"
    if not entries:
        return "kubelet's checkpoint has none"
    if holders:
        names = enumerated(sorted(each.full_name for each in holders))
        return f"kubelet's checkpoint names pod {names}, which has ended or is being deleted"
    uids = enumerated(sorted({entry.pod_uid for entry in entries}))
    return f"kubelet's checkpoint names the pod with UID {uids}, which the API server has not shown on this node"
