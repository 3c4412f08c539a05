"""The amount of a resource that a pod requests in total, as kube-scheduler and kubelet count it.

Source: k8s.io/component-helpers/resource, PodRequests.
"""

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from proto.kubernetes.objects import Container, Pod, Resources
from proto.quantity import LARGEST_QUANTITY, QuantityError, parse_quantity, readable_quantity


def requested(pod: Pod, resource: str) -> int:
    """Returns the most that it requests at one time: a sidecar counts together with all that starts after it. 0 once
    the pod has ended.

    An unreadable amount counts as 0; for an extended resource the API server accepts none.
    """
    if pod.has_ended:
        return 0
    running = most = 0
    for container in pod.spec.init_containers:
        amount = _amount(container, resource)
        if container.is_sidecar:
            running += amount
            amount = 0
        most = max(most, running + amount)
    for container in pod.spec.containers:
        running += _amount(container, resource)
    return max(most, running)


def requested_resources(pod: Pod) -> frozenset[str]:
    """Returns the names of all resources that it requests."""
    return frozenset(
        name
        for container in pod.all_containers
        for names in (container.resources.limits, container.resources.requests)
        for name in names
    )


def _amount(container: Container, resource: str) -> int:
    """Returns its request; a limit alone is a request too."""
    requests, limits = container.resources.requests, container.resources.limits
    amount = requests.get(resource, limits.get(resource))
    return 0 if amount is None else readable_quantity(amount)


def exclusive_cpus(pod: Pod) -> tuple[int, ...]:
    """Returns for each container the CPUs that kubelet's static CPU manager gives to it alone; empty without any.

    They are whole CPUs of pods of class Guaranteed: each container's limits of CPU and memory are its requests. A pod
    with requests of its own beside those of its containers gets none.
    Source: pkg/kubelet/cm/cpumanager/policy_static.go of Kubernetes.
    """
    if pod.spec.resources is not None:
        return ()
    found = []
    for container in pod.all_containers:
        limits = _scaled(container.resources.limits.get("cpu", 0), 1000, 1)
        requests, memory = container.resources.requests, container.resources.limits.get("memory", 0)
        if not limits or not _scaled(memory, 1, 1):
            return ()
        if "cpu" in requests and _scaled(requests["cpu"], 1000, 1) != limits:
            return ()
        if "memory" in requests and _scaled(requests["memory"], 1, 1) != _scaled(memory, 1, 1):
            return ()
        found.append(0 if limits % 1000 else limits // 1000)
    return tuple(found) if any(found) else ()


class HostAmount(NamedTuple):
    """CPU in milli-cores and memory in MiB of a node, or of what pods request."""

    cpu_milli: int = 0
    memory_mib: int = 0

    def plus(self, other: "HostAmount") -> "HostAmount":
        return HostAmount(self.cpu_milli + other.cpu_milli, self.memory_mib + other.memory_mib)

    def minus(self, other: "HostAmount") -> "HostAmount":
        return HostAmount(self.cpu_milli - other.cpu_milli, self.memory_mib - other.memory_mib)

    def most(self, other: "HostAmount") -> "HostAmount":
        """Returns the larger of each."""
        return HostAmount(max(self.cpu_milli, other.cpu_milli), max(self.memory_mib, other.memory_mib))


NO_HOST = HostAmount()


def host_requested(pod: Pod) -> HostAmount:
    """Returns CPU and memory that it requests at one time, as `requested` counts; nothing once the pod ended.

    The request of the pod as a whole counts in place of its containers' sum. A pod's overhead is not counted.
    """
    if pod.has_ended:
        return NO_HOST
    running = most = NO_HOST
    for container in pod.spec.init_containers:
        amount = _host_amount(container.resources)
        if container.is_sidecar:
            running = running.plus(amount)
            amount = NO_HOST
        most = most.most(running.plus(amount))
    for container in pod.spec.containers:
        running = running.plus(_host_amount(container.resources))
    most = most.most(running)
    whole = pod.spec.resources
    if whole is None:
        return most
    of_pod = _host_amount(whole)
    return HostAmount(of_pod.cpu_milli or most.cpu_milli, of_pod.memory_mib or most.memory_mib)


def host_amount(amounts: Mapping[str, str | int | float]) -> HostAmount:
    """Reads CPU and memory from quantities by resource, as a Node's `allocatable` lists them; 0 if one is missing or
    unreadable.
    """
    return HostAmount(_scaled(amounts.get("cpu", 0), 1000, 1), _scaled(amounts.get("memory", 0), 1, 1 << 20))


def _host_amount(resources: Resources) -> HostAmount:
    requests, limits = resources.requests, resources.limits
    cpu, memory = requests.get("cpu", limits.get("cpu", 0)), requests.get("memory", limits.get("memory", 0))
    return HostAmount(_scaled(cpu, 1000, 1), _scaled(memory, 1, 1 << 20))


# Pods are made from few templates: nearly all of these texts have been read before.
@lru_cache(maxsize=4096)
def _scaled(text: str | int | float, times: int, over: int) -> int:
    """Returns the quotient, rounded up. The API server keeps no larger quantity, and accepts none below 0."""
    try:
        return ceil(max(min(parse_quantity(text), LARGEST_QUANTITY), Fraction()) * times / over)
    except QuantityError:
        return 0
