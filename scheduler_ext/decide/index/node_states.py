"""Follows a ledger and numbers the states of its nodes: a result for one node holds for others in the same state."""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import chain, takewhile
from operator import attrgetter
from typing import NamedTuple

from proto.annotations.keys import NODE_HOSTNAME
from proto.devices import MIG_MODE, Device
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import NodeUsage, Quota
from scheduler_ext.decide.fgd import Fragmentation, Site
from scheduler_ext.decide.score import Preference, node_score, preference
from scheduler_ext.policies import NodePolicy
from scheduler_ext.requests import ContainerNeed
from scheduler_ext.workload import NO_WORKLOAD

FEW = 100
"""Up to this many changed nodes are inserted one by one; more of them are sorted in at once."""


class Order:
    """Preferences in ascending order, one for each node."""

    def __init__(self, preferences: Iterable[Preference] = ()) -> None:
        """Sorts the preferences. This costs little if they are nearly in order already."""
        self._sorted = sorted(preferences)
        self._of = {each[2]: each for each in self._sorted}

    def copy(self) -> "Order":
        """Returns a copy, which costs much less than sorting again."""
        made = Order()
        made._of, made._sorted = self._of.copy(), self._sorted.copy()
        return made

    def __len__(self) -> int:
        return len(self._sorted)

    def __iter__(self) -> Iterator[Preference]:
        return iter(self._sorted)

    def put(self, changes: Mapping[str, Preference | None]) -> None:
        """Inserts or moves nodes; None removes a node."""
        if len(changes) > FEW:
            self._put_many(changes)
            return
        for name, new in changes.items():
            old = self._of.pop(name, None)
            if new is not None:
                self._of[name] = new
            if old != new:
                self._move(old, new)

    def _put_many(self, changes: Mapping[str, Preference | None]) -> None:
        left = [old for name in changes if (old := self._of.pop(name, None)) is not None]
        if left:
            # Usually these come first, and the order behind them stays as it is.
            end = bisect_left(self._sorted, max(left)) + 1
            self._sorted[:end] = [each for each in self._sorted[:end] if each[2] not in changes]
        come = [new for new in changes.values() if new is not None]
        if come:
            self._of |= {new[2]: new for new in come}
            self._sorted += come
            # The first part is sorted, and often the second; `sort` makes use of that.
            self._sorted.sort()

    def _move(self, old: Preference | None, new: Preference | None) -> None:
        if old is not None:
            del self._sorted[bisect_left(self._sorted, old)]
        if new is not None:
            insort(self._sorted, new)


MOST_NUMBERED = 20_000
LEAST_NUMBERED = 1_000
NUMBERED_A_NODE = 32
"""Numbers per node in a larger cluster. As pods come and go, nodes return to states they had before."""

_ALONE = {"uuid", "index", "numa"}
_model_of = attrgetter(*(field.name for field in fields(Device) if field.name not in _ALONE))
"""The properties of a GPU, apart from its name and its place in the machine."""


class NodeModel(NamedTuple):
    """The parts of a node. Equal `layout` numbers mean the same number of GPUs with the same links and places.

    `gpus`: equal numbers mean GPUs of the same kind, cordoned or not, on nodes that limit containers alike. `mig`: at
    least one GPU is in MIG mode. `mutual`: each pair has the same link in both directions.
    """

    node: RegisteredNode
    layout: int
    gpus: tuple[int, ...]
    mig: bool
    mutual: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node now. Equal numbers in `gpus` mean GPUs of the same kind in the same use. An equal `number` means nodes
    that differ only in their name and the UUIDs of their GPUs.
    """

    usage: NodeUsage
    model: NodeModel
    gpus: tuple[int, ...]
    number: int
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChanges:
    """The results that must be forgotten: those for `nodes`, those for `hosts` with `fgd`, or all of them."""

    nodes: Collection[str] = ()
    hosts: Collection[str] = ()
    """Nodes with another amount of free CPU and memory."""
    workload: bool = False
    """True if other pods usually come than before. Only `fgd` reads hosts and workload."""
    larger_gpu: bool = False
    """True if a GPU came that is larger than all before: what a quota leaves was computed with the largest one."""


class NodeStates:
    """The states of a ledger's nodes as of the last `catch_up`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.by_name: dict[str, NodeState] = {}
        self.orders: Mapping[NodePolicy, Order] = {each: Order() for each in NodePolicy if each is not NodePolicy.FGD}
        """The order of all nodes, as if the pod fitted on all of them. With `fgd` it depends on the pod."""
        self.sparing: Mapping[NodePolicy, Order] = {}
        """The same for a pod of fewer GPUs than any node has, which spares whole nodes of cliques. Empty until there is
        a clique.
        """
        self.whole: dict[str, int] = {}
        """The number of GPUs of the nodes of cliques of which all GPUs are free."""
        self.together: set[str] = set()
        """The nodes that share a domain with others, such as a rack."""
        self.largest = LargestGpu()
        self.fragmentation = Fragmentation(NO_WORKLOAD)
        self.last_change = 0
        self._changes: dict[str, int] = {}
        """The number of each node's last change, in ascending order."""
        self._models: dict[str, NodeModel] = {}
        self._sites: dict[str, Site] = {}
        """The sites that were read since their last change, by node."""
        self._layout_numbers, self._gpu_models, self._gpu_uses, self._numbers = (_Numbers() for _ in range(4))

    def catch_up(self) -> NodeChanges | None:
        """Reads what changed in the ledger. Returns None if nothing did."""
        nodes, hosts, workload = (
            self._ledger.nodes.take_changed(),
            self._ledger.hosts.take_changed(),
            self._ledger.workload(),
        )
        if new_workload := workload is not self.fragmentation.workload:
            self.fragmentation = Fragmentation(workload)
            self._sites.clear()
        hosts = hosts if self._sites else set()
        if not (nodes or hosts or new_workload):
            return None
        for name in chain(hosts, nodes):
            self._sites.pop(name, None)
        largest_mib = self.largest.gpu_mib
        if nodes:
            self._refresh(nodes)
        return NodeChanges(
            nodes=nodes, hosts=hosts, workload=new_workload, larger_gpu=self.largest.gpu_mib > largest_mib
        )

    def changed_since(self, change: int) -> Iterator[str]:
        """Returns the nodes that were added or changed after the change with this number. `last_change` is the latest
        number.
        """
        return (name for name, number in takewhile(lambda item: item[1] > change, reversed(self._changes.items())))

    def site(self, name: str) -> Site:
        """Returns the facts of the node that count for `fgd`."""
        site = self._sites.get(name)
        if site is None:
            state = self.by_name[name]
            site = self.fragmentation.site(state.usage, self._ledger.hosts.left(name), state.number)
            self._sites[name] = site
        return site

    def _refresh(self, names: Collection[str]) -> None:
        self.last_change += 1
        most = min(LEAST_NUMBERED + NUMBERED_A_NODE * len(self.by_name), MOST_NUMBERED)
        for numbers in (self._layout_numbers, self._gpu_models, self._gpu_uses, self._numbers):
            numbers.forget_beyond(most)
        for name in names:
            self._changes.pop(name, None)
            usage = self._ledger.nodes.usages().get(name)
            self.whole.pop(name, None)
            self.together.discard(name)
            if usage is None:
                self.by_name.pop(name, None)
                self._models.pop(name, None)
            else:
                self._changes[name] = self.last_change
                self.by_name[name] = self._state(usage)
                if usage.node.clique and usage.is_whole:
                    self.whole[name] = len(usage.gpus)
                if usage.node.domains.keys() - {NODE_HOSTNAME}:
                    self.together.add(name)
        for policy, order in self.orders.items():
            order.put({name: self._unjudged(name, policy) for name in names})
        if self.whole and not self.sparing:
            self.sparing, names = {policy: Order() for policy in self.orders}, self.by_name.keys()
        for policy, order in self.sparing.items():
            order.put({name: self._unjudged(name, policy, spared=name in self.whole) for name in names})

    def _unjudged(self, name: str, policy: NodePolicy, *, spared: bool = False) -> Preference | None:
        state = self.by_name.get(name)
        return None if state is None else preference(policy, name, state.score, 0, spared=spared)

    def _state(self, usage: NodeUsage) -> NodeState:
        model = self._model(usage.node)
        number = self._gpu_uses.number
        used = zip(model.gpus, usage.gpus, strict=True)
        gpus = tuple([number((kind, gpu.replicas, gpu.memory_mib, gpu.cores)) for kind, gpu in used])
        occupied = [gpu.placements for gpu in usage.gpus]
        numa = _numa_of(usage)
        state = self._numbers.number((model.layout, gpus, tuple(occupied) if any(occupied) else (), numa))
        return NodeState(usage=usage, model=model, gpus=gpus, number=state, score=node_score(usage.gpus).total)

    def _model(self, node: RegisteredNode) -> NodeModel:
        model = self._models.get(node.name)
        if model is None or model.node is not node:
            self.largest.see(node)
            model = self._models[node.name] = self._read_model(node)
        return model

    def _read_model(self, node: RegisteredNode) -> NodeModel:
        devices = node.devices
        uuids = [device.uuid for device in devices]
        rows = [node.pair_scores.get(uuid, {}) for uuid in uuids]
        links = tuple([tuple(map(row.get, uuids)) for row in rows])
        places = tuple([(device.index, device.numa) for device in devices])
        kinds = [(*_model_of(each), each.is_mig, each.uuid in node.cordoned, node.limits) for each in devices]
        return NodeModel(
            node=node,
            layout=self._layout_numbers.number((links, places)),
            gpus=tuple(map(self._gpu_models.number, kinds)),
            mig=any(each.mode == MIG_MODE for each in devices),
            mutual=links == tuple(zip(*links, strict=True)),
        )


def _numa_of(usage: NodeUsage) -> tuple[object, ...]:
    """Returns what decides on which NUMA nodes kubelet puts a pod."""
    numa = usage.node.numa
    if numa is None or not numa.zones:
        return ()
    return (numa.policy, numa.scope, numa.changing, tuple(numa.zones.items()), tuple(usage.free_cpus.items()))


class LargestGpu:
    """The largest GPU and the largest MIG instance ever seen. No GPU gives a container more than that."""

    def __init__(self) -> None:
        self.gpu_mib = self._instance_mib = self._instance_cores = 0

    def see(self, node: RegisteredNode) -> None:
        profiles = list(chain.from_iterable(device.mig_profiles for device in node.devices))
        self.gpu_mib = max(self.gpu_mib, *(device.memory_mib for device in node.devices))
        self._instance_mib = max(self._instance_mib, *(profile.memory_mib for profile in profiles), 0)
        self._instance_cores = max(self._instance_cores, *(profile.cores for profile in profiles), 0)

    def is_covered(self, needs: Iterable[ContainerNeed | None], quota: Quota) -> bool:
        """Returns whether the quota admits the most that a pod may take of it, so that it refuses nothing."""
        memory_mib = cores = gpus = 0
        for need in needs:
            if need is not None:
                memory_mib += need.count * max(need.reserved_mib(self.gpu_mib), self._instance_mib)
                cores += need.count * max(need.reserved_cores, self._instance_cores)
                gpus += need.count
        return quota.admits(memory_mib, cores, gpus)


class _Numbers:
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
        """Forgets all numbers if there are more than `most`."""
        if len(self._known) > most:
            self._known.clear()
