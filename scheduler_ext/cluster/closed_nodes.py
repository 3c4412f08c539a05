"""Nodes that are closed to some pods: they are set aside for others, or their kubelets have refused such pods.

The annotations of pods that have waited for long name their nodes. They are all that is known of it, so it is the same
after a restart and on every replica.

Kubelet refuses a pod for the place of its CPUs and devices. Such a pod has failed for good, and its controller makes
another one, about which kubelet decides the same: for a while the node gets no other pod like it. What the extender
expects of the Topology Manager comes first (`decide.alignment`); this counts where it does not know enough.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from proto.annotations.errors import readable
from proto.annotations.keys import SET_ASIDE
from proto.annotations.set_aside import SetAside, decode_set_aside
from proto.kubernetes.objects import TOPOLOGY_AFFINITY_ERROR, Pod, Resources
from scheduler_ext.cluster.budgets import Budgets
from scheduler_ext.cluster.records import NO_GPUS, PodRecord
from scheduler_ext.membership import group_of
from scheduler_ext.requests import ResourceNames, pod_key

SET_ASIDE_NODE = "NodeSetAside"
"""Reason for a node that is set aside for another pod."""
NONE_CLOSED: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAsideFor:
    """A pod that waits, and its node."""

    uid: str
    pod: str
    """Namespace and name."""
    group: str
    """Namespace and name of its group, which shares its nodes; empty without one."""
    priority: int
    preempts: bool
    """False if no pod may be evicted for it."""
    aside: SetAside

    @property
    def refusal(self) -> str:
        return f"{SET_ASIDE_NODE}: set aside for {self.owner}"

    @property
    def owner(self) -> str:
        return f"group {self.group}" if self.group else f"pod {self.pod}"


@dataclass(slots=True)
class SetAsides:
    """Pods by UID. A group's nodes are for each of its members."""

    _names: ResourceNames = field(compare=False)
    now: float = field(default=-inf, compare=False)
    """The time of the last event in monotonic seconds."""
    evicts: bool = False
    """True if pods of lower priority are evicted for others."""
    backfill_until: Mapping[str, float] = field(default_factory=dict)
    """The time, in monotonic seconds, by which a pod has to end that may fill a node, by node. Without one none may."""
    _by_uid: dict[str, SetAsideFor] = field(default_factory=dict)
    _changed: set[str] = field(default_factory=set, compare=False)

    def __len__(self) -> int:
        return len(self._by_uid)

    def every(self) -> Mapping[str, SetAsideFor]:
        """Returns the pods, by UID; the next event changes it."""
        return self._by_uid

    def nodes(self) -> Collection[str]:
        return {each.aside.node for each in self._by_uid.values()}

    def on(self, node: str) -> SetAsideFor | None:
        """Returns the first pod for which the node is set aside."""
        return next((each for each in self._by_uid.values() if each.aside.node == node), None)

    def apply(self, pod: Pod) -> None:
        uid = pod_key(pod)
        if SET_ASIDE not in pod.metadata.annotations and uid not in self._by_uid:
            return
        found = _read(pod, self._names)
        if self._by_uid.get(uid) == found:
            return
        self.remove(uid)
        if found is not None:
            self._by_uid[uid] = found
            self._changed.add(found.aside.node)

    def remove(self, uid: str) -> None:
        known = self._by_uid.pop(uid, None)
        if known is not None:
            self._changed.add(known.aside.node)

    def keep_only(self, uids: Collection[str]) -> None:
        for uid in self._by_uid.keys() - uids:
            self.remove(uid)

    def take_changed(self) -> set[str]:
        """Returns the nodes where something has changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def closed_to(self, pod: Pod, budgets: Budgets | None = None) -> Mapping[str, str]:
        """Returns the nodes that are set aside for others, with the reason. A pod of higher priority may go there; so
        may one that ends in time or that may be evicted, as far as `budgets` are known.
        """
        if not self._by_uid:
            return NONE_CLOSED
        own, group, first = self._by_uid.get(pod_key(pod)), group_of(pod), dict[str, SetAsideFor]()
        for each in self._by_uid.values():
            first.setdefault(each.aside.node, each)
        priority, ends = pod.spec.priority or 0, self.now + pod.spec.lasts
        gives_way = self.evicts and not (budgets is not None and budgets.protects(pod))
        closed: dict[str, str] = {}
        for node, waiting in first.items():
            is_own = (bool(group) and group == waiting.group) or (own is not None and own.aside.node == node)
            if is_own or ends <= self.backfill_until.get(node, -inf) or priority > waiting.priority:
                continue
            if not (gives_way and waiting.preempts and priority < waiting.priority):
                closed[node] = waiting.refusal
        return closed


def _read(pod: Pod, names: ResourceNames) -> SetAsideFor | None:
    """Returns None for a pod that has, or needs, no node set aside. What cannot be read sets none aside."""
    spec, metadata = pod.spec, pod.metadata
    if spec.node_name or pod.has_ended or metadata.deletion_timestamp is not None or not names.are_requested_by(pod):
        return None
    aside = last_set_aside(pod)
    if aside is None or not aside.node:
        return None
    return SetAsideFor(
        uid=pod_key(pod),
        pod=f"{metadata.namespace or 'default'}/{metadata.name}",
        group=group_of(pod),
        priority=spec.priority or 0,
        preempts=spec.preemption_policy != "Never",
        aside=aside,
    )


def last_set_aside(pod: Pod) -> SetAside | None:
    """Returns what the pod's annotation has, also if it is over; None without one that can be read."""
    return readable(decode_set_aside, pod.metadata.annotations.get(SET_ASIDE))


REFUSED_ALIKE = "KubeletRefusedAlike"
"""Reason for a node whose kubelet refused such a pod."""
FIRST_SECONDS = 30.0
LONGEST_SECONDS = 300.0
"""kube-scheduler itself tries a pod that waits again after so long."""
MOST_REMEMBERED = 1000
_REASONS = (TOPOLOGY_AFFINITY_ERROR, "SMTAlignmentError")
"""The second one is of the CPU manager's option `full-pcpus-only`."""

_Shape = tuple[object, ...]
_REFUSED = (
    f"{REFUSED_ALIKE}: kubelet has refused a pod with the same requests there for the place of its CPUs ({{}}); the "
    f"node is tried again when a pod with GPUs leaves it, at the latest after {LONGEST_SECONDS:.0f} s"
)


class _Refusal(NamedTuple):
    pod: str
    """Namespace and name of the last one."""
    until: float
    pause: float


@dataclass(slots=True)
class KubeletRefusals:
    """The last refusal by requests and node. The pause is twice as long if the next try is refused too."""

    now: float = -inf
    """The time of the last event in monotonic seconds."""
    _refusals: dict[tuple[_Shape, str], _Refusal] = field(default_factory=dict)

    def dropped(self, held: PodRecord | None, ended: Pod | None = None) -> None:
        """A pod holds GPUs no longer: its kubelet refused it, or there is more room on its node."""
        if held is None or held.gpus is NO_GPUS:
            return
        if ended is not None and ended.status.reason in _REASONS:
            self._add(ended)
        elif not held.is_pending:
            self._open(held.node)

    def _add(self, pod: Pod) -> None:
        key = _shape(pod), pod.spec.node_name
        known = self._refusals.get(key)
        # Pods that were sent together are refused together.
        if known is not None and self.now < known.until:
            return
        self._refusals = {each: one for each, one in self._refusals.items() if self.now < one.until + LONGEST_SECONDS}
        pause = min(2 * known.pause, LONGEST_SECONDS) if key in self._refusals and known else FIRST_SECONDS
        if key in self._refusals or len(self._refusals) < MOST_REMEMBERED:
            self._refusals[key] = _Refusal(pod.full_name, self.now + pause, pause)

    def _open(self, node: str) -> None:
        for key, one in self._refusals.items():
            if key[1] == node:
                self._refusals[key] = one._replace(until=min(one.until, self.now))

    def closed_to(self, pod: Pod) -> Mapping[str, str]:
        """Returns the nodes that would refuse the pod, with the reason."""
        if not self._refusals:
            return NONE_CLOSED
        shape = _shape(pod)
        return {
            node: _REFUSED.format(one.pod)
            for (refused, node), one in self._refusals.items()
            if refused == shape and self.now < one.until
        }


def _shape(pod: Pod) -> _Shape:
    """Returns what kubelet looks at."""
    of_containers = [(each.is_sidecar, *_amounts(each.resources)) for each in pod.all_containers]
    return len(pod.spec.init_containers), *of_containers, _amounts(pod.spec.resources or Resources())


def _amounts(resources: Resources) -> tuple[object, ...]:
    return tuple(sorted(resources.limits.items())), tuple(sorted(resources.requests.items()))
