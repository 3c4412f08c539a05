"""A new pod → may it be created, and what is changed on it.

Source: pkg/scheduler/webhook.go of Project-HAMi/HAMi v2.10. Beyond it, what only the scheduler writes is stripped from
every pod, variables that are there already are not added again, and unreadable amounts are refused.
"""

from copy import deepcopy
from dataclasses import replace
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
from scheduler_ext.requests import GpuRequest, RequestError, containers, read_request

DEFAULT_SCHEDULER = "default-scheduler"

_ANY = DeviceUUID("")


def admit(review: PodReview, settings: AdmissionSettings, quota: Quota | None = None) -> Verdict:
    """`quota` is that of the pod's namespace. A second call on the patched pod patches nothing."""
    if review.operation != "CREATE":
        return Verdict(allowed=True)
    edited = deepcopy(review.object)
    strip(edited)
    ignored = review.pod.metadata.labels.get(keys.WEBHOOK) == keys.WEBHOOK_IGNORE
    verdict = Verdict(allowed=True) if ignored else _judged(review.pod, edited, settings, quota)
    return replace(verdict, patch=tuple(difference(review.object, edited))) if verdict.allowed else verdict


def _judged(pod: Pod, edited: Json, settings: AdmissionSettings, quota: Quota | None) -> Verdict:
    """The verdict but for its patch; `edited`, the same pod, is completed in place."""
    if not pod.spec.containers:
        return denied("pod has no containers")
    found = bypasses(pod, settings) if settings.deny_bypass is not BypassMode.OFF else ()
    if found and settings.deny_bypass is BypassMode.DENY:
        return denied("; ".join(found))
    if _is_anothers(pod, settings):
        return Verdict(allowed=True, message="pod already has different scheduler assigned", warnings=found)
    try:
        has_gpus = _complete_containers(edited, pod, settings)
        request = _request(edited, settings)
    except (BadPercentage, RequestError) as error:
        return failed(str(error))
    if has_gpus:
        _place(edited["spec"], settings)
        found = (*found, *_policy_warnings(pod, settings))
    refusal = _refusal(pod, request, settings, quota) if has_gpus else ""
    return denied(refusal, found) if refusal else Verdict(allowed=True, warnings=found)


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


def _refusal(pod: Pod, request: GpuRequest | None, settings: AdmissionSettings, quota: Quota | None) -> str:
    """Why a pod that gets GPUs may not be created; empty when it may."""
    for container in containers(pod):
        if (container.security_context or {}).get("privileged"):
            return f"container {container.name} is privileged"
    if settings.scheduler_name and pod.spec.node_name:
        return "pod has node assigned"
    if request is None or quota is None:
        return ""
    asked = _least(request)
    if quota.admits(asked.memory_mib, asked.cores):
        return ""
    return f"exceeding resource quota: {'; '.join(_numbers(asked, quota))}"


def _least(request: GpuRequest) -> Footprint:
    """What the pod holds at least at its peak; a percentage of memory is known once there is a GPU, and counts 0."""
    # As if all its GPUs were one.
    shares = tuple(
        ()
        if need is None
        else (DeviceShare(uuid=_ANY, memory_mib=need.memory_mib * need.count, cores=need.reserved_cores * need.count),)
        for need in request.needs
    )
    return effective(request.kinds, shares).get(_ANY, NOTHING)


def _numbers(asked: Footprint, quota: Quota) -> list[str]:
    parts = (
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
