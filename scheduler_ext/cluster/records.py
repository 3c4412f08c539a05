"""Records of what pods hold of nodes: one for each pod, in one table. The table alone feeds the sums."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as data_field
from enum import StrEnum
from math import inf
from sys import intern
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from proto.annotations.mig_allocations import MigAllocation, mig_allocations
from proto.devices import DeviceUUID, MigPlacement, PodShares
from proto.kubernetes.objects import Pod
from proto.kubernetes.requests import NO_HOST, HostAmount, exclusive_cpus
from scheduler_ext.cluster.accounting import NO_PINNED, Footprints, PinnedContainer, effective, pinned_containers
from scheduler_ext.kubelet_totals import NO_TOTALS, KubeletTotals
from scheduler_ext.quota_class import QuotaClass
from scheduler_ext.requests import ContainerKind, GpuRequest

Placements = Mapping[DeviceUUID, Sequence[MigPlacement]]
NO_PLACEMENTS: Placements = {}
NO_OTHERS: Mapping[str, PodShares] = {}


class RecordState(StrEnum):
    RESERVED = "reserved"
    """Decided, and not bound yet."""
    SENT = "sent"
    """A Binding may be carried out though the watch has not shown it."""
    LAPSED = "lapsed"
    """Its lease has ended, and it holds nothing. A pod that still waits in Permit gets a reservation again."""
    REJECTED = "rejected"
    """Lapsed until a member of its group was refused. It is lapsed again if others may be evicted for that member."""
    BOUND = "bound"
    OUTLIVING = "outliving"
    """The API server has deleted the pod, though its containers may still run."""
    KEPT = "kept"
    """The pod will get the room. Others may still hold it."""


class GpuPart(Struct, frozen=True, kw_only=True, gc=False):
    """A pod's part of one node's GPUs. `unreadable` is the text of an annotation that could not be decoded."""

    footprints: Footprints = field(default_factory=dict)
    placements: Placements = field(default_factory=lambda: NO_PLACEMENTS)
    """The instances on each GPU where every share is known to be a MIG instance. They include those of init containers
    until the pod is gone.
    """
    unreadable: str = ""
    wanted: int = 0
    """The most GPUs that one of its containers requests."""
    uid: str = ""
    """The UID of a pod without a decision, as its node's daemon names it."""
    pod: str = ""
    """Namespace and name of a pod without a decision, or of a deleted one."""
    undecided: int = 0
    """Device ids that kubelet gave it without a decision."""
    pinned: tuple[PinnedContainer, ...] = NO_PINNED
    everywhere: bool = False
    """True if it may use any part of the GPUs of these ids: of any GPU of the node, unless its daemon names them."""

    @property
    def is_special(self) -> bool:
        """Returns whether the usage of GPUs cannot be computed from the footprints alone."""
        return bool(self.unreadable or self.placements or self.undecided or self.everywhere)


NO_GPUS = GpuPart()
_NO_PARTS: Mapping[str, GpuPart] = {}


class SchedulerVerdict(Struct, frozen=True, kw_only=True):
    """The result of kube-scheduler's last attempt by the pod's status. `version` is the object's resourceVersion."""

    version: int = 0
    refusal: str = ""
    """Empty unless the condition PodScheduled is False."""
    nominated: str = ""


class Pending(Struct, frozen=True, kw_only=True, gc=False):
    """The state of kube-scheduler's handling of a pod that is not bound."""

    group: str = ""
    """Namespace and name of the pod's group; empty for a pod without one."""
    waits: tuple[Pod, GpuRequest] | None = None
    """The pod and its request while it waits in Permit for its group. The group is then bound without another question
    about it.
    """
    seen: SchedulerVerdict = SchedulerVerdict()
    """The status when kube-scheduler sent its question about the pod, or later."""
    required: str = ""
    """The level of which all of the group has to be in one domain; empty for any."""
    ahead: bool = False
    """True if it was decided with another member of its group, before kube-scheduler's question about it."""
    binding: bool = False
    """True once a bind has begun: from then on only the bind gives the reservation back."""


_NOT_PENDING = Pending()


class Growth(Struct, frozen=True, kw_only=True, gc=False):
    """What a running pod is about to get more of GPUs, until its own annotations count it."""

    counts: Footprints
    pod: Pod
    """The pod as it was last seen."""
    from_version: float = inf
    """The resourceVersion from which on the annotations count it."""


class PodRecord(Struct, frozen=True, kw_only=True, gc=False):
    """What one pod holds, or will hold, of nodes."""

    uid: str
    state: RecordState
    node: str
    namespace: str = ""
    """The namespace whose quotas it is charged to; empty for none."""
    quota_class: QuotaClass = QuotaClass()
    gpus: GpuPart = NO_GPUS
    """The pod's part of the node's GPUs."""
    others: Mapping[str, GpuPart] = field(default_factory=lambda: _NO_PARTS)
    """The parts on further nodes, until kube-scheduler has chosen among them. The namespace is charged once."""
    decided: Mapping[str, PodShares] = field(default_factory=lambda: NO_OTHERS)
    """The shares on each of the nodes while it is reserved or sent."""
    instances: tuple[MigAllocation, ...] = ()
    """The MIG instances that its daemon has made and named."""
    growth: Growth | None = None
    """The part of `gpus` that the annotations of a bound pod do not count yet."""
    totals: KubeletTotals = NO_TOTALS
    host: HostAmount = NO_HOST
    until: float = inf
    """The end in monotonic seconds. A sent one stays longer while no watch shows what became of it, one of a deleted
    pod while the node's daemon reports. It is infinite if only the daemon knows of the deleted pod.
    """
    priority: int = 0
    """The pod's priority, for kept room."""
    pending: Pending = _NOT_PENDING
    sent_by: int = 0
    """The number of the bind whose Binding may be carried out; 0 unless it is sent."""
    deleted_at: int = 0
    """The resourceVersion of a deleted pod's end."""
    remembered: bool = False
    """True if the annotation of a bound pod is gone."""
    problem: str = ""
    """The reason why it is unknown from its annotation what a bound pod holds; empty if it is known."""

    @property
    def nodes(self) -> Sequence[str]:
        return (self.node, *self.others) if self.others else (self.node,)

    @property
    def shares(self) -> PodShares:
        return self.decided.get(self.node, ())

    @property
    def is_pending(self) -> bool:
        return self.state in _PENDING

    @property
    def concerns_gpus(self) -> bool:
        """Returns whether it holds something of GPUs, or kubelet counts some of their resources for it."""
        return self.gpus is not NO_GPUS or bool(self.totals.amounts)

    def on(self, node: str) -> GpuPart:
        """Returns its part of this node's GPUs."""
        return self.gpus if node == self.node else self.others.get(node, NO_GPUS)

    def narrowed(self, nodes: Sequence[str]) -> "PodRecord":
        """Returns the record on these of its nodes, at least one."""
        parts = {node: self.on(node) for node in nodes}
        first, gpus = next(iter(parts.items()))
        others = {node: part for node, part in parts.items() if node != first}
        decided = {node: self.decided[node] for node in nodes}
        return replace(self, node=first, gpus=gpus, others=others, decided=decided)

    def outliving(self, until: float, deleted_at: int, name: str) -> "PodRecord":
        """Returns the record after the deletion of the pod: its containers may still use its GPUs."""
        gpus = replace(self.gpus, pod=name)
        left = replace(self, state=RecordState.OUTLIVING, gpus=gpus, growth=None, totals=NO_TOTALS, host=NO_HOST)
        return replace(left, until=until, deleted_at=deleted_at)

    def counts_as(self, other: "PodRecord") -> bool:
        """Returns whether all sums are the same with the other record in its place."""
        return self._counted() == other._counted()

    def _counted(self) -> tuple[object, ...]:
        group = self.pending.group if self.is_pending else ""
        charged = self.namespace, self.quota_class, group, self.state is RecordState.KEPT
        return self.node, self.gpus, self.others, self.totals, self.host, charged


def decided_part(kinds: Sequence[ContainerKind], shares: PodShares, pod: Pod | None = None) -> GpuPart:
    """Returns what a pod with these containers will hold of a node's GPUs by this decision; its CPUs only of `pod`."""
    placements = placements_of(mig_allocations(shares), shares)
    pinned = NO_PINNED if pod is None else pinned_containers(exclusive_cpus(pod), kinds, shares)
    return GpuPart(footprints=effective(kinds, shares), placements=placements, pinned=pinned)


def kept_record(request: GpuRequest, node: str, shares: PodShares, *, priority: int, until: float) -> PodRecord:
    """Returns the record of room that is kept for a pod by this decision."""
    return PodRecord(
        uid=request.uid,
        state=RecordState.KEPT,
        node=node,
        namespace=request.namespace,
        quota_class=request.quota_class,
        gpus=decided_part(request.kinds, shares),
        until=until,
        priority=priority,
    )


def namespace_of(pod: Pod) -> str:
    return intern(pod.metadata.namespace or "default")


def placements_of(allocations: Iterable[MigAllocation], shares: PodShares) -> Placements:
    """Returns the placements by GPU. A GPU with more or fewer instances than shares is left out: what the pod holds of
    it is unknown.
    """
    found: dict[DeviceUUID, list[MigPlacement]] = {}
    for allocation in allocations:
        found.setdefault(allocation.gpu, []).append(allocation.placement)
    held = Counter(share.uuid for container in shares for share in container) if found else {}
    return {uuid: tuple(places) for uuid, places in found.items() if held.get(uuid) == len(places)} or NO_PLACEMENTS


WAITING = frozenset({RecordState.LAPSED, RecordState.REJECTED})
"""The states of records that hold nothing. Their pods may wait in Permit."""
_PENDING = frozenset({RecordState.RESERVED, RecordState.SENT})
_BOUND = frozenset({RecordState.BOUND, RecordState.OUTLIVING})


class Sum(Protocol):
    """A sum over the records. A kept record is added only while its pod has no other."""

    def add(self, record: PodRecord, /) -> None: ...

    def subtract(self, record: PodRecord, /) -> None: ...


@dataclass(slots=True)
class Records:
    """The records by pod UID. A pod has at most one, and at most one more for room that is kept for it."""

    first_end: float = inf
    """No record ends before."""
    _sums: tuple[Sum, ...] = data_field(default=(), compare=False)
    _records: dict[str, PodRecord] = data_field(default_factory=dict)
    _temporary: dict[str, PodRecord] = data_field(default_factory=dict)
    """The records that are neither bound nor kept, and those in `WAITING`, which are nowhere else."""
    _kept: dict[str, PodRecord] = data_field(default_factory=dict)
    _by_node: dict[str, dict[str, PodRecord]] = data_field(default_factory=dict)
    """The counted records that concern GPUs, by node and UID. Nothing stays of a node without them: most names never
    come back.
    """

    def feed(self, *sums: Sum) -> None:
        """Feeds these sums from now on."""
        self._sums = sums

    def put(self, *records: PodRecord) -> None:
        """Adds the records. Each replaces the pod's record, or the room kept for it."""
        for record in records:
            uid, state = record.uid, record.state
            before = self._counted(uid)
            if state is RecordState.KEPT:
                self._kept[uid] = record
            else:
                self._records[uid] = record
                self._temporary.pop(uid, None)
                if state is not RecordState.BOUND:
                    self._temporary[uid] = record
                if state in WAITING:
                    del self._records[uid]
            self.first_end = min(self.first_end, record.until)
            self._change(before, self._counted(uid))

    def drop(self, *records: PodRecord | None) -> None:
        """Drops the pods' records, or the room kept for them. Kept room counts again once its pod has no record."""
        for record in filter(None, records):
            before = self._counted(record.uid)
            if record.state is RecordState.KEPT:
                self._kept.pop(record.uid, None)
            else:
                self._records.pop(record.uid, None)
                self._temporary.pop(record.uid, None)
            self._change(before, self._counted(record.uid))

    def _counted(self, uid: str) -> PodRecord | None:
        return self._records.get(uid) or self._kept.get(uid)

    def _change(self, before: PodRecord | None, after: PodRecord | None) -> None:
        same = before is not None and after is not None and after.counts_as(before)
        if before is not None and not same and before.concerns_gpus:
            for node in before.nodes:
                del self._by_node[node][before.uid]
                if not self._by_node[node]:
                    del self._by_node[node]
        if after is not None and after.concerns_gpus:
            for node in after.nodes:
                self._by_node.setdefault(node, {})[after.uid] = after
        for each in self._sums if not same else ():
            if before is not None:
                each.subtract(before)
            if after is not None:
                each.add(after)

    def forget_first_end(self) -> None:
        """Forgets it: something beside the records has changed when they end."""
        self.first_end = -inf

    def get(self, uid: str) -> PodRecord | None:
        """Returns the pod's record, if it holds something, apart from room kept for it."""
        return self._records.get(uid)

    def reserved(self, uid: str) -> PodRecord | None:
        """Returns the pod's record if it is reserved or sent."""
        record = self._temporary.get(uid)
        return record if record is not None and record.state in _PENDING else None

    def lapsed(self, uid: str) -> PodRecord | None:
        """Returns the pod's lapsed or rejected record."""
        record = self._temporary.get(uid)
        return record if record is not None and record.state in WAITING else None

    def bound(self, uid: str) -> PodRecord | None:
        """Returns the pod's record if it is bound, or outlives its deletion."""
        record = self._records.get(uid)
        return record if record is not None and record.state in _BOUND else None

    def kept(self, uid: str) -> PodRecord | None:
        """Returns the room kept for the pod."""
        return self._kept.get(uid)

    def kept_below(self, priority: int) -> dict[str, list[str]]:
        """Returns for each node the pods of lower priority for which room is kept."""
        found: dict[str, list[str]] = {}
        for uid, room in self._kept.items():
            if room.priority < priority:
                found.setdefault(room.node, []).append(uid)
        return found

    def sent_to(self, uid: str) -> str:
        """Returns the node to which the pod may be bound although the watch has not shown it; empty for any other
        pod.
        """
        record = self._temporary.get(uid)
        return record.node if record is not None and record.state is RecordState.SENT else ""

    def every(self) -> Mapping[str, PodRecord]:
        """Returns the records by pod UID, apart from kept room and those in `WAITING`; the next event changes it."""
        return self._records

    def problems(self) -> Mapping[str, str]:
        """Returns by pod UID why it is unknown what pods hold."""
        return {uid: record.problem for uid, record in self._records.items() if record.problem}

    def of(self, *states: RecordState) -> list[PodRecord]:
        """Returns the records in one of these states, but for bound ones."""
        return [record for record in (*self._temporary.values(), *self._kept.values()) if record.state in states]

    def on_node(self, node: str) -> Mapping[str, PodRecord]:
        """Returns the records that concern GPUs of the node, by UID, with kept room; the next event changes it."""
        return self._by_node.get(node, {})
