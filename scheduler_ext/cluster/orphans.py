"""Pods that the API server has no more though their containers may run: they hold their GPUs until their node's daemon
says that they ended. Where the daemon says nothing (HAMi's, or one that does not see the host's control groups), for a
time.
"""

from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from math import inf

from proto.annotations.errors import AnnotationError
from proto.annotations.keys import NODE_OUTLIVING
from proto.annotations.outliving_pods import Outliving, decode_outliving
from proto.kubernetes.objects import Node
from scheduler_ext.cluster.accounting import Footprint
from scheduler_ext.cluster.holdings import Holding
from scheduler_ext.quota_class import QuotaClass

ORPHAN_SECONDS = 120.0
"""For which a pod deleted by force keeps its GPUs where the node's daemon does not say when its containers have ended.

kubelet kills them then, and gives them their grace period, 30 s unless the pod says otherwise.
"""


@dataclass(frozen=True, slots=True)
class _Orphan:
    deleted_at: int
    """The resourceVersion of its end."""
    until: float
    """In monotonic seconds, where the daemon says nothing; infinite where it is known from the daemon alone."""


@dataclass(slots=True)
class Orphans:
    _on: dict[str, dict[str, _Orphan]] = field(default_factory=dict)
    """By node and UID."""
    _nodes: dict[str, str] = field(default_factory=dict)
    """By UID."""
    _said: dict[str, Outliving] = field(default_factory=dict)
    """What each node's daemon says."""

    def uids(self) -> AbstractSet[str]:
        return self._nodes.keys()

    def add(self, uid: str, node: str, deleted_at: int, until: float) -> None:
        self.drop(uid)
        self._nodes[uid] = node
        self._on.setdefault(node, {})[uid] = _Orphan(deleted_at, until)

    def drop(self, uid: str) -> None:
        node = self._nodes.pop(uid, None)
        if node is not None:
            del self._on[node][uid]
            if not self._on[node]:
                del self._on[node]

    def is_claimed(self, uid: str) -> bool:
        """Whether only a node's daemon says that there is such a pod."""
        node = self._nodes.get(uid)
        return node is not None and self._on[node][uid].until == inf

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
        return list(self._on.get(node, ()))

    def nodes(self) -> Collection[str]:
        """Those whose daemons say something."""
        return tuple(self._said)

    def ended(self, node: str) -> list[str]:
        """Those of the node that its daemon says have ended."""
        said = self._said.get(node)
        if said is None:
            return []
        mine = self._on.get(node, {})
        return [uid for uid, orphan in mine.items() if said.has_ended(uid, orphan.deleted_at)]

    def expired(self, now: float) -> list[str]:
        """Those of silent nodes whose time has come. It begins with the silence for one known from the daemon alone."""
        due: list[str] = []
        for node in self._on.keys() - self._said.keys():
            mine = self._on[node]
            due += [uid for uid, orphan in mine.items() if orphan.until <= now]
            begun = {
                uid: replace(orphan, until=now + ORPHAN_SECONDS) for uid, orphan in mine.items() if orphan.until == inf
            }
            mine.update(begun)
        return due

    def held(self, node: str) -> Iterator[tuple[str, Holding]]:
        """What the node's daemon says that such pods hold, by UID."""
        said = self._said.get(node)
        for uid, held in said.pods.items() if said is not None else ():
            if held:
                footprints = {gpu: Footprint(*amounts) for gpu, amounts in held.items()}
                yield uid, Holding(node=node, namespace="", quota_class=QuotaClass(), footprints=footprints)
