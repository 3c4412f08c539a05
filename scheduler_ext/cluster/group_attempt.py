"""One attempt of kube-scheduler at a group of pods, and the placements that it simulates before it binds one.

With a topology constraint kube-scheduler simulates the whole group in each domain: it sends one question about each
member with the nodes of the domain. It binds the best placement without another question (Kubernetes 1.37,
`schedule_one_podgroup.go`). So what was reserved in each domain stays until the first bind shows the chosen one.
"""

from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from math import inf

from msgspec.structs import replace

from scheduler_ext.cluster.records import PodRecord, Records
from scheduler_ext.membership import MOST_MEMBERS

FEWEST_THAT_WAIT_ON = 9
"""The fewest waiting members of a group of which some wait on when one more is refused: coscheduling rejects them all
unless a tenth or less is missing.
"""
RENEWAL_SECONDS = 1.0


@dataclass(slots=True)
class Placement:
    """Nodes that were offered together, such as those of one domain, and the members for which they were offered."""

    offered: set[str]
    members: set[str]
    refused: bool = False
    """True if a member did not fit."""
    placed: set[str] = field(default_factory=set)
    """The members that got a node here when kube-scheduler sent its question about them."""


@dataclass(slots=True)
class GroupAttempt:
    """The questions of kube-scheduler about members, and what members hold before their bind begins."""

    _records: Records = field(compare=False)
    placements: list[Placement] = field(default_factory=list)
    """The placement of the last question comes last."""
    reserved: set[str] = field(default_factory=set)
    needed: int = 0
    """The number of members that must get GPUs together; 0 if it is unknown."""
    in_one_cycle: bool = False
    """True if kube-scheduler sends its questions about all members without other pods in between."""
    refused: bool = False
    """True if a member was refused, no placement has room for all, and none was bound since."""
    preempts: bool = False
    """True if kube-scheduler evicts others for the member that was refused: then coscheduling rejects no member."""
    renewed_until: float = -inf
    """The time until which what was decided ahead is held at least, in monotonic seconds."""
    reserved_again: bool = False
    """True if members wait in Permit whose earlier reservation was dropped, and none was bound since."""

    def is_rejected(self, lapsed: int) -> bool:
        """Returns whether coscheduling rejected all members that wait, as it does when one more is refused. `lapsed` is
        the number of those without a reservation.
        """
        return self.refused and not self.preempts and len(self.open_reservations()) + lapsed < FEWEST_THAT_WAIT_ON

    def is_over(self, uid: str, offered: AbstractSet[str]) -> bool:
        """Returns whether a question about the member among these nodes begins the next attempt."""
        met = (each for each in self.placements if not each.offered.isdisjoint(offered))
        members = sum(len(each.members) for each in self.placements)
        return members >= MOST_MEMBERS or any(uid in each.members for each in met)

    def void(
        self, uid: str, offered: Collection[str], where: AbstractSet[str], *, bound_alone: bool
    ) -> AbstractSet[str]:
        """Returns the members whose reservations a question about this one makes void. The next attempt begins without
        placements.
        """
        own = self.open_reservation(uid)
        if self.refused and self.needed and bound_alone:
            # The members found before are bound all the same. All that are missing are looked for again.
            self.placements.clear()
            self.refused = False
        if self.is_over(uid, where):
            self.placements.clear()
            return {uid, *self.open_reservations()}
        if own is not None and own.pending.ahead:
            return set() if own.node in offered else {uid}
        if own is None or not self.simulated(uid):
            return {uid}
        elsewhere = self.open_reservations().values() if self.needed else [own]
        self.charge((record for record in elsewhere if where.isdisjoint(record.nodes)), "")
        return set()

    def place(self, uid: str, offered: AbstractSet[str]) -> None:
        """Adds the question to the placement with which it shares nodes. It joins several such placements to one."""
        met = [each for each in self.placements if not each.offered.isdisjoint(offered)]
        apart = [each for each in self.placements if each.offered.isdisjoint(offered)]
        ours = Placement(
            offered=set(offered).union(*(each.offered for each in met)),
            members={uid}.union(*(each.members for each in met)),
            refused=any(each.refused for each in met),
            placed=set[str]().union(*(each.placed for each in met)),
        )
        self.placements = [*apart, ours]

    def refuse(self) -> None:
        """Records that the last question was answered without a node. A group may have more members than it needs."""
        if self.placements and not self.is_complete(self.placements[-1]):
            self.placements[-1].refused = True
        self.refused = not self.whole()

    def whole(self) -> list[Placement]:
        """Returns the placements in which every member has its place."""
        members = set[str]().union(*(each.members for each in self.placements))
        return [each for each in self.placements if not each.refused and each.members == members]

    def is_complete(self, placement: Placement) -> bool:
        """Returns whether all members that the group needs got a node there."""
        return 0 < self.needed <= len(placement.placed)

    def simulated(self, uid: str) -> int:
        """Returns the number of placements for which kube-scheduler sent a question about the member."""
        return sum(uid in each.members for each in self.placements)

    def open_reservation(self, uid: str) -> PodRecord | None:
        """Returns the member's reservation if it is open: no bind has begun for it."""
        record = self._records.reserved(uid) if uid in self.reserved else None
        return None if record is None or record.pending.binding else record

    def open_reservations(self) -> dict[str, PodRecord]:
        """Returns the members' open reservations by UID."""
        return {uid: record for uid in self.reserved if (record := self.open_reservation(uid)) is not None}

    def placed(self, offered: AbstractSet[str] | None) -> Sequence[str]:
        """Returns the members that have their places; with `offered` nodes those that have them there or are being
        bound.
        """
        found = ((uid, self._records.reserved(uid)) for uid in self.reserved)
        return [
            uid
            for uid, record in found
            if record is not None
            and (offered is None or record.pending.binding or not offered.isdisjoint(record.nodes))
        ]

    def narrow(self, placements: Sequence[Placement]) -> None:
        """Keeps the open reservations on the nodes of these placements only, where they are on such nodes."""
        for record in self.open_reservations().values():
            kept = [node for node in record.nodes if any(node in each.offered for each in placements)]
            if 0 < len(kept) < len(record.nodes):
                self._records.put(record.narrowed(kept))

    def extend(self, members: Iterable[PodRecord], until: float) -> None:
        for record in members:
            if record.until < until:
                self._records.put(replace(record, until=until))

    def renew(self, until: float) -> None:
        """Extends what was decided ahead, a second at a time: a large group has many questions."""
        if until >= self.renewed_until + RENEWAL_SECONDS:
            self.renewed_until = until
            self.extend((other for other in self.open_reservations().values() if other.pending.ahead), until)

    def charge(self, members: Iterable[PodRecord], namespace: str) -> None:
        """Charges them to the quotas of this namespace; to none if it is empty."""
        for record in members:
            if record.namespace != namespace:
                self._records.put(replace(record, namespace=namespace))

    def drop_unasked(self) -> None:
        """Drops what was decided ahead for members about which kube-scheduler sent no question."""
        for uid, record in self.open_reservations().items():
            if record.pending.ahead and not self.simulated(uid):
                self._records.drop(record)

    def is_cut_short(self) -> bool:
        """Returns whether kube-scheduler, which goes on to another pod, has left out members that the group needs. What
        was decided ahead for more members than it needs is dropped.
        """
        if not self.in_one_cycle or not any(each.pending.ahead for each in self.open_reservations().values()):
            return False
        if not any(map(self.is_complete, self.placements)):
            return True
        self.drop_unasked()
        return False
