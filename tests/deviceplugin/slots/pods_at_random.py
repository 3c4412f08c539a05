"""The GPUs of the node at random, its pods in the API server, and what kubelet remembers of them."""

from dataclasses import dataclass, field

import msgspec

from deviceplugin.changes import Changes
from proto.devices import DeviceUUID, PodShares
from proto.kubernetes.objects import Pod
from simulation.kubelet.device_ids import AdvertisedDevice
from tests.deviceplugin.gpus import a100

GPU = "nvidia.com/gpu"
SLOTS = 4
DEVICES = tuple(a100(DeviceUUID(f"GPU-{letter * 8}"), index, replicas=SLOTS) for index, letter in enumerate("abcd"))
BY_UUID = {device.uuid: device for device in DEVICES}
ADVERTISED = {f"{device.uuid}-{n}": AdvertisedDevice(healthy=True) for device in DEVICES for n in range(SLOTS)}
_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Entry:
    """What kubelet remembers of one container."""

    uid: str
    container: str
    ids: tuple[str, ...]
    slot: str


@dataclass(slots=True)
class Bound:
    """A pod in the API server, and what was decided for it."""

    pod: Pod
    shares: PodShares

    @property
    def ended(self) -> bool:
        return self.pod.status.phase in _ENDED


@dataclass(slots=True)
class Api:
    """`log` is what a watch brings: every state of every pod, None when it is gone."""

    pods: dict[str, Bound] = field(default_factory=dict)
    log: list[tuple[str, Pod | None]] = field(default_factory=list)
    changes: Changes = field(default_factory=Changes)

    def put(self, uid: str, bound: Bound | None) -> None:
        if bound is None:
            self.pods.pop(uid, None)
        else:
            self.pods[uid] = bound
        self.log.append((uid, None if bound is None else bound.pod))
        self.changes.announce()

    def change(self, uid: str, *, phase: str = "", deleted: bool = False) -> None:
        bound = self.pods[uid]
        pod = msgspec.structs.replace(
            bound.pod,
            status=msgspec.structs.replace(bound.pod.status, phase=phase or bound.pod.status.phase),
            metadata=msgspec.structs.replace(
                bound.pod.metadata,
                deletion_timestamp="2030-01-01T00:00:00Z" if deleted else bound.pod.metadata.deletion_timestamp,
            ),
        )
        self.put(uid, Bound(pod, bound.shares))
