"""Decides which GPU tasks wait for others, and which are limited to their cores; HAMi-core leaves this to the node.

HAMi-core's tasks report in their region that they compute. They wait while `recent_kernel` is negative, and keep to
their cores while `utilization_switch` is 1. Source: cmd/vGPUmonitor/feedback.go of Project-HAMi/HAMi v2.10, with three
differences. Priorities and GPUs come from the pod, not from the tenant's file. A container also computes if its region
has a launch within the last seconds: since March 2026 HAMi-core sets `recent_kernel` only where it limits cores, so a
container without that limit would seem idle. And limits of cores always hold, unless they are configured for contention
only.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from deviceplugin.settings import Feedback
from deviceplugin.usage.shared_region import Switches
from proto.devices import DeviceUUID

DEFAULT_PRIORITY = 1
"""HAMi-core's own, of tasks without one."""
_COMPUTES_SECONDS = 10

Who = tuple[str, str]
"""Pod UID and container name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTasks:
    """The GPU tasks of one container. Containers with a lower priority number go first."""

    gpus: frozenset[DeviceUUID]
    priority: int = DEFAULT_PRIORITY


def of_interest(tasks: Mapping[Who, GpuTasks], waiting: Collection[Who], feedback: Feedback) -> frozenset[Who]:
    """Returns the pods whose regions have to be read: mostly none, as all tasks of a GPU have the same priority."""
    if feedback is Feedback.CONTENTION:
        return frozenset(tasks)
    priorities: dict[DeviceUUID, set[int]] = {}
    for each in tasks.values():
        for gpu in each.gpus:
            priorities.setdefault(gpu, set()).add(each.priority)
    mixed = {gpu for gpu, found in priorities.items() if len(found) > 1}
    return frozenset(who for who, each in tasks.items() if who in waiting or not mixed.isdisjoint(each.gpus))


def switched(
    tasks: Mapping[Who, GpuTasks], seen: Mapping[Who, Switches], feedback: Feedback, now: float
) -> Mapping[Who, Switches]:
    """Returns the switches for the regions that were seen. `now` is Unix time in seconds."""
    computing = Counter(
        (gpu, tasks[who].priority)
        for who, switches in seen.items()
        if _computes(switches, now)
        for gpu in tasks[who].gpus
    )
    first: dict[DeviceUUID, int] = {}
    for gpu, priority in computing:
        first[gpu] = min(priority, first.get(gpu, priority))
    return {who: _switched(tasks[who], switches, computing, first, feedback) for who, switches in seen.items()}


def released(switches: Switches) -> Switches:
    """Returns the values with which HAMi-core starts, because no daemon will change them."""
    return replace(switches, recent_kernel=max(switches.recent_kernel, 0), utilization_switch=1)


def _switched(
    tasks: GpuTasks,
    switches: Switches,
    computing: Mapping[tuple[DeviceUUID, int], int],
    first: Mapping[DeviceUUID, int],
    feedback: Feedback,
) -> Switches:
    waits = any(first.get(gpu, tasks.priority) < tasks.priority for gpu in tasks.gpus)
    beside = any(computing[gpu, tasks.priority] > 1 for gpu in tasks.gpus)
    limited = waits or beside or feedback is not Feedback.CONTENTION
    recent = -1 if waits else max(switches.recent_kernel - 1, 0)
    return replace(switches, recent_kernel=recent, utilization_switch=int(limited))


def _computes(switches: Switches, now: float) -> bool:
    """Returns a launch within two rounds; who waits does not."""
    last = switches.last_kernel_unix_seconds
    lately = last is not None and 0 <= now - last < _COMPUTES_SECONDS
    return switches.recent_kernel > 1 or (switches.recent_kernel >= 0 and lately)
