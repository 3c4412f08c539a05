"""Decisions that are not bound yet: how long each is kept, its group, and the signs that kube-scheduler gave it up.

No verb of an extender reports that kube-scheduler took a decision back. There are four signs:

1. kube-scheduler sends another question about the pod.

2. It sends a question about another pod after a member of the group was refused, or after the group failed before:
kube-scheduler handles one pod or one group at a time.

3. The pod's status has the condition that it is not scheduled.

4. Time passes. Each lease of the same pod is shorter than the one before.

Time and questions about other pods may be wrong for a pod that waits in Permit for its group. Its reservation is
remembered, and made again when the next member comes.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from proto.devices import PodShares
from proto.kubernetes.objects import Pod, version_number
from scheduler_ext.requests import GpuRequest

LATEST_NEWS_SECONDS = 600.0
"""How long a sent reservation stays at least once the watch of pods works again, which may have to catch up."""
SHORTEST_LEASE_SECONDS = 2.0
"""The lease of a pod that used none of its reservations, again and again."""
LONGEST_PERMIT_SECONDS = 900.0
"""kube-scheduler lets no pod wait longer for Permit (maxTimeout of its framework)."""
FEWEST_THAT_WAIT_ON = 9
"""The fewest waiting members of a group of which some wait on when one more is refused: coscheduling rejects them all
unless a tenth or less is missing.
"""
REFUSED_SECONDS = 1.0
"""How long the rest of a group is kept after a member was refused: a group may do without some members.

It is kept only until kube-scheduler sends a question about another pod.
"""
MOST_MEMBERS = 10_000
"""The most members remembered of one attempt at a group. More than that are pods that come and go under one name."""
_GROUP_LABELS = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")
"""The labels of kubernetes-sigs/scheduler-plugins' coscheduling: now, and before its release 0.23."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of kube-scheduler's last attempt by the pod's status. `version` is the object's resourceVersion."""

    version: int = 0
    refusal: str = ""
    """Empty unless the condition PodScheduled is False."""
    nominated: str = ""


NO_OTHERS: Mapping[str, PodShares] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A decision that is not bound yet.

    `until` is in monotonic seconds. A sent one stays longer while no watch shows what became of it.
    """

    node: str
    shares: PodShares
    until: float
    others: Mapping[str, PodShares] = field(default_factory=lambda: NO_OTHERS)
    """The shares held on further nodes until kube-scheduler has chosen among them."""
    group: str = ""
    """Namespace and name of the pod's group; empty for a pod without one."""
    waits: tuple[Pod, GpuRequest] | None = None
    """The pod and its request while it waits in Permit for its group. The group is then bound without another question
    about it.
    """
    seen: Verdict = field(default_factory=Verdict)
    """The status when kube-scheduler sent its question about the pod, or later."""
    binding: bool = False
    """True once a bind has begun: from then on only the bind gives the reservation back."""
    sent_by: int = 0
    """The bind whose Binding may be carried out though the watch has not shown it; 0 without one."""

    def on(self, node: str) -> PodShares | None:
        return self.shares if node == self.node else self.others.get(node)


def group_of(pod: Pod) -> str:
    """Returns namespace and name of the group that kube-scheduler schedules as a whole; empty for a pod without one."""
    named = pod.spec.scheduling_group.pod_group_name if pod.spec.scheduling_group else ""
    labels = (pod.metadata.labels.get(label, "") for label in _GROUP_LABELS)
    name = named or next(filter(None, labels), "")
    return f"{pod.metadata.namespace or 'default'}/{name}" if name else ""


def waits_of(pod: Pod, request: GpuRequest | None) -> tuple[Pod, GpuRequest] | None:
    """Returns `Reservation.waits`: coscheduling schedules a group member by member, kube-scheduler all at once."""
    return (pod, request) if request is not None and pod.spec.scheduling_group is None and group_of(pod) else None


def verdict_of(pod: Pod) -> Verdict:
    refusal = pod.status.unscheduled
    return Verdict(
        version=version_number(pod.metadata.resource_version),
        refusal="" if refusal is None else f"{refusal.reason}: {refusal.message}",
        nominated=pod.status.nominated_node_name,
    )


def lets_go(before: Verdict, after: Verdict) -> bool:
    """Returns whether kube-scheduler took its decision back in between: the status has a new refusal, or no longer
    names a node.
    """
    refused = bool(after.refusal) and after.refusal != before.refusal
    return after.version > before.version and (refused or (bool(before.nominated) and not after.nominated))


@dataclass(slots=True)
class _Round:
    """One attempt of kube-scheduler at a group."""

    asked: set[str] = field(default_factory=set)
    promised: set[str] = field(default_factory=set)
    refused: bool = False
    """True if a member was refused, and none bound since."""
    preempts: bool = False
    """True if kube-scheduler evicts others for the member that was refused: then coscheduling rejects no member."""
    rejected: dict[str, Reservation] = field(default_factory=dict)
    """The members whose reservations had lapsed when the member was refused."""
    again: bool = False
    """True if members wait in Permit whose earlier reservation was dropped, and none was bound since."""


@dataclass(slots=True)
class Reservations:
    """Reservations by pod UID. The methods name those to drop, and `pop` drops them."""

    _promised: dict[str, Reservation] = field(default_factory=dict)
    _rounds: dict[str, _Round] = field(default_factory=dict)
    """The rounds of groups that have reservations, and of the group of the last question."""
    _unused: dict[str, int] = field(default_factory=dict)
    """The number of reservations of each pod since its last bind began, without those dropped because of its group."""
    _lapsed: dict[str, Reservation] = field(default_factory=dict)
    """The reservations of pods that may still wait in Permit, though their lease has ended."""
    _watched_since: float = -inf
    """When the watch of pods has begun to work; infinite while it does not."""
    _first_expiry: float = inf
    """No reservation ends before."""

    def __len__(self) -> int:
        return len(self._promised)

    def get(self, uid: str) -> Reservation | None:
        return self._promised.get(uid)

    def asked_about(self, uid: str, group: str) -> set[str]:
        """Returns the pods that lose their reservations because kube-scheduler sends a question about this pod now.

        They are: the pod itself; its group if a question about it came before, because the group is tried again; groups
        that were refused, or are tried again, because kube-scheduler has moved on. Coscheduling may have rejected such
        a group because another plugin refuses a member. Nothing shows that: the pods' status had the same words before.
        """
        void = {uid} & self._promised.keys()
        if uid in self._lapsed:
            # Coscheduling has rejected all that wait, as it rejected this one.
            self._forget_lapsed(group)
        for name, other in list(self._rounds.items()):
            if name == group:
                continue
            if other.refused or other.again:
                void |= self._lapse(self._held_back(other))
                other.refused = False
            if not other.promised:
                del self._rounds[name]
        if group:
            ours = self._rounds.setdefault(group, _Round())
            if uid in ours.asked or len(ours.asked) >= MOST_MEMBERS:
                void |= self._lapse(self._held_back(ours)) if ours.refused else self._held_back(ours)
                ours.asked, ours.refused = set(), False
            ours.asked.add(uid)
        return void

    def refused(self, group: str, now: float) -> None:
        """Records that a member fits nowhere. The others are bound without it at once or not at all; they are not the
        cause.
        """
        if not group:
            return
        this = self._rounds.setdefault(group, _Round())
        this.refused, this.preempts, this.rejected = True, False, {}
        if self._is_rejected(group):
            this.rejected = {uid: lapsed for uid, lapsed in self._lapsed.items() if lapsed.group == group}
            self._forget_lapsed(group)
        for uid in self._held_back(this):
            self._unused.pop(uid, None)
            self.change(uid, until=min(self._promised[uid].until, now + REFUSED_SECONDS))

    def preempts(self, group: str) -> None:
        """Records that others are evicted for the refused member. It comes again, and the others wait for it."""
        this = self._rounds.get(group)
        if this is not None and this.refused:
            this.preempts = True
            self._lapsed.update(this.rejected)

    def lapsed(self, group: str, now: float) -> dict[str, Reservation]:
        """Returns the members without a reservation that are bound with the group if it becomes complete now."""
        if not group:
            return {}
        of_group = ((uid, lapsed) for uid, lapsed in self._lapsed.items() if lapsed.group == group)
        return {uid: lapsed for uid, lapsed in of_group if now < lapsed.until + LONGEST_PERMIT_SECONDS}

    def lease_seconds(self, uid: str, group: str, longest: float) -> float:
        """Returns the seconds that the pod's next reservation may last, at most `longest`: half of the previous time
        for each reservation that it did not use.
        """
        this = self._rounds.get(group)
        if this is not None and this.refused:
            return min(longest, REFUSED_SECONDS)
        halved = longest / 2.0 ** min(self._unused.get(uid, 0), 30)
        return min(longest, max(halved, SHORTEST_LEASE_SECONDS))

    def put(self, uid: str, reservation: Reservation) -> None:
        """Adds a reservation for a pod that has none."""
        self._promised[uid] = reservation
        self._lapsed.pop(uid, None)
        self._unused[uid] = self._unused.get(uid, 0) + 1
        self._first_expiry = min(self._first_expiry, reservation.until)
        if reservation.group:
            this = self._rounds.setdefault(reservation.group, _Round())
            this.promised.add(uid)
            this.again |= reservation.waits is not None and self._unused[uid] > 1

    def pop(self, uid: str) -> None:
        reservation = self._promised.pop(uid, None)
        if reservation is not None and reservation.group in self._rounds:
            self._rounds[reservation.group].promised.discard(uid)

    def change(self, uid: str, **changes: Any) -> None:
        """Changes other fields of a reservation. No effect if the pod has none."""
        reservation = self._promised.get(uid)
        if reservation is not None:
            self._promised[uid] = changed = replace(reservation, **changes)
            self._first_expiry = min(self._first_expiry, changed.until)

    def bind_begins(self, uid: str, until: float) -> None:
        """Records that kube-scheduler has decided for the pod, and so for its group. The reservation stays until
        `until`.
        """
        reservation = self._promised.get(uid)
        if reservation is not None:
            self._unused.pop(uid, None)
            if reservation.group in self._rounds:
                self._rounds[reservation.group].refused = self._rounds[reservation.group].again = False
            self.change(uid, until=until, binding=True)

    def unsent(self) -> list[str]:
        """Returns the pods for which no Binding was sent."""
        return [uid for uid, reservation in self._promised.items() if not reservation.sent_by]

    def told(self, uid: str, pod: Pod) -> set[str]:
        """Returns the pods that lose their reservations because of the status of this unbound pod."""
        after = verdict_of(pod)
        if uid in self._lapsed and lets_go(self._lapsed[uid].seen, after):
            del self._lapsed[uid]
        reservation = self._promised.get(uid)
        if reservation is None or reservation.binding:
            return set()
        if lets_go(reservation.seen, after):
            this = self._rounds.get(reservation.group)
            return {uid} if this is None else self._held_back(this)
        if after.version > reservation.seen.version:
            self.change(uid, seen=after)
        return set()

    def settled(self, uid: str) -> None:
        """The pod is bound, has ended or is gone."""
        self._unused.pop(uid, None)
        self._lapsed.pop(uid, None)

    def keep_only(self, uids: Collection[str], version: int = 0) -> None:
        """Forgets everything, except about these pods and those with reservations.

        A pod that is missing in a list of a later `version` than its own is gone. Its reservation ends with its lease:
        no watch will show what became of it.
        """
        for uid, reservation in self._promised.items():
            if uid not in uids and 0 < reservation.seen.version <= version:
                self.change(uid, sent_by=0)
        self._unused = {uid: n for uid, n in self._unused.items() if uid in uids or uid in self._promised}
        self._lapsed = {uid: lapsed for uid, lapsed in self._lapsed.items() if uid in uids}

    def watched(self, since: float) -> None:
        """The watch of pods works since then; it does not if that is infinite."""
        self._watched_since, self._first_expiry = since, -inf

    def expired(self, now: float) -> set[str]:
        """Returns the pods whose reservations have ended."""
        if now < self._first_expiry:
            return set()
        ended = {uid for uid, reservation in self._promised.items() if self._ends_at(reservation) <= now}
        left = (self._ends_at(reservation) for uid, reservation in self._promised.items() if uid not in ended)
        self._first_expiry = min(left, default=inf)
        return self._lapse(ended)

    def _ends_at(self, reservation: Reservation) -> float:
        if not reservation.sent_by:
            return reservation.until
        return max(reservation.until, self._watched_since + LATEST_NEWS_SECONDS)

    def _lapse(self, ended: set[str]) -> set[str]:
        """Remembers the reservations of members that may still wait in Permit. Returns `ended`."""
        waiting = {uid: self._promised[uid] for uid in ended if self._promised[uid].waits}
        rejected = set(filter(self._is_rejected, {reservation.group for reservation in waiting.values()}))
        for uid, reservation in waiting.items():
            if not reservation.binding and reservation.group not in rejected:
                self._lapsed[uid] = reservation
        return ended

    def _is_rejected(self, group: str) -> bool:
        """Returns whether coscheduling rejected all members that wait, as it does when one more is refused."""
        this = self._rounds.get(group)
        if this is None or not this.refused or this.preempts:
            return False
        lapsed = sum(1 for reservation in self._lapsed.values() if reservation.group == group)
        return len(self._held_back(this)) + lapsed < FEWEST_THAT_WAIT_ON

    def _forget_lapsed(self, group: str) -> None:
        self._lapsed = {uid: lapsed for uid, lapsed in self._lapsed.items() if lapsed.group != group}

    def _held_back(self, this: _Round) -> set[str]:
        """Returns the members with a reservation for which no bind has begun."""
        return {uid for uid in this.promised if not self._promised[uid].binding}
