"""One attempt of kube-scheduler at a group of pods, and the placements that it simulates before it binds one.

With a topology constraint kube-scheduler simulates the whole group in each domain: it sends one question about each
member with the nodes of the domain. It binds the best placement without another question (Kubernetes 1.37,
`schedule_one_podgroup.go`). So what was reserved in each domain stays until the first bind shows the chosen one.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from scheduler_ext.cluster.membership import MOST_MEMBERS
from scheduler_ext.cluster.records import PodRecord


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
    placements: list[Placement] = field(default_factory=list)
    """The placement of the last question comes last."""
    promised: set[str] = field(default_factory=set)
    needed: int = 0
    """The number of members that must get GPUs together; 0 if it is unknown."""
    in_one_cycle: bool = False
    """True if kube-scheduler sends its questions about all members without other pods in between."""
    refused: bool = False
    """True if a member was refused, no placement has room for all, and none was bound since."""
    preempts: bool = False
    """True if kube-scheduler evicts others for the member that was refused: then coscheduling rejects no member."""
    rejected: dict[str, PodRecord] = field(default_factory=dict)
    """The members whose reservations had lapsed when the member was refused."""
    again: bool = False
    """True if members wait in Permit whose earlier reservation was dropped, and none was bound since."""

    def is_over(self, uid: str, offered: AbstractSet[str]) -> bool:
        """Returns whether a question about the member among these nodes begins the next attempt."""
        met = (each for each in self.placements if not each.offered.isdisjoint(offered))
        members = sum(len(each.members) for each in self.placements)
        return members >= MOST_MEMBERS or any(uid in each.members for each in met)

    def place(self, uid: str, offered: AbstractSet[str]) -> None:
        """Adds the question to the placement with which it shares nodes. It joins several such placements to one."""
        met = [each for each in self.placements if not each.offered.isdisjoint(offered)]
        apart = [each for each in self.placements if each.offered.isdisjoint(offered)]
        ours = met[0] if met else Placement(set(), set())
        for each in met[1:]:
            ours.offered |= each.offered
            ours.members |= each.members
            ours.refused |= each.refused
            ours.placed |= each.placed
        ours.offered |= offered
        ours.members.add(uid)
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

    def knows(self, uid: str) -> bool:
        """Returns whether a question about the member was part of this attempt."""
        return any(uid in each.members for each in self.placements)

    def has_alternatives(self, uid: str) -> bool:
        """Returns whether several placements were simulated with the member."""
        return sum(uid in each.members for each in self.placements) > 1
