"""What members of groups hold before their bind begins, in the records; and what they held until their lease ended."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from proto.kubernetes.objects import Pod
from scheduler_ext.cluster.group_attempt import GroupAttempt, Placement
from scheduler_ext.cluster.records import PodRecord, Records
from scheduler_ext.requests import GpuRequest

LONGEST_PERMIT_SECONDS = 900.0
"""kube-scheduler lets no pod wait longer for Permit (maxTimeout of its framework)."""


@dataclass(slots=True)
class GroupPromises:
    """The members' reservations for which no bind has begun."""

    _records: Records = field(compare=False)

    def of(self, this: GroupAttempt) -> dict[str, PodRecord]:
        found = ((uid, self._records.reserved(uid)) for uid in this.promised)
        return {uid: record for uid, record in found if record is not None and not record.pending.binding}

    def narrow(self, this: GroupAttempt, placements: Sequence[Placement]) -> None:
        """Keeps them on the nodes of these placements only, where they are on such nodes."""
        for record in self.of(this).values():
            kept = [node for node in record.nodes if any(node in each.offered for each in placements)]
            if 0 < len(kept) < len(record.nodes):
                self._records.put(record.narrowed(kept))

    def extend(self, members: Iterable[PodRecord], until: float) -> None:
        for record in members:
            if record.until < until:
                self._records.put(replace(record, until=until))

    def charge(self, members: Iterable[PodRecord], namespace: str) -> None:
        """Charges them to the quotas of this namespace; to none if it is empty."""
        for record in members:
            if record.namespace != namespace:
                self._records.put(replace(record, namespace=namespace))

    def drop_unasked(self, this: GroupAttempt) -> None:
        """Drops what was decided ahead for members about which kube-scheduler sent no question."""
        for uid, record in self.of(this).items():
            if record.pending.ahead and not this.knows(uid):
                self._records.release(uid)

    def is_cut_short(self, this: GroupAttempt) -> bool:
        """Returns whether kube-scheduler, which goes on to another pod, has left out members that the group needs. What
        was decided ahead for more members than it needs is dropped.
        """
        if not this.in_one_cycle or not any(each.pending.ahead for each in self.of(this).values()):
            return False
        if not any(map(this.is_complete, this.placements)):
            return True
        self.drop_unasked(this)
        return False


@dataclass(slots=True)
class LapsedPromises:
    """The reservations of pods that may still wait in Permit, though their lease has ended."""

    _by_uid: dict[str, PodRecord] = field(default_factory=dict)

    def __contains__(self, uid: str) -> bool:
        return uid in self._by_uid

    def __getitem__(self, uid: str) -> PodRecord:
        return self._by_uid[uid]

    def add(self, records: Iterable[PodRecord]) -> None:
        self._by_uid.update((record.uid, record) for record in records)

    def of(self, group: str) -> dict[str, PodRecord]:
        return {uid: each for uid, each in self._by_uid.items() if each.pending.group == group}

    def waiting(self, group: str, now: float) -> Sequence[tuple[str, str, tuple[Pod, GpuRequest]]]:
        """Returns UID, node and request of those that may wait at that time."""
        return [
            (uid, each.node, each.pending.waits)
            for uid, each in self.of(group).items()
            if each.pending.waits and now < each.until + LONGEST_PERMIT_SECONDS
        ]

    def forget(self, uid: str) -> None:
        self._by_uid.pop(uid, None)

    def take(self, group: str) -> dict[str, PodRecord]:
        """Forgets those of the group, and returns them."""
        taken = self.of(group)
        self._by_uid = {uid: each for uid, each in self._by_uid.items() if uid not in taken}
        return taken

    def keep_only(self, uids: Collection[str]) -> None:
        self._by_uid = {uid: each for uid, each in self._by_uid.items() if uid in uids}
