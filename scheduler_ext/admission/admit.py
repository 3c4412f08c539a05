"""A new pod → may it be created, and what is changed on it.

Source: pkg/scheduler/webhook.go of Project-HAMi/HAMi v2.10. Beyond it, what only the scheduler writes is stripped from
every pod, variables that are there already are not added again, and unreadable amounts are refused.
"""

from copy import deepcopy
from dataclasses import replace
from enum import StrEnum
from itertools import chain

import msgspec

from proto.admission import Json, PodReview, Verdict, denied, failed
from proto.annotations import keys
from proto.devices import DeviceShare, DeviceUUID
from proto.kubernetes.objects import ObjectMeta, Pod
from proto.kubernetes.wire import decode_object
from scheduler_ext.admission.bypass import bypasses
from scheduler_ext.admission.containers import BadPercentage, complete
from scheduler_ext.admission.json_patch import difference
from scheduler_ext.admission.owned import strip
from scheduler_ext.admission.settings import AdmissionSettings, BypassMode
from scheduler_ext.cluster.accounting import NOTHING, Footprint, effective
from scheduler_ext.cluster.snapshot import Quota
from scheduler_ext.policies import PolicyError, read_policies
from scheduler_ext.requests import (
    ContainerNeed,
    GpuRequest,
    RequestError,
    ResourceNames,
    containers,
    read_request,
)

DEFAULT_SCHEDULER = "default-scheduler"
MOST_GPUS = 256
"""Of one container: 32 GPUs in one machine, each in seven MIG instances, are fewer."""

_ANY = DeviceUUID("")


class Why(StrEnum):
    """What decided an answer, in one word for the metrics."""

    NOT_CREATED = "NotCreated"
    """Another operation than the creation of a pod."""
    IGNORED = "Ignored"
    OTHER_SCHEDULER = "OtherScheduler"
    NO_GPUS = "NoGpus"
    GPUS = "Gpus"
    NO_CONTAINERS = "NoContainers"
    BYPASS = "Bypass"
    PRIVILEGED = "Privileged"
    NODE_ASSIGNED = "NodeAssigned"
    TOO_MANY_GPUS = "TooManyGpus"
    QUOTA = "QuotaExceeded"
    UNREADABLE = "UnreadableRequest"


def admit(review: PodReview, settings: AdmissionSettings, quota: Quota | None = None) -> Verdict:
    """`quota` is that of the pod's namespace. A second call on the patched pod patches nothing."""
    if review.operation != "CREATE":
        return Verdict(allowed=True, reason=Why.NOT_CREATED)
    edited = deepcopy(review.object)
    strip(edited)
    ignored = review.pod.metadata.labels.get(keys.WEBHOOK) == keys.WEBHOOK_IGNORE
    verdict = Verdict(allowed=True, reason=Why.IGNORED) if ignored else _judged(review.pod, edited, settings, quota)
    return replace(verdict, patch=tuple(difference(review.object, edited))) if verdict.allowed else verdict


def _judged(pod: Pod, edited: Json, settings: AdmissionSettings, quota: Quota | None) -> Verdict:
    """The verdict but for its patch; `edited`, the same pod, is completed in place."""
    if not pod.spec.containers:
        return denied("pod has no containers", reason=Why.NO_CONTAINERS)
    found = bypasses(pod, settings) if settings.deny_bypass is not BypassMode.OFF else ()
    if found and settings.deny_bypass is BypassMode.DENY:
        return denied("; ".join(found), reason=Why.BYPASS)
    if _is_anothers(pod, settings):
        message = "pod already has different scheduler assigned"
        verdict = Verdict(allowed=True, message=message, warnings=found, reason=Why.OTHER_SCHEDULER)
    else:
        verdict = _completed(pod, edited, settings, quota, found)
    # What is only audited counts as that for which it would have been refused.
    return replace(verdict, reason=Why.BYPASS) if found and verdict.allowed else verdict


def _completed(
    pod: Pod, edited: Json, settings: AdmissionSettings, quota: Quota | None, found: tuple[str, ...]
) -> Verdict:
    """Of a pod that is ours to place; `found` are its bypasses."""
    try:
        has_gpus = _complete_containers(edited, pod, settings)
        request = _request(edited, settings)
    except (BadPercentage, RequestError) as error:
        return failed(str(error), reason=Why.UNREADABLE)
    if not has_gpus:
        return Verdict(allowed=True, warnings=found, reason=Why.NO_GPUS)
    _place(edited["spec"], settings)
    verdict = _refusal(pod, request, settings, quota) or Verdict(allowed=True, reason=Why.GPUS)
    return replace(verdict, warnings=(*found, *_policy_warnings(pod, settings)))


def _is_anothers(pod: Pod, settings: AdmissionSettings) -> bool:
    name = pod.spec.scheduler_name
    unnamed = not name or (name == DEFAULT_SCHEDULER and settings.force_overwrite_default_scheduler)
    return not unnamed and name != settings.scheduler_name


def _complete_containers(edited: Json, pod: Pod, settings: AdmissionSettings) -> bool:
    """Whether any of them gets GPUs."""
    spec = edited["spec"]
    written = chain(spec.get("initContainers") or (), spec["containers"])
    pairs = zip(written, containers(pod), strict=True)
    return any([complete(container, read, settings) for container, read in pairs])  # noqa: C419 - completes all


def _place(spec: Json, settings: AdmissionSettings) -> None:
    """Sends a pod that gets GPUs to our scheduler, and to the runtime that knows GPUs."""
    if settings.runtime_class_name and not spec.get("runtimeClassName"):
        spec["runtimeClassName"] = settings.runtime_class_name
    if settings.scheduler_name:
        spec["schedulerName"] = settings.scheduler_name


def _request(edited: Json, settings: AdmissionSettings) -> GpuRequest | None:
    """What the completed containers ask for. Raises RequestError; the annotations are not looked at."""
    pod = decode_object(Pod, msgspec.json.encode(edited))
    return read_request(Pod(metadata=ObjectMeta(name=pod.metadata.name), spec=pod.spec), settings.requests)


def _refusal(pod: Pod, request: GpuRequest | None, settings: AdmissionSettings, quota: Quota | None) -> Verdict | None:
    """Of a pod that gets GPUs and may not be created."""
    for container in containers(pod):
        if (container.security_context or {}).get("privileged"):
            return denied(f"container {container.name} is privileged", reason=Why.PRIVILEGED)
    if settings.scheduler_name and pod.spec.node_name:
        return denied("pod has node assigned", reason=Why.NODE_ASSIGNED)
    if request is None:
        return None
    for need in request.needs:
        if need is not None and need.count > MOST_GPUS:
            return denied(_too_many(need, settings.requests.names), reason=Why.TOO_MANY_GPUS)
    asked = _least(request)
    if quota is None or quota.admits(asked.memory_mib, asked.cores, asked.slots):
        return None
    return denied(f"exceeding resource quota: {'; '.join(_numbers(asked, quota))}", reason=Why.QUOTA)


def _too_many(need: ContainerNeed, names: ResourceNames) -> str:
    return (
        f"container {need.container}: {names.count}: {need.count} GPUs are more than any node has; "
        f"memory is asked for as {names.memory}, in MiB"
    )


def _least(request: GpuRequest) -> Footprint:
    """What the pod holds at least at its peak; a percentage of memory is known once there is a GPU, and counts 0."""
    # As if all its GPUs were one.
    shares = tuple(
        ()
        if need is None
        else (DeviceShare(uuid=_ANY, memory_mib=need.memory_mib, cores=need.reserved_cores),) * need.count
        for need in request.needs
    )
    return effective(request.kinds, shares).get(_ANY, NOTHING)


def _numbers(asked: Footprint, quota: Quota) -> list[str]:
    parts = (
        ("GPUs", asked.slots, quota.used.slots, quota.gpus),
        ("MiB of GPU memory", asked.memory_mib, quota.used.memory_mib, quota.memory_mib),
        ("percent of GPU cores", asked.cores, quota.used.cores, quota.cores),
    )
    return [
        f"the pod asks for {wanted} {unit}, and {used} of the namespace's {limit} are taken"
        for unit, wanted, used, limit in parts
        if limit is not None and used + wanted > limit
    ]


def _policy_warnings(pod: Pod, settings: AdmissionSettings) -> tuple[str, ...]:
    requests = settings.requests
    try:
        return read_policies(pod.metadata.annotations, requests.node_policy, requests.gpu_policy).warnings
    except PolicyError as error:
        return (f"{error}; the pod stays Pending",)
