"""Chooses the advertised ids that kubelet gives to a container.

Source: kubelet's pkg/kubelet/cm/devicemanager/manager.go, devicesToAllocate.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from proto.kubernetes.objects import Container, Node, Pod
from proto.kubernetes.requests import requested
from proto.quantity import integer_quantity


class AdmissionRefused(Exception):
    """Kubelet refuses the pod; the text becomes `status.message`, `reason` its `status.reason`."""

    def __init__(self, message: str, *, reason: str = "UnexpectedAdmissionError") -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class AdvertisedDevice:
    """One id of a plugin's ListAndWatch answer."""

    healthy: bool
    numa: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IdChoice:
    """The choice that kubelet has for one container: `kept` is already decided, `size` is the number in all."""

    available: tuple[str, ...]
    kept: tuple[str, ...]
    size: int

    @property
    def complete(self) -> bool:
        return len(self.kept) == self.size


def choices(
    resource: str,
    devices: Mapping[str, AdvertisedDevice],
    in_use: Collection[str],
    reusable: Collection[str],
    wanted: int,
) -> IdChoice:
    """Ids of the pod's finished init containers come first. Raises AdmissionRefused when too few are free."""
    kept = tuple(sorted(reusable)[:wanted])
    if len(kept) == wanted:
        return IdChoice(available=kept, kept=kept, size=wanted)
    free = tuple(sorted(name for name, device in devices.items() if device.healthy and name not in in_use))
    missing = wanted - len(kept)
    if len(free) < missing:
        raise AdmissionRefused(
            f"Allocate failed due to requested number of devices unavailable for {resource}. "
            f"Requested: {missing}, Available: {len(free)}, which is unexpected"
        )
    return IdChoice(available=tuple(sorted({*free, *kept})), kept=kept, size=wanted)


def settle(choice: IdChoice, preferred: Sequence[str]) -> tuple[str, ...]:
    """Returns the plugin's preference as far as it is available, then any other available id."""
    wished = [name for name in preferred if name in choice.available and name not in choice.kept]
    rest = [name for name in choice.available if name not in choice.kept and name not in wished]
    missing = choice.size - len(choice.kept)
    return choice.kept + tuple((wished + rest)[:missing])


def device_requests(container: Container, resources: Collection[str]) -> dict[str, int]:
    """Returns the container's limits of each plugin's resource, as kubelet reads extended resources."""
    counts = {name: integer_quantity(value) for name, value in container.resources.limits.items() if name in resources}
    return {name: count for name, count in counts.items() if count > 0}


def containers_in_order(pod: Pod) -> list[tuple[Container, bool]]:
    """Returns init containers first; True marks one whose ids the pod's later containers use again."""
    init = [(container, not container.is_sidecar) for container in pod.spec.init_containers]
    return init + [(container, False) for container in pod.spec.containers]


def check_totals(pod: Pod, others: Iterable[Pod], node: Node, devices: Collection[str]) -> None:
    """Checks the totals of extended resources that are no `devices`. Raises AdmissionRefused."""
    running = tuple(others)
    for name, value in node.status.allocatable.items():
        wanted = requested(pod, name) if "/" in name and name not in devices else 0
        used, capacity = sum(requested(each, name) for each in running), integer_quantity(value) if wanted else 0
        if wanted and used + wanted > capacity:
            message = (
                f"Node didn't have enough resource: {name}, requested: {wanted}, used: {used}, capacity: {capacity}"
            )
            raise AdmissionRefused(message, reason=f"OutOf{name}")
