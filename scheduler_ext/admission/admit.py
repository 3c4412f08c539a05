"""Decides whether a new pod may be created, and what is changed on it: as a JSON Patch (RFC 6902).

Source: pkg/scheduler/webhook.go of Project-HAMi/HAMi v2.10. In addition it strips from every pod what only the
scheduler writes, does not add variables that are already there, and refuses unreadable amounts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import chain
from typing import Any, cast

from proto.admission import AdmissionVerdict, Json, PodReview, denied, failed
from proto.annotations import keys
from proto.annotations.spelling import misspelt
from proto.decoding import shortened
from proto.kubernetes.objects import Container, Pod
from scheduler_ext.admission.containers import (
    EXCLUSIVE_CORES,
    AdmissionSettings,
    BadPercentage,
    add_sums,
    bypasses,
    complete,
    gets_gpus,
)
from scheduler_ext.cluster.accounting import Footprint, least
from scheduler_ext.cluster.snapshot import Quota
from scheduler_ext.policies import PolicyError, read_policies
from scheduler_ext.requests import (
    ContainerNeed,
    DeviceFilter,
    RequestError,
    TooMany,
    check_lengths,
    container_kinds,
    device_filter,
    read_needs,
)
from scheduler_ext.settings import BypassMode

DEFAULT_SCHEDULER = "default-scheduler"
GpuMemory = Callable[[DeviceFilter], int]
"""A function that returns the MiB of the smallest GPU that a filter allows; 0 if none is known."""


class Why(StrEnum):
    """The reason of an answer, in one word for the metrics."""

    NOT_CREATED = "NotCreated"
    """Any operation other than the creation of a pod."""
    IGNORED = "Ignored"
    OTHER_SCHEDULER = "OtherScheduler"
    NO_GPUS = "NoGpus"
    GPUS = "Gpus"
    NO_CONTAINERS = "NoContainers"
    BYPASS = "Bypass"
    PRIVILEGED = "Privileged"
    NODE_ASSIGNED = "NodeAssigned"
    TOO_MUCH = "TooMuch"
    QUOTA = "QuotaExceeded"
    UNREADABLE = "UnreadableRequest"
    TEMPLATES = "Templates"
    """An object with templates of pods."""


def admit(
    review: PodReview,
    settings: AdmissionSettings,
    quota: Quota | None = None,
    gpu_memory: GpuMemory = lambda _: 0,
) -> AdmissionVerdict:
    """Judges a new pod. `quota` is what the namespace's quotas leave to it. A second call on the patched pod patches
    nothing.
    """
    if review.operation != "CREATE":
        return AdmissionVerdict(allowed=True, reason=Why.NOT_CREATED)
    edited = _editable(review.object)
    strip(edited)
    ignored = review.pod.metadata.labels.get(keys.WEBHOOK) == keys.WEBHOOK_IGNORE
    verdict = (
        AdmissionVerdict(allowed=True, reason=Why.IGNORED) if ignored else _judged(review.pod, edited, settings, quota)
    )
    if verdict.allowed and not ignored and (summed := summed_up(review.pod, edited["spec"], settings, gpu_memory)):
        edited["spec"] = summed
    return replace(verdict, patch=tuple(difference(review.object, edited))) if verdict.allowed else verdict


def summed_up(pod: Pod, spec: Json, settings: AdmissionSettings, gpu_memory: GpuMemory) -> Json | None:
    """Returns the pod's spec with the sums of its GPUs; None if it gets none. `spec` is the same as JSON, completed or
    not.
    """
    if not settings.gpu_sums or _is_anothers(pod, settings):
        return None
    summed = _editable({"spec": spec})
    try:
        needs = read_needs(_complete_containers(_editable(summed), pod, settings), settings.requests)
    except (BadPercentage, RequestError):
        return None
    if not any(needs):
        return None
    add_sums(summed["spec"], needs, gpu_memory(device_filter(pod.metadata.annotations)))
    return cast("Json", summed["spec"])


def _judged(pod: Pod, edited: Json, settings: AdmissionSettings, quota: Quota | None) -> AdmissionVerdict:
    """Returns the verdict without its patch. `edited` is a copy of the pod and is completed in place."""
    if not pod.spec.containers:
        return denied("pod has no containers", reason=Why.NO_CONTAINERS)
    ours = not _is_anothers(pod, settings)
    found = bypasses(pod, settings, completed=ours) if settings.requests.deny_bypass is not BypassMode.OFF else ()
    if found and settings.requests.deny_bypass is BypassMode.DENY:
        return denied("; ".join(found), reason=Why.BYPASS)
    if not ours:
        message = "pod already has different scheduler assigned"
        verdict = AdmissionVerdict(allowed=True, message=message, warnings=found, reason=Why.OTHER_SCHEDULER)
    else:
        verdict = _completed(pod, edited, settings, quota, found)
    # A bypass that is only audited is recorded with the reason for which it would have been refused.
    return replace(verdict, reason=Why.BYPASS) if found and verdict.allowed else verdict


def _completed(
    pod: Pod, edited: Json, settings: AdmissionSettings, quota: Quota | None, found: tuple[str, ...]
) -> AdmissionVerdict:
    """Completes a pod that we place. `found` are its bypasses."""
    try:
        completed = _complete_containers(edited, pod, settings)
        needs = read_needs(completed, settings.requests)
        if any(needs):
            check_lengths(pod.metadata.annotations)
    except TooMany as error:
        return denied(str(error), reason=Why.TOO_MUCH)
    except (BadPercentage, RequestError) as error:
        return failed(str(error), reason=Why.UNREADABLE)
    if not any(gets_gpus(container, settings) for container in completed):
        return AdmissionVerdict(allowed=True, warnings=found, reason=Why.NO_GPUS)
    _place(edited["spec"], settings)
    verdict = _refusal(pod, needs, quota) or AdmissionVerdict(allowed=True, reason=Why.GPUS)
    warnings = (*_policy_warnings(pod, settings), *_priority_warnings(needs, settings), *_spelling_warnings(pod))
    return replace(verdict, warnings=(*found, *warnings))


def _is_anothers(pod: Pod, settings: AdmissionSettings) -> bool:
    name = pod.spec.scheduler_name
    unnamed = not name or (name == DEFAULT_SCHEDULER and settings.force_overwrite_default_scheduler)
    return not unnamed and name != settings.requests.scheduler_name


def _editable(pod: Json) -> Json:
    """Returns a copy of the pod. It copies only the parts that may be changed."""
    edited = {**pod, **{field: dict(pod[field]) for field in ("metadata", "spec") if pod.get(field)}}
    spec = edited.get("spec") or {}
    for field in ("initContainers", "containers"):
        if spec.get(field):
            spec[field] = [dict(container) for container in spec[field]]
    return edited


def _complete_containers(edited: Json, pod: Pod, settings: AdmissionSettings) -> list[Container]:
    """Returns the containers as they read afterwards."""
    spec = edited["spec"]
    written = chain(spec.get("initContainers") or (), spec["containers"])
    return [complete(container, read, settings) for container, read in zip(written, pod.all_containers, strict=True)]


def _place(spec: Json, settings: AdmissionSettings) -> None:
    """Sends a pod that gets GPUs to our scheduler and to the runtime class for GPUs."""
    if settings.runtime_class_name and not spec.get("runtimeClassName"):
        spec["runtimeClassName"] = settings.runtime_class_name
    spec["schedulerName"] = settings.requests.scheduler_name


def _refusal(pod: Pod, needs: Sequence[ContainerNeed | None], quota: Quota | None) -> AdmissionVerdict | None:
    """Returns why a pod that gets GPUs may not be created; None if it may."""
    for container in pod.all_containers:
        if (container.security_context or {}).get("privileged"):
            return denied(f"container {shortened(container.name)} is privileged", reason=Why.PRIVILEGED)
    if pod.spec.node_name:
        return denied("pod has node assigned", reason=Why.NODE_ASSIGNED)
    requested = least(container_kinds(pod), needs)
    if quota is None or quota.admits(requested.memory_mib, requested.cores, requested.replicas):
        return None
    return denied(f"exceeding resource quota: {'; '.join(_numbers(requested, quota))}", reason=Why.QUOTA)


def _numbers(requested: Footprint, quota: Quota) -> list[str]:
    parts = (
        ("GPUs", requested.replicas, quota.used.replicas, quota.gpus),
        ("MiB of GPU memory", requested.memory_mib, quota.used.memory_mib, quota.memory_mib),
        ("percent of GPU cores", requested.cores, quota.used.cores, quota.cores),
    )
    return [
        f"the pod asks for {wanted} {unit}, and {used} of the namespace's {limit} are taken"
        for unit, wanted, used, limit in parts
        if limit is not None and used + wanted > limit
    ]


def _priority_warnings(needs: Sequence[ContainerNeed | None], settings: AdmissionSettings) -> tuple[str, ...]:
    """Returns warnings if a priority has no effect. Since March 2026 HAMi-core makes a task wait only if it
    limits its cores (rate_limiter of multiprocess_utilization_watcher.c of Project-HAMi/HAMi-core).
    """
    names = settings.requests.names
    return tuple(
        f"container {shortened(need.container)}: {names.priority} {need.priority} makes it wait for no other without "
        f"{names.cores} from 1 to 99"
        for need in needs
        if need is not None and need.priority and not 0 < need.cores < EXCLUSIVE_CORES
    )


def _spelling_warnings(pod: Pod) -> tuple[str, ...]:
    """Returns warnings about annotations in any domain that are no name of ours or HAMi's, but nearly."""
    near = misspelt(pod.metadata.annotations, domains=("",))
    return tuple(
        f"annotation {shortened(key)} is unknown and has no effect; did you mean {name}?" for key, name in near
    )


def _policy_warnings(pod: Pod, settings: AdmissionSettings) -> tuple[str, ...]:
    requests = settings.requests
    try:
        return read_policies(pod.metadata.annotations, requests.node_policy, requests.gpu_policy).warnings
    except PolicyError as error:
        return (f"{error}; the pod stays Pending",)


LABELS = (keys.POD_NODE,)


def is_owned(annotation: str) -> bool:
    return annotation in keys.POD_WRITTEN_KEYS or annotation.startswith(keys.POD_WRITTEN_PREFIX)


def strip(pod: Json) -> None:
    """Removes these entries in place. A pod's creator could else claim GPUs, or hide what the pod holds."""
    metadata = pod.get("metadata") or {}
    for field, unwanted in (("annotations", is_owned), ("labels", LABELS.__contains__)):
        entries = metadata.get(field) or {}
        kept = {key: value for key, value in entries.items() if not unwanted(key)}
        if len(kept) < len(entries):
            metadata[field] = kept


def difference(before: Any, after: Any, path: str = "") -> Iterator[Json]:
    """Yields the operations that turn `before` into `after`; none for equal parts. Lists may only grow at their end
    or shrink.
    """
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _members(before, after, path)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _items(before, after, path)
    else:
        yield {"op": "replace", "path": path, "value": after}


def _members(before: Mapping[str, Any], after: Mapping[str, Any], path: str) -> Iterator[Json]:
    for key in before:
        if key not in after:
            yield {"op": "remove", "path": f"{path}/{pointer_token(key)}"}
    for key, value in after.items():
        if key not in before:
            yield {"op": "add", "path": f"{path}/{pointer_token(key)}", "value": value}
        elif before[key] is not value:
            yield from difference(before[key], value, f"{path}/{pointer_token(key)}")


def _items(before: list[Any], after: list[Any], path: str) -> Iterator[Json]:
    for index, (old, new) in enumerate(zip(before, after, strict=False)):
        if old is not new:
            yield from difference(old, new, f"{path}/{index}")
    for index in reversed(range(len(after), len(before))):
        yield {"op": "remove", "path": f"{path}/{index}"}
    for value in after[len(before) :]:
        yield {"op": "add", "path": f"{path}/-", "value": value}


def pointer_token(key: str) -> str:
    """Returns a member's name as JSON Pointer (RFC 6901) writes it."""
    return key.replace("~", "~0").replace("/", "~1")
