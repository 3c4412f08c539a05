"""Kubelet's check of a pod that it has given its devices: the sums of requests against the Node's allocatable.

Source: pkg/kubelet/lifecycle/predicate.go of kubernetes/kubernetes v1.37.1. A resource that the Node does not have is
overlooked, as from 1.31 on.
"""

from collections.abc import Collection, Iterable

from proto.kubernetes.objects import Node, Pod
from proto.kubernetes.requests import requested
from proto.quantity import integer_quantity
from simulation.kubelet.device_ids import AdmissionRefused


def check_totals(pod: Pod, others: Iterable[Pod], node: Node, devices: Collection[str]) -> None:
    """Checks the totals of extended resources that are no `devices`. Raises AdmissionRefused."""
    running = tuple(others)
    for name, value in node.status.allocatable.items():
        asked = requested(pod, name) if "/" in name and name not in devices else 0
        used, capacity = sum(requested(each, name) for each in running), integer_quantity(value) if asked else 0
        if asked and used + asked > capacity:
            message = (
                f"Node didn't have enough resource: {name}, requested: {asked}, used: {used}, capacity: {capacity}"
            )
            raise AdmissionRefused(message, reason=f"OutOf{name}")
