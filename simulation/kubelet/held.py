"""The devices that containers hold, as kubelet keeps them in its checkpoint."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from proto.kubelet import deviceplugin_v1beta1_pb2 as wire
from simulation.kubelet.checkpoint import (
    CHECKPOINT_NAME,
    NO_NUMA,
    CheckpointEntry,
    decode_checkpoint,
    encode_checkpoint,
)
from simulation.kubelet.device_ids import AdvertisedDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDevices:
    """The devices of one resource that one container holds."""

    pod_uid: str
    container: str
    resource: str
    ids: tuple[str, ...]
    response: wire.ContainerAllocateResponse


class HeldTable:
    """The table of a node, with its checkpoint in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._held: list[HeldDevices] = []

    def of(self, pod_uid: str) -> tuple[HeldDevices, ...]:
        """Returns what the pod's containers hold; of all pods for an empty UID."""
        return tuple(held for held in self._held if pod_uid in ("", held.pod_uid))

    def in_use(self, resource: str) -> set[str]:
        return {name for held in self._held if held.resource == resource for name in held.ids}

    def add(self, held: HeldDevices) -> None:
        self._held.append(held)

    def drop(self, pod_uid: str) -> None:
        self._held = [held for held in self._held if held.pod_uid != pod_uid]

    def read(self) -> Collection[str]:
        """Loads what containers held when the checkpoint was written, and returns the resources that were registered.
        The plugins report NUMA nodes again. Raises CheckpointUnreadable.
        """
        file = self._directory / CHECKPOINT_NAME
        if not file.exists():
            return ()
        entries, registered = decode_checkpoint(file.read_text())
        self._held = [
            HeldDevices(
                pod_uid=entry.pod_uid,
                container=entry.container,
                resource=entry.resource,
                ids=tuple(dict.fromkeys(name for names in entry.ids_by_numa.values() for name in names)),
                response=wire.ContainerAllocateResponse.FromString(entry.response),
            )
            for entry in entries
        ]
        return registered.keys()

    def write(self, known: Collection[str], devices: Mapping[str, Mapping[str, AdvertisedDevice]]) -> None:
        """Writes the checkpoint, whole. `known` are the resources that were ever registered."""
        entries = [
            CheckpointEntry(
                pod_uid=held.pod_uid,
                container=held.container,
                resource=held.resource,
                ids_by_numa=ids_by_numa(held, devices.get(held.resource, {})),
                response=held.response.SerializeToString(),
            )
            for held in self._held
        ]
        ids = dict.fromkeys(known, ()) | {name: tuple(of) for name, of in devices.items()}
        temporary = self._directory / f".{CHECKPOINT_NAME}"
        temporary.write_text(encode_checkpoint(entries, ids))
        temporary.replace(self._directory / CHECKPOINT_NAME)


def ids_by_numa(held: HeldDevices, devices: Mapping[str, AdvertisedDevice]) -> dict[int, tuple[str, ...]]:
    """Returns the ids of one container grouped as kubelet groups them in its checkpoint."""
    groups: dict[int, list[str]] = {}
    for name in held.ids:
        for numa in (devices[name].numa if name in devices else ()) or (NO_NUMA,):
            groups.setdefault(numa, []).append(name)
    return {numa: tuple(names) for numa, names in groups.items()}
