"""Pods that the API server has deleted though their containers may still run. They hold their GPUs until their node's
daemon reports their end. Where the daemon reports nothing (HAMi's, or one that does not see the host's control groups)
they hold them for a time.
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
"""How long a pod deleted by force keeps its GPUs if the node's daemon does not report the end of its containers.

kubelet then kills them with their grace period, 30 s unless the pod names another.
"""


@dataclass(frozen=True, slots=True)
class _Orphan:
    deleted_at: int
    """The resourceVersion of its end."""
    until: float
    """The time when it stops counting if the daemon reports nothing, in monotonic seconds; infinite if only the daemon
    knows it.
    """


@dataclass(slots=True)
class Orphans:
    _on: dict[str, dict[str, _Orphan]] = field(default_factory=dict)
    """The orphans by node and UID."""
    _nodes: dict[str, str] = field(default_factory=dict)
    """The node of each orphan, by UID."""
    _said: dict[str, Outliving] = field(default_factory=dict)
    """The last report of each node's daemon."""

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
        """Returns whether the pod is known only from a node's daemon."""
        node = self._nodes.get(uid)
        return node is not None and self._on[node][uid].until == inf

    def heard(self, node: Node) -> None:
        """Records the report of the node's daemon. An unreadable report counts as none."""
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
        """Forgets the report of a Node that is gone. Returns the pods that were on it, which are gone too."""
        self._said.pop(node, None)
        return list(self._on.get(node, ()))

    def listed(self, version: int) -> None:
        """Lowers the versions at which pods ended to that of the list: a restored API server gives versions again that
        it gave before.
        """
        for mine in self._on.values() if version else ():
            mine.update({uid: replace(each, deleted_at=min(each.deleted_at, version)) for uid, each in mine.items()})

    def nodes(self) -> Collection[str]:
        """Returns the nodes whose daemons report something."""
        return tuple(self._said)

    def ended(self, node: str) -> list[str]:
        """Returns the pods of the node that its daemon reports as ended."""
        said = self._said.get(node)
        if said is None:
            return []
        mine = self._on.get(node, {})
        return [uid for uid, orphan in mine.items() if said.has_ended(uid, orphan.deleted_at)]

    def expired(self, now: float) -> list[str]:
        """Returns the pods of silent nodes whose time is over. For one known only from the daemon the time begins with
        the silence.
        """
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
        """Yields the UIDs of pods that still run after their deletion, and what each holds, as the node's daemon
        reports it.
        """
        said = self._said.get(node)
        for uid, held in said.pods.items() if said is not None else ():
            if held:
                footprints = {gpu: Footprint(*amounts) for gpu, amounts in held.items()}
                yield uid, Holding(node=node, namespace="", quota_class=QuotaClass(), footprints=footprints)
