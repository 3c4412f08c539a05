"""Finds environment variables by which a container would see or use more GPUs than it was given.

Source: the variables that HAMi-core's library and NVIDIA's container toolkit read.
"""

from collections.abc import Iterator
from itertools import islice

from proto.environment import (
    CORE_LIMIT,
    CORE_POLICY,
    DISABLE_CONTROL,
    MEMORY_LIMIT,
    NONE_VISIBLE,
    REDIRECT,
    SHARED_CACHE,
    VISIBLE_DEVICES,
)
from proto.kubernetes.objects import EnvVar, Pod
from scheduler_ext.admission.containers import gets_gpus
from scheduler_ext.admission.settings import AdmissionSettings
from scheduler_ext.requests import shortened

LIMITS = (DISABLE_CONTROL, SHARED_CACHE, REDIRECT, "LD_PRELOAD")
LIMIT_PREFIXES = (MEMORY_LIMIT, CORE_LIMIT)
MOST_NAMED = 10


def bypasses(pod: Pod, settings: AdmissionSettings) -> tuple[str, ...]:
    """One sentence for each such variable, up to a readable number of them."""
    on_gpus = any(gets_gpus(container, settings) for container in pod.all_containers)
    found = (
        f"container {shortened(container.name)}: env {shortened(variable.name)}: {problem}"
        for container in pod.all_containers
        for variable in container.env
        for problem in _problems(variable, settings, on_gpus=on_gpus)
    )
    return tuple(islice(found, MOST_NAMED))


def _problems(variable: EnvVar, settings: AdmissionSettings, *, on_gpus: bool) -> Iterator[str]:
    if variable.name == VISIBLE_DEVICES:
        if variable.value not in NONE_VISIBLE or variable.value_from:
            yield "chooses GPUs past the scheduler; remove it and ask for GPUs by resource"
    elif on_gpus and _lifts_a_limit(variable, settings):
        yield "can lift the limits of a shared GPU; remove it"


def _lifts_a_limit(variable: EnvVar, settings: AdmissionSettings) -> bool:
    if variable.name == CORE_POLICY:
        # We wrote it ourselves: the webhook sees the pod a second time.
        return variable.value != settings.core_policy.value
    return variable.name in LIMITS or variable.name.startswith(LIMIT_PREFIXES)
