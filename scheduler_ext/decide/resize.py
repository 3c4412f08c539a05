"""Decides about a pod's wish for other GPU memory, once its node's daemon has answered it.

What grows counts as taken before the pod has it: first in the ledger, then by the answer `growing` on the pod, which
every later leader reads, and only then in what the pod holds. What shrinks counts until the pod no longer holds it, and
that is written only while the daemon promises that no container can use more.
"""

from dataclasses import dataclass

from msgspec import structs

from proto.annotations.errors import AnnotationError
from proto.annotations.memory_resize import (
    ResizeAnswer,
    ResizeState,
    answer_in,
    larger,
    smaller,
    wish_in,
    wished,
)
from proto.devices import PodShares
from proto.kubernetes.objects import Pod
from scheduler_ext.cluster.accounting import Footprints, effective
from scheduler_ext.cluster.bound import decided_shares
from scheduler_ext.cluster.records import namespace_of
from scheduler_ext.cluster.snapshot import quota_for
from scheduler_ext.cluster.usage import NodeAlone
from scheduler_ext.quota_class import quota_class
from scheduler_ext.requests import ResourceNames, container_kinds, pod_key


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeWrite:
    """One write on the pod, if nothing of it has changed since. None leaves a part as it is."""

    answer: ResizeAnswer | None = None
    holds: PodShares | None = None
    """The amounts that the pod holds from then on."""
    counts: Footprints | None = None
    """The amounts that count as taken before it is written."""


def resize_write(pod: Pod, names: ResourceNames, node: NodeAlone) -> ResizeWrite | None:
    """Returns the next write for the pod's wish; None while there is none. `node` is the pod's own, with the quotas of
    its namespace.
    """
    wish, answer = wish_in(pod.metadata.annotations), answer_in(pod.metadata.annotations)
    if not wish:
        return None
    if answer is None or answer.wish != wish:
        return None if node.node.by_slots else _refused(wish, _NOT_BY_SLOTS.format(node.node.name))
    if answer.state not in (ResizeState.READY, ResizeState.GROWING):
        return None
    try:
        shares = decided_shares(pod, names)
        wanted = wished(wish, [container.name for container in pod.all_containers], shares)
    except AnnotationError as error:
        return _refused(wish, str(error))
    if answer.state is ResizeState.READY and (shares == wanted or smaller(shares, wanted) != shares):
        return _shrunk(wish, shares, wanted)
    return _grown(pod, answer, node, shares=shares, grown=larger(shares, wanted))


def _shrunk(wish: str, shares: PodShares, wanted: PodShares) -> ResizeWrite:
    """Returns the write of what has become smaller. What grows comes after it."""
    least = smaller(shares, wanted)
    done = ResizeAnswer(wish=wish, state=ResizeState.DONE) if least == wanted else None
    return ResizeWrite(answer=done, holds=least)


def _grown(
    pod: Pod, answer: ResizeAnswer, node: NodeAlone, *, shares: PodShares, grown: PodShares
) -> ResizeWrite | None:
    if shares == grown:
        return None
    counts = effective(container_kinds(pod), grown)
    if problem := _why_not(pod, counts, node):
        return _refused(answer.wish, problem)
    if answer.state is ResizeState.GROWING:
        return ResizeWrite(holds=grown)
    return ResizeWrite(answer=structs.replace(answer, state=ResizeState.GROWING), counts=counts)


_NOT_BY_SLOTS = "node {} does not allocate by slots, so its driver limits no container: the size cannot change"


def _refused(wish: str, why: str) -> ResizeWrite:
    return ResizeWrite(answer=ResizeAnswer(wish=wish, state=ResizeState.REFUSED, why=why))


def _why_not(pod: Pod, grown: Footprints, node: NodeAlone) -> str:
    """Returns why the pod cannot hold this much beside the others and within its quotas, as a sentence; empty if it
    can.
    """
    uid = pod_key(pod)
    beside = {gpu.device.uuid: gpu for gpu in node.usage({uid}).gpus}
    for uuid, part in grown.items():
        gpu = beside.get(uuid)
        if gpu is None:
            return f"node {node.node.name} does not offer {uuid} now"
        if gpu.memory_mib + part.memory_mib > gpu.device.memory_mib:
            return (
                f"GPU {gpu.device.index} ({uuid}) of node {node.node.name} has {gpu.device.memory_mib} MiB, of which "
                f"{gpu.memory_mib} MiB are taken beside this pod: it cannot have {part.memory_mib} MiB"
            )
    namespace, wanted = namespace_of(pod), sum(each.memory_mib for each in grown.values())
    quota = quota_for(quota_class(pod), node.quotas_of(namespace, {uid}))
    if quota is None or quota.admits(wanted, 0) or quota.memory_mib is None:
        return ""
    return (
        f"the quota of namespace {namespace} is {quota.memory_mib} MiB of GPU memory, of which {quota.used.memory_mib} "
        f"MiB are taken beside this pod: it cannot have {wanted} MiB"
    )
