"""The one write that binds a pod: node and decision together."""

from datetime import datetime

from proto.annotations.bind_phase import BindPhase, encode_time
from proto.annotations.keys import (
    BIND_PHASE,
    BIND_TIME,
    DEVICES_ALLOCATED,
    DEVICES_TO_ALLOCATE,
    MIG_ALLOCATIONS,
    POD_NODE,
    POD_TIME,
)
from proto.annotations.mig_allocations import encode_mig_allocations, mig_allocations
from proto.annotations.pod_devices import encode_pod_devices
from proto.devices import PodShares
from proto.kubernetes.objects import Binding, ObjectMeta, ObjectReference
from scheduler_ext.cluster.pod_index import PodName

LONGEST_LABEL_VALUE = 63


def binding_of(
    pod: PodName, uid: str, node: str, shares: PodShares | None, now: datetime, *, phase: BindPhase
) -> Binding:
    """Returns a Binding that carries the decision; `shares` is None for a pod that requests no GPU.

    `phase` is `allocating` if the node's plugin reports the result, and `success` if not: with slots the pod has its
    devices as soon as it is bound. The uid makes the API server refuse a later pod of the same name.
    """
    metadata = ObjectMeta(name=pod.name, namespace=pod.namespace, uid=uid)
    if shares is not None:
        metadata.annotations = _annotations(node, shares, now, phase)
        # Only HAMi's monitor reads the label. A longer node name cannot be a label value.
        metadata.labels = {POD_NODE: node} if len(node) <= LONGEST_LABEL_VALUE else {}
    target = ObjectReference(api_version="v1", kind="Node", name=node)
    return Binding(metadata=metadata, target=target)


def _annotations(node: str, shares: PodShares, now: datetime, phase: BindPhase) -> dict[str, str]:
    devices, instances = encode_pod_devices(shares), mig_allocations(shares)
    return {
        POD_NODE: node,
        POD_TIME: encode_time(now),
        DEVICES_TO_ALLOCATE: devices,
        DEVICES_ALLOCATED: devices,
        BIND_PHASE: phase.value,
        BIND_TIME: encode_time(now),
        **({MIG_ALLOCATIONS: encode_mig_allocations(instances)} if instances else {}),
    }
