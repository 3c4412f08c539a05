"""Numbers the states of nodes and GPUs: a result for one holds for every other with the same number."""

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import NamedTuple

from proto.devices import MIG_MODE, Device
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import NodeUsage
from scheduler_ext.decide.score import node_score

MOST_NUMBERED = 20_000
LEAST_NUMBERED = 1_000
NUMBERED_A_NODE = 32
"""Numbers per node in a larger cluster. As pods come and go, nodes return to states they had before."""

_ALONE = {"uuid", "index", "numa"}
_by_itself = attrgetter(*(field.name for field in fields(Device) if field.name not in _ALONE))
"""What a GPU is, apart from its name and its place in the machine."""


class Kind(NamedTuple):
    """How a node is built. Equal `layout` numbers mean the same number of GPUs with the same links and places.

    `models`: equal numbers mean GPUs of the same kind, cordoned or not, on nodes that limit containers alike. `mig`: at
    least one GPU is in MIG mode. `mutual`: each pair has the same link in both directions. `slots`: the node's own
    value.
    """

    layout: int
    models: tuple[int, ...]
    mig: bool
    mutual: bool
    slots: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A node's state now. Equal numbers in `gpus` mean GPUs of the same kind in the same use. Equal `state` means nodes
    that differ only in their name and the UUIDs of their GPUs. `total` is the node's score.
    """

    usage: NodeUsage
    kind: Kind
    gpus: tuple[int, ...]
    state: int
    total: float


class Numbers:
    """Gives equal values equal numbers. After it forgets, a value gets a new number: no number is used twice."""

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
        """Forget all numbers if there are more than `most`."""
        if len(self._known) > most:
            self._known.clear()


class Standings:
    """Makes standings, and numbers what they have in common."""

    def __init__(self) -> None:
        self._layouts = Numbers()
        self._models = Numbers()
        self._gpus = Numbers()
        self._states = Numbers()

    def forget_beyond(self, nodes: int) -> None:
        """Keep the memory in proportion to the number of nodes, however many pods come and go."""
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
        """The node's standing; `kind` is the node's."""
        used = zip(kind.models, usage.gpus, strict=True)
        number = self._gpus.number
        gpus = tuple([number((model, gpu.slots, gpu.memory_mib, gpu.cores)) for model, gpu in used])
        occupied = [gpu.placements for gpu in usage.gpus]
        state = self._states.number((kind.layout, kind.slots, gpus, tuple(occupied) if any(occupied) else ()))
        return Standing(usage=usage, kind=kind, gpus=gpus, state=state, total=node_score(usage.gpus).total)


def _model(device: Device, node: RegisteredNode) -> object:
    return (*_by_itself(device), device.is_mig, device.uuid in node.cordoned, node.limits)
