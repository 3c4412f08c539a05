"""When two nodes are in the same state, so that what is found out about one holds for the other."""

from dataclasses import fields
from operator import attrgetter
from typing import NamedTuple

from proto.devices import MIG_MODE, Device
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import NodeUsage

State = tuple[object, ...]
"""Hashable; equal for nodes that differ in nothing but their name and the UUIDs of their GPUs."""

MOST_KINDS = 10_000

_all_but_uuid = attrgetter(*(field.name for field in fields(Device) if field.name != "uuid"))


class Kind(NamedTuple):
    """Equal numbers mean equal GPUs in equal order, equally linked, cordoned and handed out.

    `mig`: one of them is in MIG mode. `mutual`: each pair is linked as well from either side.
    """

    number: int
    mig: bool
    mutual: bool


class Kinds:
    """Numbers the kinds of nodes there are."""

    def __init__(self) -> None:
        self._known: dict[object, Kind] = {}
        self._number = 0

    def kind(self, node: RegisteredNode) -> Kind:
        uuids = [device.uuid for device in node.devices]
        rows = [node.pair_scores.get(uuid, {}) for uuid in uuids]
        links = tuple([tuple(map(row.get, uuids)) for row in rows])
        cordons = tuple([uuid in node.cordoned for uuid in uuids])
        look = (tuple(map(_all_but_uuid, node.devices)), links, cordons, node.slots)
        if len(self._known) >= MOST_KINDS:
            # Numbers are never used again, so this only costs finding the kinds anew.
            self._known.clear()
        self._number += 1
        mig, mutual = any(each.mode == MIG_MODE for each in node.devices), links == tuple(zip(*links, strict=True))
        return self._known.setdefault(look, Kind(self._number, mig, mutual))


def state_of(usage: NodeUsage, kind: Kind) -> State:
    """`kind` is the node's."""
    numbers = [number for gpu in usage.gpus for number in (gpu.slots, gpu.memory_mib, gpu.cores)]
    instances = [(position, gpu.placements) for position, gpu in enumerate(usage.gpus) if gpu.placements]
    return (kind.number, *numbers, *instances)
