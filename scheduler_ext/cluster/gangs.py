"""Groups of pods that start together: who is a member, and what is missing of each. Pods without GPUs count, too."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from proto.kubernetes.objects import CoschedulingPodGroup, ObjectReference, Pod, PodGroup, VolcanoPodGroup
from scheduler_ext.membership import BOUND_ALONE, MOST_MEMBERS, GroupSource, membership_of
from scheduler_ext.requests import GpuRequest, RequestSettings, pod_key, readable_request

SOURCES: Mapping[type[PodGroup], GroupSource] = {
    PodGroup: GroupSource.KUBERNETES,
    CoschedulingPodGroup: GroupSource.COSCHEDULING,
    VolcanoPodGroup: GroupSource.VOLCANO,
}
_VERSIONS = {GroupSource.KUBERNETES: "v1beta1", GroupSource.COSCHEDULING: "v1alpha1", GroupSource.VOLCANO: "v1beta1"}
STAND_IN = "#"
"""It separates a group's name and a number in the key of a pod that does not exist yet. No UID has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingMember:
    """A member for which GPUs are to be found. One that does not exist yet is like the member that came first, and has
    its `request` with the UID of that.
    """

    uid: str
    pod: Pod
    request: GpuRequest

    @property
    def own_request(self) -> GpuRequest:
        """Returns the request with the member's own UID."""
        return self.request if self.request.uid == self.uid else replace(self.request, uid=self.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A group as far as it is known. `size` pods start together; of them `settled` need no GPUs any more: they are
    bound, have ended or request none. `waiting` are the others that exist, by UID.
    """

    group: str
    source: GroupSource
    size: int
    settled: int = 0
    waiting: Mapping[str, Pod] = field(default_factory=dict)
    nodes: Sequence[str] = ()
    """The nodes of the members that have their GPUs."""
    object: PodGroup | None = None
    """The group's object, where the API server has one and it may be read."""

    @property
    def reference(self) -> ObjectReference | None:
        """Returns the reference to the group's object that events need; None without an object."""
        if self.object is None:
            return None
        metadata, version = self.object.metadata, f"{self.source}/{_VERSIONS[self.source]}"
        return ObjectReference(
            api_version=version, kind="PodGroup", name=metadata.name, namespace=metadata.namespace, uid=metadata.uid
        )

    @property
    def needed(self) -> int:
        """Returns the number of members that must get GPUs together."""
        return max(self.size - self.settled, 0)

    def queue(self) -> Sequence[tuple[str, Pod]]:
        """Returns the members that wait, with their UIDs, in the order of kube-scheduler's queue."""
        return sorted(self.waiting.items(), key=lambda each: _order(each[1]))

    def missing(
        self, member: MissingMember, placed: Iterable[str], settings: RequestSettings
    ) -> Sequence[MissingMember]:
        """Returns the members for which GPUs are to be found: `member`, those that wait and are not `placed`, and as
        many like it as do not exist yet. There may be more than are needed: some may then be left out.

        Members that may not go to the same nodes as `member` are left to kube-scheduler's questions about them: nothing
        shows their nodes before.
        """
        placed = set(placed)
        found = {member.uid: member}
        for uid, pod in self.queue():
            if uid in found or uid in placed:
                continue
            if not _goes_where(pod, member.pod):
                placed.add(uid)
            elif (request := readable_request(pod, settings)) is not None:
                found[uid] = MissingMember(uid=uid, pod=pod, request=request)
        absent = (f"{self.group}{STAND_IN}{number}" for number in count())
        while len(found) + len(placed) < self.needed:
            if (uid := next(absent)) not in placed:
                found[uid] = replace(member, uid=uid)
        return tuple(found.values())


def _goes_where(pod: Pod, other: Pod) -> bool:
    """Returns whether both pods may go to the same nodes, as far as their templates show it."""
    return _constraints(pod) == _constraints(other)


def _constraints(pod: Pod) -> tuple[object, ...]:
    spec = pod.spec
    by_node = None if spec.affinity is None else spec.affinity.node_affinity
    # The admission plugin DefaultTolerationSeconds gives every pod the same further ones.
    return spec.node_selector, by_node, set(spec.tolerations), spec.topology_spread_constraints


@dataclass(frozen=True, slots=True)
class _Member:
    group: str
    source: GroupSource
    size: int
    settled: bool
    """True if it needs no GPUs any more."""
    node: str
    """The node where it has its GPUs; empty without them."""


class Gangs:
    """Members by group, and the objects of groups."""

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._groups: dict[str, dict[str, _Member]] = {}
        self._objects: dict[GroupSource, dict[str, PodGroup]] = {}

    def apply_pod(self, pod: Pod, *, with_gpus: bool) -> None:
        uid, found = pod_key(pod), membership_of(pod)
        self.remove_pod(uid)
        if found is None or len(self._groups.get(found.group, ())) >= MOST_MEMBERS:
            return
        settled = bool(pod.spec.node_name) or pod.has_ended or not with_gpus
        node = pod.spec.node_name if with_gpus and not pod.has_ended else ""
        member = _Member(found.group, found.source, found.size, settled, node)
        self._members[uid] = self._groups.setdefault(found.group, {})[uid] = member

    def remove_pod(self, uid: str) -> None:
        known = self._members.pop(uid, None)
        if known is not None:
            del self._groups[known.group][uid]
            if not self._groups[known.group]:
                del self._groups[known.group]

    def clear(self) -> None:
        """Forgets all members, before all pods are applied."""
        self._members.clear()
        self._groups.clear()

    def replace_objects(self, kind: type[PodGroup], objects: Iterable[PodGroup]) -> None:
        self._objects[SOURCES[kind]] = {_key(each): each for each in objects}

    def apply_object(self, group: PodGroup) -> bool:
        """Returns whether the group's object is new, or what its members need has changed."""
        known = self._objects.setdefault(SOURCES[type(group)], {})
        before, known[_key(group)] = known.get(_key(group)), group
        return before is None or before.spec != group.spec

    def remove_object(self, group: PodGroup) -> None:
        self._objects.get(SOURCES[type(group)], {}).pop(_key(group), None)

    def tried_with(self, uid: str) -> Collection[str]:
        """Returns the pod, with the other members of a group that kube-scheduler tries as a whole."""
        known = self._members.get(uid)
        return (uid,) if known is None or known.source in BOUND_ALONE else tuple(self._groups[known.group])

    def nodes(self, group: str) -> Sequence[str]:
        """Returns the nodes of the group's members that have their GPUs."""
        return [each.node for each in self._groups.get(group, {}).values() if each.node]

    def of(self, pod: Pod, pending: Mapping[str, Pod]) -> Gang | None:
        """Returns the pod's group; None if it has none, or one of unknown size. `pending` are the pods with GPUs that
        have no node, by UID.
        """
        found = membership_of(pod)
        if found is None:
            return None
        members = self._groups.get(found.group, {})
        found_object = self._objects.get(found.source, {}).get(found.group)
        size = found.size if found_object is None else found_object.spec.together
        if not 1 < size <= MOST_MEMBERS:
            return None
        known = {uid: pending[uid] for uid, each in members.items() if not each.settled and uid in pending}
        waiting = {uid: each for uid, each in known.items() if each.metadata.deletion_timestamp is None}
        settled = sum(1 for each in members.values() if each.settled)
        return Gang(
            group=found.group,
            source=found.source,
            size=size,
            settled=settled,
            waiting=waiting,
            nodes=[each.node for each in members.values() if each.node],
            object=found_object,
        )


def _key(group: PodGroup) -> str:
    return f"{group.metadata.namespace}/{group.metadata.name}"


def _order(pod: Pod) -> tuple[int, str, str]:
    return -(pod.spec.priority or 0), pod.metadata.creation_timestamp or "", pod.metadata.name
