"""Finds environment variables by which a container would see or use more GPUs than it was given."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from proto.environment import chosen_by, lifted_by, preloaded_by
from proto.kubernetes.objects import Container, Pod
from scheduler_ext.admission.containers import gets_gpus
from scheduler_ext.admission.settings import AdmissionSettings
from scheduler_ext.requests import asks_for_instances, choice_problem, shortened

LIFTS_LIMITS = "can lift the limits of a shared GPU; remove it"
MOST_NAMED = 10


def bypasses(pod: Pod, settings: AdmissionSettings, *, completed: bool) -> tuple[str, ...]:
    """Returns a sentence for each such variable, up to a readable number. `completed`: this webhook completes the
    pod's containers.
    """
    on_gpus = any(gets_gpus(container, settings) for container in pod.all_containers)
    found = (
        f"container {shortened(container.name)}: env {shortened(name)}: {problem}"
        for container in pod.all_containers
        for name, problem in _problems(container, settings, on_gpus=on_gpus, completed=completed)
    )
    return tuple(islice(found, MOST_NAMED))


def _problems(
    container: Container, settings: AdmissionSettings, *, on_gpus: bool, completed: bool
) -> Iterator[tuple[str, str]]:
    for name in chosen_by(container.env, answered=_is_answered(container, settings, completed=completed)):
        yield name, choice_problem(name)
    if on_gpus:
        for name in (*lifted_by(container.env, settings.requests.core_policy), *preloaded_by(container.env)):
            yield name, LIFTS_LIMITS


def _is_answered(container: Container, settings: AdmissionSettings, *, completed: bool) -> bool:
    """Returns whether the daemon or this webhook sets which GPUs the container sees."""
    if asks_for_instances(container):
        return True
    if completed:
        return settings.overwrite_env or gets_gpus(container, settings)
    return gets_gpus(container, replace(settings, default_gpus=0))
