"""Two A100s of one node, and pods bound to it."""

from proto.annotations.keys import BIND_PHASE, DEVICES_ALLOCATED, DEVICES_TO_ALLOCATE, POD_NODE
from proto.annotations.pod_devices import encode_pod_devices
from proto.devices import Device, DeviceShare, DeviceUUID, PodShares
from proto.kubernetes.objects import Container, Pod
from tests.builders import pod

NODE = "node-1"
A = DeviceUUID("GPU-aaaaaaaa-0000-0000-0000-000000000000")
B = DeviceUUID("GPU-bbbbbbbb-0000-0000-0000-000000000000")


def a100(uuid: DeviceUUID, index: int, *, healthy: bool = True, replicas: int = 3) -> Device:
    return Device(
        uuid=uuid,
        index=index,
        replicas=replicas,
        memory_mib=40960,
        cores=100,
        type="NVIDIA A100-SXM4-40GB",
        numa=0,
        mode="hami-core",
        healthy=healthy,
    )


PAIR = (a100(A, 0), a100(B, 1))
INVENTORY = {device.uuid: device for device in PAIR}


def share(uuid: DeviceUUID, memory_mib: int = 3000, cores: int = 30) -> DeviceShare:
    return DeviceShare(uuid=uuid, memory_mib=memory_mib, cores=cores)


def bound_annotations(shares: PodShares) -> dict[str, str]:
    devices = encode_pod_devices(shares)
    return {
        POD_NODE: NODE,
        BIND_PHASE: "allocating",
        DEVICES_TO_ALLOCATE: devices,
        DEVICES_ALLOCATED: devices,
    }


def bound_pod(
    name: str, shares: PodShares, *, phase: str = "Pending", init: int = 0, changed: dict[str, str] | None = None
) -> Pod:
    """One container for each entry of `shares`, the first `init` of them init containers."""
    containers = [Container(name=f"c{position}", image="work") for position in range(len(shares))]
    annotations = bound_annotations(shares) | (changed or {})
    return pod(
        *containers[init:], inits=containers[:init], name=name, annotations=annotations, phase=phase, node_name=NODE
    )
