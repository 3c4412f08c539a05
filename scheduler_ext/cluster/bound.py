"""Reads what bound pods hold from their annotations, without trusting them, and what deleted ones hold from reports.

Containers of a deleted pod may still run. It holds its GPUs until its node's daemon reports their end. Where the daemon
reports nothing (HAMi's, or one that does not see the host's control groups) it holds them for a time.
"""

from collections.abc import Collection, Iterator
from sys import intern
from typing import Any

from msgspec.structs import replace

from proto.annotations.errors import AnnotationError
from proto.annotations.keys import DEVICES_ALLOCATED, MIG_ALLOCATIONS
from proto.annotations.memory_resize import ResizeState, answer_in, larger, wished
from proto.annotations.mig_allocations import MigAllocation, decode_mig_allocations
from proto.annotations.outliving_pods import Outliving
from proto.annotations.pod_devices import decode_pod_devices
from proto.devices import ContainerShares, DeviceUUID, PodShares
from proto.kubernetes.objects import Pod, version_number
from proto.kubernetes.requests import exclusive_cpus, requested
from scheduler_ext.cluster.accounting import NOTHING, Footprint, effective, pinned_containers
from scheduler_ext.cluster.records import NO_GPUS, GpuPart, PodRecord, RecordState, namespace_of, placements_of
from scheduler_ext.quota_class import quota_class
from scheduler_ext.requests import ContainerKind, ResourceNames, container_kinds, gpu_count, pod_key


def read_bound(
    pod: Pod, names: ResourceNames, known: PodRecord | None = None, gpus: Collection[DeviceUUID] = ()
) -> PodRecord | None:
    """Returns what a bound pod holds of GPUs. None if the pod is not bound, has ended or requests no GPU; a terminating
    pod still holds its GPUs.

    The pod holds what it was `known` to hold until it ends, even if its annotation is gone, is unreadable now, or names
    others than its node's `gpus` instead. A pod that never had a decision holds what kubelet gave it.
    """
    value = pod.metadata.annotations.get(DEVICES_ALLOCATED, "")
    if not pod.spec.node_name or pod.has_ended:
        return None
    if known is not None and (known.node != pod.spec.node_name or known.gpus is NO_GPUS):
        known = None
    record: PodRecord | None
    if value:
        record = _decided(pod, value, names, known, gpus)
    elif known is None or known.gpus.undecided or known.gpus.everywhere:
        record = _undecided(pod, names)
    else:
        record = _remembered(pod, known, f"{DEVICES_ALLOCATED} was removed")
    growth = None if known is None else known.growth
    if record is None or growth is None or version_number(pod.metadata.resource_version) >= growth.from_version:
        return record
    held = record.gpus.footprints
    merged = {gpu: held.get(gpu, NOTHING) | growth.counts.get(gpu, NOTHING) for gpu in {**held, **growth.counts}}
    return replace(record, gpus=replace(record.gpus, footprints=merged), growth=replace(growth, pod=pod))


def _bound_record(pod: Pod, gpus: GpuPart = NO_GPUS, **more: Any) -> PodRecord:
    """Returns the record of a bound pod with this part of its node's GPUs."""
    return PodRecord(
        uid=pod_key(pod),
        state=RecordState.BOUND,
        node=intern(pod.spec.node_name),
        namespace=namespace_of(pod),
        quota_class=quota_class(pod),
        gpus=gpus,
        **more,
    )


def _decided(
    pod: Pod, value: str, names: ResourceNames, known: PodRecord | None, gpus: Collection[DeviceUUID]
) -> PodRecord:
    """Returns what the pod holds by the annotation's `value`, or what it was known to hold."""
    try:
        kinds, decided = _aligned(pod, value, names)
    except AnnotationError as error:
        if known is not None and known.gpus.footprints:
            return _remembered(pod, known, str(error))
        wanted = max((gpu_count(container, names) for container in pod.all_containers), default=0)
        return _bound_record(pod, GpuPart(unreadable=value, wanted=wanted), problem=str(error))
    shares = _growing(pod, decided)
    footprints = effective(kinds, shares)
    if known is not None and footprints.keys() - gpus and known.gpus.footprints.keys() & gpus - footprints.keys():
        return _remembered(pod, known, f"{DEVICES_ALLOCATED} names a GPU that node {known.node} lacks")
    allocations, problem = _read_allocations(pod)
    placements = placements_of(allocations, shares)
    pinned = pinned_containers(exclusive_cpus(pod), kinds, shares)
    part = GpuPart(footprints=footprints, placements=placements, pinned=pinned)
    return _bound_record(
        pod, part, instances=tuple(each for each in allocations if each.mig_uuid is not None), problem=problem
    )


def _growing(pod: Pod, shares: PodShares) -> PodShares:
    """Returns what counts of the pod: what it is about to get counts before it has that."""
    answer = answer_in(pod.metadata.annotations)
    containers = [container.name for container in pod.all_containers]
    if answer is None or answer.state is not ResizeState.GROWING or len(containers) != len(shares):
        return shares
    try:
        return larger(shares, wished(answer.wish, containers, shares))
    except AnnotationError:
        return shares


def decided_shares(pod: Pod, names: ResourceNames) -> PodShares:
    """Returns what a bound pod holds, with one entry for each container. Raises AnnotationError."""
    _, shares = _aligned(pod, pod.metadata.annotations.get(DEVICES_ALLOCATED, ""), names)
    if len(shares) != len(pod.all_containers):
        raise AnnotationError(DEVICES_ALLOCATED, "", "its entries do not match the pod's containers")
    return shares


def _remembered(pod: Pod, known: PodRecord, problem: str) -> PodRecord:
    """Returns what the pod was known to hold: an annotation that names less gives nothing of it to others."""
    problem = f"{problem}; until the pod ends it holds what {DEVICES_ALLOCATED} named before"
    return _bound_record(pod, known.gpus, instances=known.instances, remembered=True, problem=problem)


def outlives(pod: Pod) -> bool:
    """Returns whether containers of a bound pod may go on after its deletion: it was forced while they ran by the last
    status.

    Otherwise kubelet removes a pod only after it has reported the end of each container.
    """
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    running = any(status.state.running is not None for status in statuses)
    return bool(pod.spec.node_name) and running


def _undecided(pod: Pod, names: ResourceNames) -> PodRecord | None:
    """Returns what a bound pod without a decision holds; None if it requests no GPU."""
    ids = requested(pod, names.count)
    if not ids:
        return None
    node = pod.spec.node_name
    # The pod runs without a decision, so it may use any memory of the GPUs that it was given.
    runs = pod.is_running
    problem = (
        f"runs on node {node} without {DEVICES_ALLOCATED}; until it ends all GPUs of the node count as full, or only "
        "those that kubelet gave it where the node's daemon names them"
        if runs
        else f"bound to node {node} by another scheduler; {ids} of its {names.count} count as taken until it ends"
    )
    name = f"{pod.metadata.namespace or 'default'}/{pod.metadata.name}"
    return _bound_record(pod, GpuPart(uid=pod.metadata.uid, pod=name, undecided=ids, everywhere=runs), problem=problem)


def _read_allocations(pod: Pod) -> tuple[tuple[MigAllocation, ...], str]:
    """Returns the allocations, and the problem of an annotation that cannot be read; empty without one."""
    value = pod.metadata.annotations.get(MIG_ALLOCATIONS, "")
    if not value:
        return (), ""
    try:
        return decode_mig_allocations(value), ""
    except AnnotationError as error:
        return (), str(error)


def _aligned(pod: Pod, value: str, names: ResourceNames) -> tuple[tuple[ContainerKind, ...], PodShares]:
    """Returns kinds and shares with one entry per container. Raises AnnotationError if the annotation cannot be read or
    names too few GPUs.

    HAMi 2.10 leaves out the entries of containers without GPUs. So entries are matched to the containers that request
    GPUs if their numbers agree, else by position. Entries that match nothing count as running all at once.
    """
    kinds = container_kinds(pod)
    written = decode_pod_devices(DEVICES_ALLOCATED, value)
    _refuse_templates(written)
    filled = [entry for entry in written if entry]
    asking = [position for position, container in enumerate(pod.all_containers) if gpu_count(container, names)]
    asked, given = [gpu_count(pod.all_containers[at], names) for at in asking], [len(entry) for entry in filled]
    is_aligned = len(given) == len(asked)
    if any(map(int.__lt__, given, asked)) if is_aligned else max(given, default=0) < max(asked, default=0):
        problem = f"it names {sum(given)} GPUs, and the pod's containers ask for {sum(asked)}"
        raise AnnotationError(DEVICES_ALLOCATED, "decision", problem)
    if is_aligned:
        shares: list[ContainerShares] = [()] * len(kinds)
        for position, entry in zip(asking, filled, strict=True):
            shares[position] = entry
        return kinds, tuple(shares)
    if len(written) >= len(kinds) and not any(written[len(kinds) :]):
        return kinds, written[: len(kinds)]
    return (ContainerKind.APP,) * len(filled), tuple(filled)


def _refuse_templates(shares: PodShares) -> None:
    """Raises AnnotationError for a MIG instance of HAMi 2.5 to 2.9, `GPU-a[template-slot]`: no annotation has the part
    of the GPU that it leaves.
    """
    for position, container in enumerate(shares):
        for share in container:
            if "[" in share.uuid:
                problem = f"{share.uuid} is an instance of a MIG template of HAMi 2.9 or older; recreate the pod"
                raise AnnotationError(DEVICES_ALLOCATED, f"container {position}", problem)


OUTLIVING_SECONDS = 120.0
"""How long a pod deleted by force keeps its GPUs if the node's daemon does not report the end of its containers.

kubelet then kills them with their grace period, 30 s unless the pod names another.
"""


def still_running(node: str, report: Outliving) -> Iterator[PodRecord]:
    """Yields what pods hold that still run after their deletion, as the node's daemon reports it."""
    for uid, held in report.pods.items():
        if held:
            footprints = {gpu: Footprint(*amounts) for gpu, amounts in held.items()}
            part = GpuPart(footprints=footprints, pod=report.names.get(uid, ""))
            yield PodRecord(uid=uid, state=RecordState.OUTLIVING, node=node, gpus=part)
