"""Environment variables by which a container would see more GPUs, or use more of them, than it was given.

Source: the variables that HAMi-core's library and NVIDIA's container toolkit read.
"""

from collections.abc import Iterator
from itertools import islice

from proto.kubernetes.objects import EnvVar, Pod
from scheduler_ext.admission.containers import CORE_POLICY_ENV, VISIBLE_DEVICES_ENV, gets_gpus
from scheduler_ext.admission.settings import AdmissionSettings
from scheduler_ext.requests import shortened

LIMITS = ("CUDA_DISABLE_CONTROL", "CUDA_DEVICE_MEMORY_SHARED_CACHE", "CUDA_REDIRECT", "LD_PRELOAD")
LIMIT_PREFIXES = ("CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT")
NO_DEVICES = ("", "none", "void")
"""Values of NVIDIA_VISIBLE_DEVICES that show no GPU."""
MOST_NAMED = 10


def bypasses(pod: Pod, settings: AdmissionSettings) -> tuple[str, ...]:
    """One sentence for each such variable, of as many as somebody would read."""
    on_gpus = any(gets_gpus(container, settings) for container in pod.all_containers)
    found = (
        f"container {shortened(container.name)}: env {shortened(variable.name)}: {problem}"
        for container in pod.all_containers
        for variable in container.env
        for problem in _problems(variable, settings, on_gpus=on_gpus)
    )
    return tuple(islice(found, MOST_NAMED))


def _problems(variable: EnvVar, settings: AdmissionSettings, *, on_gpus: bool) -> Iterator[str]:
    if variable.name == VISIBLE_DEVICES_ENV:
        if variable.value not in NO_DEVICES or variable.value_from:
            yield "chooses GPUs past the scheduler; remove it and ask for GPUs by resource"
    elif on_gpus and _lifts_a_limit(variable, settings):
        yield "can lift the limits of a shared GPU; remove it"


def _lifts_a_limit(variable: EnvVar, settings: AdmissionSettings) -> bool:
    if variable.name == CORE_POLICY_ENV:
        # Ours, when the pod is shown to the webhook a second time.
        return variable.value != settings.core_policy.value
    return variable.name in LIMITS or variable.name.startswith(LIMIT_PREFIXES)
