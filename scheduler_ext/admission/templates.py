"""Writes the sums into pod templates: Kueue counts a Job by its template, before there is a pod."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from proto.admission import LONGEST_RESOURCES, MOST_CONTAINERS, AdmissionVerdict, Json, TemplateReview
from proto.kubernetes.objects import Pod
from proto.kubernetes.wire import UnreadableObject, decode_object
from scheduler_ext.admission.admit import GpuMemory, Why, difference, pointer_token, summed_up
from scheduler_ext.admission.containers import AdmissionSettings

MOST_TEMPLATES = 32
DEEPEST = 12
"""Levels of the object that are searched for templates."""


def admit_templates(review: TemplateReview, settings: AdmissionSettings, gpu_memory: GpuMemory) -> AdmissionVerdict:
    """Allows the object, with the sums in its templates. A template that cannot be read stays as it is: its pods are
    refused later, with the reason. So does what follows more containers than a pod may have.
    """
    patch: list[Json] = []
    # The API server validates an object after the webhooks: it may still be of any size.
    containers, size = MOST_CONTAINERS, LONGEST_RESOURCES
    for path, template in islice(_templates(review.object.get("spec"), "/spec", DEEPEST), MOST_TEMPLATES):
        rows = _containers(template["spec"])
        containers -= len(rows)
        if containers < 0 or (size := size - sum(map(_length_of_resources, rows))) < 0:
            break
        pod = _pod(template)
        spec = None if pod is None else summed_up(pod, template["spec"], settings, gpu_memory)
        if spec is not None:
            patch += difference(template["spec"], spec, f"{path}/spec")
    return AdmissionVerdict(allowed=True, patch=tuple(patch), reason=Why.TEMPLATES)


def _templates(value: Any, path: str, depth: int) -> Iterator[tuple[str, Json]]:
    """Yields path and template, wherever one is."""
    if not depth:
        return
    if isinstance(value, list):
        for place, each in enumerate(value):
            yield from _templates(each, f"{path}/{place}", depth - 1)
    elif isinstance(value, dict):
        spec = value.get("spec")
        if isinstance(spec, dict) and isinstance(spec.get("containers"), list):
            yield path, value
            return
        for name, each in value.items():
            yield from _templates(each, f"{path}/{pointer_token(name)}", depth - 1)


def _containers(spec: Json) -> list[Any]:
    inits = spec.get("initContainers")
    return [*(inits if isinstance(inits, list) else ()), *spec["containers"]]


def _length_of_resources(container: Any) -> int:
    resources = container.get("resources") if isinstance(container, dict) else None
    return len(msgspec.json.encode(resources))


def _pod(template: Json) -> Pod | None:
    metadata = template.get("metadata") or {}
    try:
        return decode_object(Pod, msgspec.json.encode({"metadata": metadata, "spec": template["spec"]}))
    except (UnreadableObject, msgspec.DecodeError):
        return None
