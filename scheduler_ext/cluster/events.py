"""Events of the cluster, and their effects outside: values only."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from proto.devices import PodShares
from proto.kubernetes.objects import Notice, Object, ObjectReference, Pod
from scheduler_ext.cluster.accounting import Footprints
from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.cluster.records import NO_OTHERS, PodRecord
from scheduler_ext.cluster.waiting_pods import Nomination
from scheduler_ext.requests import GpuRequest

T = TypeVar("T", bound=Object)


class ClusterEvent(Struct, frozen=True):
    """An event has no time of its own: `step` gets the time with it."""


class OwnEvent(ClusterEvent, frozen=True):
    """An event of this process alone: it has no effect outside."""


# Events that the API server shows: of nodes, pods, resource quotas and disruption budgets.


class Listed(ClusterEvent, Generic[T], frozen=True):
    """All objects of this kind."""

    kind: type[T]
    objects: Sequence[T]
    version: int = 0
    """The resourceVersion of the list; 0 if it is unknown. It is lower than before if the API server lost history."""


class Applied(ClusterEvent, frozen=True):
    """An object was added or modified."""

    object: Object


class Removed(ClusterEvent, frozen=True):
    object: Object


class PodWatch(ClusterEvent, frozen=True):
    """The API server shows what becomes of pods, or does so no longer. It may still carry out Bindings then."""

    works: bool


class PodRead(ClusterEvent, frozen=True):
    """A pod was read, and may be newer than the watch. Only the index follows it; the watch shows what it holds."""

    pod: Pod


# Questions of kube-scheduler, and decisions.


class FilterBegan(OwnEvent, frozen=True):
    """A question about the pod: earlier reservations for it or its group are free.

    What kube-scheduler reserved for it among other nodes in the same attempt at its group stays. `offered` are the
    nodes of the question. `needed` members of its group must get GPUs together; 0 if their number is unknown.
    """

    pod: Pod
    offered: Collection[str] = ()
    needed: int = 0


class Decided(OwnEvent, frozen=True):
    """A decision: the pod gets `shares` on `node`. They are reserved until the pod is seen bound or dropped, or `until`
    passes.

    `others` is reserved on further nodes until the bind names one. With its `request` the pod gets them again if the
    lease ends while the pod waits in Permit.
    """

    uid: str
    pod: Pod
    node: str
    shares: PodShares
    until: float
    others: Mapping[str, PodShares] = NO_OTHERS
    request: GpuRequest | None = None
    ahead: bool = False
    """True if the question was about another member of its group."""


class BackfillAllowed(OwnEvent, frozen=True):
    """The times, in monotonic seconds, by which pods have to end that may fill nodes that are set aside, by node.
    `evicts` is true if pods of lower priority are evicted for others.
    """

    backfill_until: Mapping[str, float]
    evicts: bool = False


class GroupUndone(OwnEvent, frozen=True):
    """The end of a search in which not all members of a group fit. Of these pods the reservations are as they were
    `before`, or there are none.
    """

    uids: Collection[str]
    before: Sequence[PodRecord]


class PodRefused(OwnEvent, frozen=True):
    """The pod fits nowhere. Without a `request` it could not be read."""

    pod: Pod
    request: GpuRequest | None


class Explained(OwnEvent, frozen=True):
    """The last decision about the pod, in the words of its event."""

    uid: str
    words: str


class NodeChosen(OwnEvent, frozen=True):
    """kube-scheduler binds the pod to this node. What is reserved there stays so until then; elsewhere nothing is.

    One event does both. A lease that ended between two events would leave a bind without its GPUs.
    """

    uid: str
    node: str
    until: float


class BindBegan(OwnEvent, frozen=True):
    """The pod's reservation stays until then."""

    uid: str
    until: float


class LockHeld(OwnEvent, frozen=True):
    """A bind gave up waiting for this lock of the node, which expires at `until`."""

    node: str
    lock: str
    until: float


class Dropped(OwnEvent, frozen=True):
    """The pod's reservation is free."""

    uid: str


class BindingSent(OwnEvent, frozen=True):
    """From now on a Binding of this bind, by its number, may be carried out. The pod is tied to its node."""

    uid: str
    attempt: int


class BindStep(OwnEvent, frozen=True):
    """A step of a bind, for the pod's history only."""

    uid: str
    words: str


class Requeued(OwnEvent, frozen=True):
    """The extender made kube-scheduler try the waiting pod again."""

    uid: str


class WaitEnded(OwnEvent, frozen=True):
    """The pod waits no more."""

    uid: str


# Other GPU memory for running pods.


class GrowthBegan(OwnEvent, frozen=True):
    """The pod is about to get more: from now on that counts."""

    pod: Pod
    counts: Footprints


class GrowthSent(OwnEvent, frozen=True):
    """From this resourceVersion on the pod's own annotations count it. Without one the pod does not get more by what
    was sent.
    """

    uid: str
    version: int = 0


# Evictions.


class Proposed(ClusterEvent, frozen=True):
    """The answer of `/preempt`: by node, the pods that kube-scheduler may evict for the pod."""

    pod: Pod
    victims_of: Mapping[str, Collection[str]]


class RoomWanted(OwnEvent, frozen=True):
    """The pod shall go to this node. Room that was kept for it before is free."""

    nomination: Nomination


class RoomKept(OwnEvent, frozen=True):
    """Room is kept for a pod. It replaces the room kept before."""

    room: PodRecord


class RoomsGivenUp(OwnEvent, frozen=True):
    """Room kept for these pods is free."""

    uids: Collection[str]


class NominationsEnded(OwnEvent, frozen=True):
    """The pods are no longer nominated: no room is kept for them. A replica that does not lead any more ends those for
    which it has evicted others.
    """

    uids: Collection[str]


class LeadershipGained(OwnEvent, frozen=True):
    """Other replicas may have bound pods meanwhile: only what may have been sent from here stays reserved."""


class TimePassed(OwnEvent, frozen=True):
    """Nothing else happened."""


class Effect(Struct, frozen=True):
    """An action of the shell, which performs it at once."""


def unperformed(*kinds: type[Effect]) -> Callable[[Effect], None]:
    """Returns what a caller passes to `step` that has nothing to do for effects of these kinds. Any other is an
    error.
    """

    def perform(effect: Effect) -> None:
        if not isinstance(effect, kinds):
            raise TypeError(f"nothing performs {type(effect).__name__}")

    return perform


class Wake(Effect, frozen=True):
    """A task of the shell may go on."""


class Freed(Wake, frozen=True):
    """There may be room for more pods: look at waiting ones."""


class Wished(Wake, frozen=True):
    """A pod waits for a decision about other GPU memory."""


class Changed(Wake, frozen=True):
    """Wake tasks that wait for a change of this node or pod; without a name for any change."""

    name: str | PodName | None = None


class RecordEvent(Effect, frozen=True):
    """An event for the owner of an object."""

    subject: ObjectReference
    notice: Notice


class Nominated(Effect, frozen=True):
    """kube-scheduler nominated this pod for this node: find the room that the pod gets there, and keep it."""

    pod: Pod
    node: str
