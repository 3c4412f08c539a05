"""A quick bound: whether the GPUs of a node could have room for a pod without some of its pods.

It counts GPUs with enough memory, cores and replicas, and knows no links, types, policies or quotas: it passes all sets
of pods that the decision passes, and more.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from proto.devices import MIG_MODE, DeviceUUID
from scheduler_ext.cluster.accounting import NOTHING, Footprint
from scheduler_ext.cluster.usage import NodeAlone
from scheduler_ext.requests import ContainerNeed, GpuRequest


@dataclass(frozen=True, slots=True)
class _GpuRoom:
    """The free part of one GPU, and the part that a container would take."""

    free: Footprint
    least: Footprint

    def suffices(self, freed: Footprint) -> bool:
        free, least = self.free, self.least
        return (
            free.memory_mib + freed.memory_mib >= least.memory_mib
            and free.cores + freed.cores >= least.cores
            and free.replicas + freed.replicas >= least.replicas
        )


@dataclass(frozen=True, slots=True)
class RoomBound:
    """`held` is what each pod of the node takes, by its UID. No bound without `gpus`."""

    count: int = 0
    gpus: Mapping[DeviceUUID, _GpuRoom] = field(default_factory=dict)
    held: Mapping[str, Mapping[DeviceUUID, Footprint]] = field(default_factory=dict)
    enough: int = 0
    """GPUs that suffice without any pod gone."""

    def allows(self, gone: Collection[str]) -> bool:
        if self.enough >= self.count:
            return True
        freed: dict[DeviceUUID, Footprint] = {}
        for uid in gone:
            for uuid, part in self.held.get(uid, {}).items():
                freed[uuid] = freed[uuid] + part if uuid in freed else part
        more = sum(
            room.suffices(part) and not room.suffices(NOTHING)
            for uuid, part in freed.items()
            if (room := self.gpus.get(uuid)) is not None
        )
        return self.enough + more >= self.count


ANY = RoomBound()


def bound_of(alone: NodeAlone | None, request: GpuRequest) -> RoomBound:
    """Returns the bound by the container that wants most. Where parts of GPUs are not counted by amounts, there is
    none.
    """
    if alone is None or alone.kept or any(device.mode == MIG_MODE for device in alone.node.devices):
        return ANY
    held = {uid: record.on(alone.node.name) for uid, record in alone.held.items()}
    if any(part.is_special for part in held.values()):
        return ANY
    need = max((each for each in request.needs if each is not None), key=_wanted, default=None)
    if need is None:
        return ANY
    gpus = {}
    for device in alone.node.devices:
        whole = Footprint(device.replicas, device.memory_mib, device.cores)
        least = Footprint(1, need.reserved_mib(device.memory_mib), need.reserved_cores)
        gpus[device.uuid] = _GpuRoom(whole - alone.used.get(device.uuid, NOTHING), least)
    return RoomBound(
        count=need.count,
        gpus=gpus,
        held={uid: part.footprints for uid, part in held.items()},
        enough=sum(room.suffices(NOTHING) for room in gpus.values()),
    )


def _wanted(need: ContainerNeed) -> tuple[int, int, int]:
    return need.count, need.memory_percentage or 0, need.memory_mib
