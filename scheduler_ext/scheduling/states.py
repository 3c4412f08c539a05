"""What two nodes, or two GPUs, must have in common so that what is found out about one holds for the other."""

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import NamedTuple

from proto.devices import MIG_MODE, Device
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import NodeUsage
from scheduler_ext.scheduling.score import node_score

MOST_NUMBERED = 20_000
LEAST_NUMBERED = 1_000
NUMBERED_A_NODE = 32
"""More in a larger cluster: what a node was before it is again, as pods come and go."""

_ALONE = {"uuid", "index", "numa"}
_by_itself = attrgetter(*(field.name for field in fields(Device) if field.name not in _ALONE))
"""What a GPU is, wherever it is built in and whatever its name."""


class Kind(NamedTuple):
    """How a node is built. Equal numbers of `layout` mean equally many GPUs, equally linked and equally laid out.

    `models`: equal numbers mean GPUs that are alike, cordoned or not, on nodes that limit containers alike. `mig`: one
    of them is in MIG mode. `mutual`: each pair is linked as well from either side. `slots`: as of the node.
    """

    layout: int
    models: tuple[int, ...]
    mig: bool
    mutual: bool
    slots: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A node as it is now. Of `gpus` equal numbers mean GPUs that are alike and in the same use, of `state` nodes that
    differ in nothing but their name and the UUIDs of their GPUs; `total` is the node's score.
    """

    usage: NodeUsage
    kind: Kind
    gpus: tuple[int, ...]
    state: int
    total: float


class Numbers:
    """Equal values have equal numbers, until all are forgotten: no number is used again, so equal ones may differ."""

    def __init__(self) -> None:
        self._known: dict[object, int] = {}
        self._last = 0

    def number(self, value: object) -> int:
        known = self._known.get(value)
        if known is None:
            self._last += 1
            known = self._known[value] = self._last
        return known

    def forget_beyond(self, most: int) -> None:
        """All, if there are more than so many."""
        if len(self._known) > most:
            self._known.clear()


class Standings:
    """Makes them, and numbers what they have in common."""

    def __init__(self) -> None:
        self._layouts = Numbers()
        self._models = Numbers()
        self._gpus = Numbers()
        self._states = Numbers()

    def forget_beyond(self, nodes: int) -> None:
        """What is remembered of a cluster of so many nodes stays in proportion to it, however many pods come and go."""
        most = min(LEAST_NUMBERED + NUMBERED_A_NODE * nodes, MOST_NUMBERED)
        for numbers in (self._layouts, self._models, self._gpus, self._states):
            numbers.forget_beyond(most)

    def kind(self, node: RegisteredNode) -> Kind:
        devices = node.devices
        uuids = [device.uuid for device in devices]
        rows = [node.pair_scores.get(uuid, {}) for uuid in uuids]
        links = tuple([tuple(map(row.get, uuids)) for row in rows])
        places = tuple([(device.index, device.numa) for device in devices])
        return Kind(
            layout=self._layouts.number((links, places)),
            models=tuple([self._models.number(_model(each, node)) for each in devices]),
            mig=any(each.mode == MIG_MODE for each in devices),
            mutual=links == tuple(zip(*links, strict=True)),
            slots=node.slots,
        )

    def standing(self, usage: NodeUsage, kind: Kind) -> Standing:
        """`kind` is the node's."""
        used = zip(kind.models, usage.gpus, strict=True)
        number = self._gpus.number
        gpus = tuple([number((model, gpu.slots, gpu.memory_mib, gpu.cores)) for model, gpu in used])
        occupied = [gpu.placements for gpu in usage.gpus]
        state = self._states.number((kind.layout, kind.slots, gpus, tuple(occupied) if any(occupied) else ()))
        return Standing(usage=usage, kind=kind, gpus=gpus, state=state, total=node_score(usage.gpus).total)


def _model(device: Device, node: RegisteredNode) -> object:
    return (*_by_itself(device), device.is_mig, device.uuid in node.cordoned, node.limits)
