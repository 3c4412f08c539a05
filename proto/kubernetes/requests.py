"""How much of a resource a pod asks for in all, as kube-scheduler and kubelet count it.

Source: k8s.io/component-helpers/resource, PodRequests.
"""

from proto.kubernetes.objects import Container, Pod
from proto.quantity import QuantityError, integer_quantity


def requested(pod: Pod, resource: str) -> int:
    """The most that it asks for at one time: a sidecar counts beside all that starts after it. 0 once the pod ended.

    An amount that cannot be read counts as 0; the API server accepts none for an extended resource.
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
    return max(most, running + sum(_amount(container, resource) for container in pod.spec.containers))


def requested_resources(pod: Pod) -> frozenset[str]:
    """The names of all that it asks for."""
    return frozenset(
        name
        for container in pod.all_containers
        for names in (container.resources.limits, container.resources.requests)
        for name in names
    )


def _amount(container: Container, resource: str) -> int:
    """By its request; a limit alone is a request too."""
    asked, limits = container.resources.requests, container.resources.limits
    try:
        return integer_quantity(asked.get(resource, limits.get(resource, 0)))
    except QuantityError:
        return 0
