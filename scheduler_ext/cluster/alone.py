"""One node alone: what would be free on it if some of its pods were gone."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import inf

from proto.devices import DeviceUUID
from scheduler_ext.cluster.accounting import Footprint
from scheduler_ext.cluster.quotas import Quotas
from scheduler_ext.cluster.records import PodRecord
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import NodeUsage, Quota, Snapshot
from scheduler_ext.cluster.usage import left_of, usage_of


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAlone:
    """The node as the ledger had it at one moment: a long search sees the same node throughout.

    `used` is the sum of `held`, by pod UID. `kept` is the room that counts beside it, by pod UID. `quotas` are those of
    one namespace.
    """

    node: RegisteredNode
    used: Mapping[DeviceUUID, Footprint]
    held: Mapping[str, PodRecord]
    kept: Mapping[str, PodRecord]
    quotas: Quotas

    def usage(self, gone: Collection[str], *, at_least: float = -inf) -> NodeUsage:
        """Computes the usage as if these pods held nothing, and room were kept only for others of at least this
        priority.
        """
        name = self.node.name
        freed = [self.held[uid].on(name) for uid in gone if uid in self.held]
        others = [record.on(name) for uid, record in self.held.items() if uid not in gone]
        kept = [room.gpus for uid, room in self.kept.items() if room.priority >= at_least and uid not in gone]
        return usage_of(self.node, left_of(self.used, freed, others), others, kept)

    def without(self, gone: Collection[str], namespace: str, *, priority: int) -> Snapshot:
        """Returns this node, and this namespace's quotas, as a pod of this priority would find them if these pods were
        gone. Room kept for pods of lower priority is free for it.
        """
        usage = self.usage(gone, at_least=priority)
        return Snapshot(nodes={self.node.name: usage}, quotas={namespace: self.quotas_of(namespace, gone)})

    def quotas_of(self, namespace: str, gone: Collection[str]) -> tuple[Quota, ...]:
        """Returns the quotas as if these pods held nothing."""
        return self.quotas.of(namespace, (self.held[uid] for uid in gone if uid in self.held))
