"""Completes one container: its GPU count, cores, percentage of memory, environment variables, and sums.

Source: pkg/device/nvidia/device.go of Project-HAMi/HAMi v2.10, MutateAdmission.

Amounts of a container are of each GPU, so programs that add up pods are wrong by them: kubelet, quotas, autoscalers and
Kueue. Sums are what all GPUs of a container have together, because all of these programs know how containers add up.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice

import msgspec

from proto.admission import Json
from proto.annotations.keys import RESOURCE_CORES_SUM, RESOURCE_MEMORY_SUM, SUMS
from proto.decoding import shortened
from proto.environment import CORE_POLICY, TASK_PRIORITY, VISIBLE_DEVICES, VOID, chosen_by, lifted_by, preloaded_by
from proto.kubernetes.objects import Container, Pod
from proto.quantity import QuantityError, integer_quantity
from scheduler_ext.requests import (
    ContainerNeed,
    RequestError,
    RequestSettings,
    ResourceNames,
    asks_for_instances,
    choice_problem,
)
from scheduler_ext.settings import CorePolicy

WEBHOOK_PATH = "/webhook"
TEMPLATES_PATH = f"{WEBHOOK_PATH}/templates"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSettings:
    """The completion of pods. An empty text writes nothing."""

    requests: RequestSettings = field(default_factory=RequestSettings)
    force_overwrite_default_scheduler: bool = True
    """False means that a pod that names `default-scheduler` counts as another scheduler's. After defaulting
    every pod names it.
    """
    default_gpus: int = 1
    """GPUs for a container that requests only memory or cores; 0 adds none."""
    runtime_class_name: str = ""
    overwrite_env: bool = False
    """True if a container without GPUs is kept from seeing any."""
    gpu_sums: bool = False
    """True if containers get the sums of their GPUs' memory and cores as resources."""


EXCLUSIVE_CORES = 100

_Amount = str | int | float


class BadPercentage(ValueError):
    """A memory percentage is not valid. The message is one sentence."""


def complete(container: Json, read: Container, settings: AdmissionSettings) -> Container:
    """Completes `container` in place. Returns how it reads afterwards. `read` is how it reads before.

    Raises BadPercentage, or RequestError if a priority is not a number.
    """
    names = settings.requests.names
    check_percentage(read, names)
    if names.priority in read.resources.limits:
        _set_env(container, TASK_PRIORITY, str(_priority(read, names.priority)))
    if settings.requests.core_policy is not CorePolicy.DEFAULT:
        _set_env(container, CORE_POLICY, settings.requests.core_policy.value)
    for kind, changes in (
        ("limits", {**_defaults(read, settings), **_corrected(read.resources.limits, names)}),
        ("requests", _corrected(read.resources.requests, names)),
    ):
        if changes:
            read = _changed(container, read, kind, changes)
    if settings.overwrite_env and not gets_gpus(read, settings):
        _set_env(container, VISIBLE_DEVICES, VOID)
    return read


def gets_gpus(container: Container, settings: AdmissionSettings) -> bool:
    """Returns whether the container requests a number of GPUs other than 0, readable or not, or gets one by default."""
    count = _amount(container, settings.requests.names.count)
    if count is None:
        return _lacks_count(container, settings)
    try:
        return integer_quantity(count) != 0
    except QuantityError:
        return True


def check_percentage(container: Container, names: ResourceNames) -> None:
    """Checks the percentage of memory. Raises BadPercentage."""
    key = names.memory_percentage
    amount = _amount(container, key)
    try:
        if amount is None or 0 <= integer_quantity(amount) <= 100:
            return
    except QuantityError:
        pass
    raise BadPercentage(
        f"invalid {key} value {amount} in container {container.name}: must be an integer between 0 and 100"
    )


def _changed(container: Json, read: Container, kind: str, changes: Mapping[str, str | None]) -> Container:
    """Returns the container with these amounts in its limits or requests. None removes an amount."""

    def merged(amounts: Mapping[str, _Amount]) -> dict[str, _Amount]:
        return {name: amount for name, amount in {**amounts, **changes}.items() if amount is not None}

    resources = container["resources"]
    container["resources"] = {**resources, kind: merged(resources.get(kind) or {})}
    amounts = merged(getattr(read.resources, kind))
    return msgspec.structs.replace(read, resources=msgspec.structs.replace(read.resources, **{kind: amounts}))


def _corrected(amounts: Mapping[str, _Amount], names: ResourceNames) -> dict[str, str | None]:
    """Returns the amounts as decided. They are written to the pod because kubelet admits pods by them. An amount of
    memory wins over a percentage, and a GPU has 100 percent of cores.
    """
    corrected: dict[str, str | None] = {}
    if names.memory_percentage in amounts and _is_above(amounts, names.memory, 0):
        corrected[names.memory_percentage] = None
    if _is_above(amounts, names.cores, EXCLUSIVE_CORES):
        corrected[names.cores] = str(EXCLUSIVE_CORES)
    return corrected


def _is_above(amounts: Mapping[str, _Amount], name: str, least: int) -> bool:
    try:
        return integer_quantity(amounts.get(name, 0)) > least
    except QuantityError:
        return False


def _defaults(container: Container, settings: AdmissionSettings) -> dict[str, str]:
    """Returns the limits to add. A container that requests a whole GPU gets it exclusively."""
    names = settings.requests.names
    added: dict[str, str] = {}
    if _lacks_count(container, settings):
        added[names.count] = str(settings.default_gpus)
    if gets_gpus(container, settings) and _is_exclusive(container, names):
        added[names.cores] = str(EXCLUSIVE_CORES)
    return added


def _lacks_count(container: Container, settings: AdmissionSettings) -> bool:
    """Returns whether it requests a part of a GPU without a number of GPUs."""
    names, limits = settings.requests.names, container.resources.limits
    asks_for_a_part = any(part in limits for part in (names.cores, names.memory, names.memory_percentage))
    return asks_for_a_part and settings.default_gpus > 0 and _amount(container, names.count) is None


def _is_exclusive(container: Container, names: ResourceNames) -> bool:
    if _amount(container, names.cores) is not None:
        return False
    percentage = _amount(container, names.memory_percentage)
    if percentage is not None:
        return integer_quantity(percentage) == 100
    return _amount(container, names.memory) is None


def _amount(container: Container, key: str) -> _Amount | None:
    """Returns the limit, or else the request."""
    return container.resources.limits.get(key, container.resources.requests.get(key))


def _priority(container: Container, key: str) -> int:
    try:
        return integer_quantity(container.resources.limits[key])
    except QuantityError as error:
        raise RequestError(container.name, key, str(error)) from error


def _set_env(container: Json, name: str, value: str) -> None:
    """Sets the variable to this value. Of several entries the last one counts, so that one is changed."""
    entries = list(container.get("env") or [])
    places = [place for place, entry in enumerate(entries) if entry["name"] == name]
    if not places:
        entries.append({"name": name, "value": value})
    elif entries[places[-1]].get("value") != value:
        entries[places[-1]] = {"name": name, "value": value}
    container["env"] = entries


def add_sums(spec: Json, needs: Sequence[ContainerNeed | None], gpu_mib: int) -> None:
    """Writes the sums of each container into its resources, in place, and takes away any others. `needs` has one entry
    per container, `gpu_mib` is the memory of the smallest GPU that the pod may get.
    """
    for container, need in zip(_containers(spec), needs, strict=True):
        sums = {} if need is None else _sums(need, gpu_mib)
        resources = container.get("resources") or {}
        for kind in ("limits", "requests"):
            before = resources.get(kind) or {}
            after = {name: amount for name, amount in before.items() if name not in SUMS}
            # The API server takes limits for requests that are missing.
            if kind == "limits" or len(after) < len(before):
                after |= sums
            if after != before:
                resources = {**resources, kind: after}
                container["resources"] = resources


def _containers(spec: Json) -> Iterable[Json]:
    return chain(spec.get("initContainers") or (), spec.get("containers") or ())


def _sums(need: ContainerNeed, gpu_mib: int) -> dict[str, str]:
    sums = {
        RESOURCE_MEMORY_SUM: need.count * need.reserved_mib(gpu_mib),
        RESOURCE_CORES_SUM: need.count * need.reserved_cores,
    }
    return {name: str(amount) for name, amount in sums.items() if amount}


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
    for name in chosen_by(container.env, gpus_set=_has_gpus_set(container, settings, completed=completed)):
        yield name, choice_problem(name)
    if on_gpus:
        for name in (*lifted_by(container.env, settings.requests.core_policy), *preloaded_by(container.env)):
            yield name, LIFTS_LIMITS


def _has_gpus_set(container: Container, settings: AdmissionSettings, *, completed: bool) -> bool:
    """Returns whether the daemon or this webhook sets which GPUs the container sees."""
    if asks_for_instances(container):
        return True
    if completed:
        return settings.overwrite_env or gets_gpus(container, settings)
    return gets_gpus(container, replace(settings, default_gpus=0))
