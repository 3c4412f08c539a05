"""Pods that the API server has no more though their containers may run: they hold their GPUs until their node's daemon
says that they ended. Where the daemon says nothing (HAMi's, or one that does not see the host's control groups), for a
time.
"""

from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from proto.annotations.errors import AnnotationError
from proto.annotations.keys import NODE_OUTLIVING
from proto.annotations.outliving_pods import Outliving, decode_outliving
from proto.kubernetes.objects import Node
from scheduler_ext.cluster.accounting import Footprint
from scheduler_ext.cluster.holdings import Holding
from scheduler_ext.quota_class import QuotaClass


@dataclass(frozen=True, slots=True)
class _Orphan:
    node: str
    deleted_at: int
    """The resourceVersion of its end."""
    until: float
    """In monotonic seconds, where the daemon says nothing."""


@dataclass(slots=True)
class Orphans:
    _orphans: dict[str, _Orphan] = field(default_factory=dict)
    _said: dict[str, Outliving] = field(default_factory=dict)
    """What each node's daemon says."""

    def uids(self) -> AbstractSet[str]:
        return self._orphans.keys()

    def add(self, uid: str, node: str, deleted_at: int, until: float) -> None:
        self._orphans[uid] = _Orphan(node, deleted_at, until)

    def drop(self, uid: str) -> None:
        self._orphans.pop(uid, None)

    def heard(self, node: Node) -> None:
        """What cannot be read is as if it were not said."""
        value = node.metadata.annotations.get(NODE_OUTLIVING, "")
        try:
            said = decode_outliving(value) if value else None
        except AnnotationError:
            said = None
        if said is None:
            self._said.pop(node.metadata.name, None)
        else:
            self._said[node.metadata.name] = said

    def forget(self, node: str) -> list[str]:
        """There is no such Node any more: those that were on it."""
        self._said.pop(node, None)
        return [uid for uid, orphan in self._orphans.items() if orphan.node == node]

    def nodes(self) -> Collection[str]:
        """Those whose daemons say something."""
        return tuple(self._said)

    def ended(self, node: str) -> list[str]:
        """Those of the node that its daemon says have ended."""
        said = self._said.get(node)
        if said is None:
            return []
        mine = ((uid, orphan) for uid, orphan in self._orphans.items() if orphan.node == node)
        return [uid for uid, orphan in mine if said.has_ended(uid, orphan.deleted_at)]

    def expired(self, now: float) -> list[str]:
        """Those of silent nodes whose time has come."""
        due = ((uid, orphan) for uid, orphan in self._orphans.items() if orphan.until <= now)
        return [uid for uid, orphan in due if orphan.node not in self._said]

    def held(self, node: str) -> Iterator[tuple[str, Holding]]:
        """What the node's daemon says that such pods hold, by UID."""
        said = self._said.get(node)
        for uid, held in said.pods.items() if said is not None else ():
            if held:
                footprints = {gpu: Footprint(*amounts) for gpu, amounts in held.items()}
                yield uid, Holding(node=node, namespace="", quota_class=QuotaClass(), footprints=footprints)
