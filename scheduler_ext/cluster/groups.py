"""Decisions that are not bound yet: how long each is kept, its group, and the signs that kube-scheduler gave it up.

No verb of an extender reports that kube-scheduler took a decision back. There are four signs:

1. kube-scheduler sends another question about the pod.

2. It sends a question about another pod after a member of the group was refused, or after the group failed before:
kube-scheduler handles one pod or one group at a time.

3. The pod's status has the condition that it is not scheduled.

4. Time passes. Each lease of the same pod is shorter than the one before.

Time and questions about other pods may be wrong for a pod that waits in Permit for its group. Its reservation lapses,
and is made again when the next member comes.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from msgspec.structs import replace

from proto.kubernetes.objects import Pod, version_number
from scheduler_ext.cluster.gangs import STAND_IN
from scheduler_ext.cluster.group_attempt import GroupAttempt
from scheduler_ext.cluster.records import Pending, PodRecord, Records, RecordState, SchedulerVerdict, namespace_of
from scheduler_ext.membership import BOUND_ALONE, GroupSource, group_of, membership_of
from scheduler_ext.requests import GpuRequest, pod_key

SHORTEST_LEASE_SECONDS = 2.0
"""The lease of a pod that used none of its reservations, again and again."""
FAILED_BIND_SECONDS = 30.0
"""How long a member whose bind failed keeps its GPUs beside members that are bound: kube-scheduler tries it again after
10 seconds at the latest.
"""
SCHEDULER_ERROR = "SchedulerError"
"""The reason in a pod's status if an attempt failed after a node was found, such as a bind."""
LONGEST_PERMIT_SECONDS = 900.0
"""kube-scheduler lets no pod wait longer for Permit (maxTimeout of its framework)."""
REFUSED_SECONDS = 1.0
"""The time for which the rest of a group is kept after a member was refused: a group may do without some members.

It is kept only until kube-scheduler sends a question about another pod.
"""


def pending_of(pod: Pod, request: GpuRequest | None) -> Pending:
    """Returns what is known of the pod at its decision. It waits in Permit if coscheduling schedules its group, member
    by member; kube-scheduler schedules its own groups at once.
    """
    found = membership_of(pod)
    if found is None:
        return Pending(seen=verdict_of(pod))
    waits = (pod, request) if request is not None and found.source is GroupSource.COSCHEDULING else None
    required = "" if request is None else required_level(request)
    return Pending(group=found.group, waits=waits, required=required, seen=verdict_of(pod))


def required_level(request: GpuRequest) -> str:
    """Returns the level if one of its domains must hold the pod's whole group; empty otherwise."""
    return request.wish.level if request.wish is not None and request.wish.required else ""


def verdict_of(pod: Pod) -> SchedulerVerdict:
    refusal = pod.status.unscheduled
    return SchedulerVerdict(
        version=version_number(pod.metadata.resource_version),
        refusal="" if refusal is None else f"{refusal.reason}: {refusal.message}",
        nominated=pod.status.nominated_node_name,
    )


def lets_go(before: SchedulerVerdict, after: SchedulerVerdict) -> bool:
    """Returns whether kube-scheduler took its decision back in between: the status has a new refusal, or no longer
    names a node.
    """
    refused = bool(after.refusal) and after.refusal != before.refusal
    return after.version > before.version and (refused or (bool(before.nominated) and not after.nominated))


def _where(pod: Pod, offered: Collection[str]) -> AbstractSet[str]:
    """Returns the nodes that distinguish placements. Coscheduling has each member placed among all nodes, where it
    waits for the others.
    """
    return {""} if pod.spec.scheduling_group is None else set(offered)


def _is_bound_alone(pod: Pod) -> bool:
    found = membership_of(pod)
    return found is not None and found.source in BOUND_ALONE


@dataclass(slots=True)
class Groups:
    """Attempts of kube-scheduler at pods and groups. What it gave up is dropped from the records."""

    _records: Records = field(compare=False)
    _attempts: dict[str, GroupAttempt] = field(default_factory=dict)
    """The attempts at groups that have reservations, and at the group of the last question."""
    _unused_reservations: dict[str, int] = field(default_factory=dict)
    """The number of reservations of each pod since its last bind began, without those dropped because of its group."""

    def _attempt(self, group: str) -> GroupAttempt:
        return self._attempts.setdefault(group, GroupAttempt(self._records))

    def add(self, record: PodRecord) -> None:
        if record.is_pending and record.pending.group:
            self._attempt(record.pending.group).reserved.add(record.uid)

    def subtract(self, record: PodRecord) -> None:
        if record.is_pending and record.pending.group in self._attempts:
            self._attempts[record.pending.group].reserved.discard(record.uid)

    def filter_begins(self, pod: Pod, offered: Collection[str], needed: int = 0) -> None:
        """Drops what kube-scheduler has given up, as its question about this pod among the `offered` nodes shows.

        It is the pod's own reservation, and those of groups that were refused or are tried again, because
        kube-scheduler has moved on. Those of its group are dropped if a question about it on these nodes came before,
        because the group is tried again. A reservation on the nodes of another domain stays for its group: it may be
        the one that is bound. It charges no quota until the question is answered. What was decided ahead for the pod
        among these nodes stays.

        Coscheduling may have rejected such a group because another plugin refuses a member. Nothing shows that: the
        pods' status had the same words before.
        """
        uid, group = pod_key(pod), group_of(pod)
        void, lapsed = {uid}, list[PodRecord]()
        if (waiting := self._records.lapsed(uid)) is not None:
            # Coscheduling has rejected all that wait, as it rejected this one.
            self._records.drop(*self._lapsed(group, waiting.state))
        for name, other in list(self._attempts.items()):
            if name == group:
                continue
            if other.refused or other.reserved_again or other.is_cut_short():
                held = other.open_reservations()
                lapsed += self.lapsed_of(held.values())
                void |= held.keys()
                other.refused = False
            elif len(other.placements) > 1:
                other.narrow(other.whole())
            if not other.reserved:
                del self._attempts[name]
        if group:
            ours = self._attempt(group)
            where = _where(pod, offered)
            goes_on = bool(ours.placements)
            void = void - {uid} | ours.void(uid, offered, where, bound_alone=_is_bound_alone(pod))
            if ours.refused and goes_on and not ours.placements:
                lapsed += self.lapsed_of(ours.open_reservations().values())
            if not ours.placements:
                ours.needed, ours.in_one_cycle = needed, pod.spec.scheduling_group is not None
            ours.place(uid, where)
            ours.refused &= ours.placements[-1].refused
        self._records.drop(*map(self._records.reserved, void))
        self._records.put(*lapsed)

    def refused(self, pod: Pod, now: float) -> None:
        """Records that the pod fits nowhere. The other members are bound without it at once or not at all; they are not
        the cause.
        """
        group = group_of(pod)
        if not group:
            return
        this = self._attempt(group)
        this.refuse()
        this.preempts = False
        self._records.drop(*self._lapsed(group, RecordState.REJECTED))
        this.charge(this.open_reservations().values(), namespace_of(pod))
        if not this.refused:
            return
        if this.is_rejected(len(lapsed := self._lapsed(group))):
            self._records.put(*(replace(each, state=RecordState.REJECTED) for each in lapsed))
        for uid, record in this.open_reservations().items():
            self._unused_reservations.pop(uid, None)
            if record.pending.ahead:
                self._records.drop(record)
            else:
                self._records.put(replace(record, until=min(record.until, now + REFUSED_SECONDS)))

    def preempts(self, pod: Pod) -> None:
        """Records that others may be evicted for the refused pod. It comes again, and its group waits for it."""
        this = self._attempts.get(group_of(pod))
        if this is not None and this.refused:
            this.preempts = True
            rejected = self._lapsed(group_of(pod), RecordState.REJECTED)
            self._records.put(*(replace(each, state=RecordState.LAPSED) for each in rejected))

    def lapsed(self, pod: Pod) -> Sequence[tuple[str, str, tuple[Pod, GpuRequest]]]:
        """Returns UID, node and request of members that wait for the pod although their lease has ended."""
        found = self._lapsed(group_of(pod))
        return [(each.uid, each.node, each.pending.waits) for each in found if each.pending.waits]

    def lease_seconds(self, pod: Pod, longest: float) -> float:
        """Returns the seconds that the pod's next reservation may last, at most `longest`: half of the previous time
        for each reservation that it did not use.
        """
        this = self._attempts.get(group_of(pod)) if self._attempts else None
        if this is not None and this.refused:
            return min(longest, REFUSED_SECONDS)
        halved = longest / 2.0 ** min(self._unused_reservations.get(pod_key(pod), 0), 30)
        return min(longest, max(halved, SHORTEST_LEASE_SECONDS))

    def count_reservation(self, uid: str) -> None:
        """Counts one more reservation of the pod; those of one attempt at its group count once."""
        record = self._records.reserved(uid)
        if record is not None and record.pending.ahead:
            return
        this = None if record is None else self._attempts.get(record.pending.group)
        if this is None or this.simulated(uid) <= 1:
            self._unused_reservations[uid] = self._unused_reservations.get(uid, 0) + 1
        if record is not None and this is not None:
            this.reserved_again |= record.pending.waits is not None and self._unused_reservations.get(uid, 0) > 1
            if this.simulated(uid):
                this.placements[-1].placed.add(uid)
            this.renew(record.until)

    def placed(self, pod: Pod, offered: Collection[str]) -> Sequence[str]:
        """Returns the other members that have their places: of a group with domains, among the `offered` nodes."""
        this = self._attempts.get(group_of(pod))
        if this is None:
            return ()
        where = None if pod.spec.scheduling_group is None else frozenset(offered)
        return [uid for uid in this.placed(where) if uid != pod_key(pod)]

    def others(self, group: str, uid: str, *, binding: bool) -> Sequence[str]:
        """Returns the nodes held for the group's other members; with `binding` for those that are being bound."""
        this = self._attempts.get(group)
        members = () if this is None else this.reserved - {uid}
        held = filter(None, map(self._records.reserved, members))
        return [node for each in held if each.pending.binding or not binding for node in each.nodes]

    def ahead(self, pod: Pod, offered: Collection[str]) -> PodRecord | None:
        """Returns what was decided ahead on an `offered` node for the pod, or for a member that did not exist then."""
        own = self._records.reserved(pod_key(pod))
        if own is not None:
            return own if own.pending.ahead and own.node in offered else None
        this = self._attempts.get(group_of(pod))
        held = this.open_reservations() if this is not None else {}
        free = (record for uid, record in held.items() if STAND_IN in uid and record.node in offered)
        return next(free, None)

    def bind_failed(self, uid: str, now: float) -> bool:
        """Drops the reservation of a pod whose bind failed. Returns whether it stays for some time, because the pod's
        group has to start as a whole.
        """
        record = self._records.reserved(uid)
        this = None if record is None else self._attempts.get(record.pending.group)
        if record is None or this is None or not this.needed:
            self._records.drop(record)
            return False
        pending = replace(record.pending, binding=False, ahead=False)
        until = now + FAILED_BIND_SECONDS
        self._records.put(replace(record, state=RecordState.RESERVED, sent_by=0, until=until, pending=pending))
        return True

    def bind_begins(self, uid: str, until: float) -> None:
        """Records that kube-scheduler has decided for the pod, and so for its group: the pod's reservation stays until
        then, and those of members that are bound without another question. No effect without a reservation.
        """
        record = self._records.reserved(uid)
        if record is None:
            return
        self._unused_reservations.pop(uid, None)
        this = self._attempts.get(record.pending.group)
        if this is not None:
            this.refused = this.reserved_again = False
            if this.in_one_cycle:
                this.drop_unasked()
            unasked = (other for other in this.open_reservations().values() if other.pending.waits is None)
            this.extend(unasked, until)
        self._records.put(replace(record, until=until, pending=replace(record.pending, binding=True)))

    def settle(self, group: str, node: str) -> None:
        """Records that a member is bound to this node. The other members keep their places of the same placement, and
        lose those of others.
        """
        this = self._attempts.get(group)
        if this is not None:
            this.narrow([each for each in this.placements if node in each.offered])

    def apply(self, pod: Pod) -> None:
        """Drops what kube-scheduler has given up, as the status of an unbound pod shows."""
        uid = pod_key(pod)
        if pod.spec.node_name or pod.has_ended:
            self.remove(uid)
            return
        after = verdict_of(pod)
        lapsed = self._records.lapsed(uid)
        if lapsed is not None and lets_go(lapsed.pending.seen, after):
            self._records.drop(lapsed)
        record = self._records.reserved(uid)
        if record is None or record.pending.binding:
            return
        this = self._attempts.get(record.pending.group)
        # A member of a group is tried again at once, and its status may show later that a bind failed.
        keeps = this is not None and this.needed > 0 and after.refusal.startswith(SCHEDULER_ERROR)
        if lets_go(record.pending.seen, after) and not keeps:
            self._records.drop(*([record] if this is None else this.open_reservations().values()))
        elif after.version > record.pending.seen.version:
            self._records.put(replace(record, pending=replace(record.pending, seen=after)))

    def remove(self, uid: str) -> None:
        """Forgets a pod that is bound, has ended or is gone."""
        self._unused_reservations.pop(uid, None)
        self._records.drop(self._records.lapsed(uid))

    def keep_only(self, uids: Collection[str]) -> None:
        """Forgets all pods except these and those with reservations."""
        for uid in self._unused_reservations.keys() - uids:
            if self._records.reserved(uid) is None:
                del self._unused_reservations[uid]

    def lapsed_of(self, ended: Iterable[PodRecord]) -> Sequence[PodRecord]:
        """Returns the lapsed records of the members among these that may still wait in Permit."""
        waiting = [record for record in ended if record.pending.waits and not record.pending.ahead]
        groups = self._attempts.keys() & {record.pending.group for record in waiting}
        lapsed = Counter(each.pending.group for each in self._records.of(RecordState.LAPSED))
        rejected = {group for group in groups if self._attempts[group].is_rejected(lapsed[group])}
        kept = (each for each in waiting if not each.pending.binding and each.pending.group not in rejected)
        return [replace(each, state=RecordState.LAPSED) for each in kept]

    def _lapsed(self, group: str, state: RecordState = RecordState.LAPSED) -> Sequence[PodRecord]:
        return [each for each in self._records.of(state) if each.pending.group == group]
