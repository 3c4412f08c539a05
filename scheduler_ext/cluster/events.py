"""What happens to the cluster, and what has to be done about it outside: values only."""

from collections.abc import Collection, Mapping, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from proto.devices import PodShares
from proto.kubernetes.notices import Notice
from proto.kubernetes.objects import Object, ObjectReference, Pod
from scheduler_ext.cluster.facts import PodName
from scheduler_ext.cluster.kept import KeptRoom
from scheduler_ext.cluster.nominations import Nomination
from scheduler_ext.cluster.reservations import NO_OTHERS
from scheduler_ext.requests import GpuRequest

T = TypeVar("T", bound=Object)


class Event(Struct, frozen=True):
    """An event has no time: the machine is told when it happened."""


# What the API server shows: nodes, pods, resource quotas and disruption budgets.


class Listed(Event, Generic[T], frozen=True):
    """These objects of this kind, and no others."""

    kind: type[T]
    objects: Sequence[T]


class Applied(Event, frozen=True):
    """An object was added or modified."""

    object: Object


class Removed(Event, frozen=True):
    object: Object


class PodRead(Event, frozen=True):
    """A pod that was read may be newer than the watch: only its facts count, what it holds the watch shows."""

    pod: Pod


# What kube-scheduler asks, and what is decided.


class Asked(Event, frozen=True):
    """About the pod: what it, or its group, was promised before is free."""

    pod: Pod


class Decided(Event, frozen=True):
    """The pod gets `shares` on `node`. They are reserved until it is seen bound, dropped, or `until` passes.

    `others` is reserved on further nodes until the bind says which one it is. With its `request` the pod gets them
    again if the lease ends while the pod waits in Permit.
    """

    uid: str
    pod: Pod
    node: str
    shares: PodShares
    until: float
    others: Mapping[str, PodShares] = NO_OTHERS
    request: GpuRequest | None = None


class Refused(Event, frozen=True):
    """The pod fits nowhere; without a `request` because it cannot be read."""

    pod: Pod
    request: GpuRequest | None


class Explained(Event, frozen=True):
    """The last decision about the pod, in the words of its event."""

    uid: str
    words: str


class NodeChosen(Event, frozen=True):
    """Of the nodes on which the pod has something reserved, kube-scheduler has chosen this one."""

    uid: str
    node: str


class BindBegan(Event, frozen=True):
    """What is reserved for the pod stays reserved until then."""

    uid: str
    until: float


class Dropped(Event, frozen=True):
    """What is reserved for the pod is free."""

    uid: str


class BindingSent(Event, frozen=True):
    """From now on a Binding of this bind, by its number, may be carried out: the pod is tied to its node."""

    uid: str
    attempt: int


class BindStep(Event, frozen=True):
    """For the story alone."""

    uid: str
    words: str


class Nudged(Event, frozen=True):
    """kube-scheduler was made to look at the waiting pod again."""

    uid: str


class WaitEnded(Event, frozen=True):
    """The pod waits no more."""

    uid: str


# Evictions.


class Proposed(Event, frozen=True):
    """What `/preempt` answered: by node, whom kube-scheduler may evict for the pod."""

    pod: Pod
    victims_of: Mapping[str, Collection[str]]


class RoomWanted(Event, frozen=True):
    """The pod is to go to this node; room that was kept for it before is free."""

    nomination: Nomination


class RoomKept(Event, frozen=True):
    uid: str
    room: KeptRoom


class RoomShortened(Event, frozen=True):
    """What is kept for the pod is kept until then at the latest."""

    uid: str
    until: float


class RoomsGivenUp(Event, frozen=True):
    """What is kept for these pods is free."""

    uids: Collection[str]


class NominationEnded(Event, frozen=True):
    """The pod is no longer nominated: nothing is kept for it."""

    uid: str


class LeadershipGained(Event, frozen=True):
    """Others may have bound pods meanwhile: only what may have been sent from here stays reserved."""


class LeadershipLost(Event, frozen=True):
    """Another replica decides now, and knows nothing of whom we have evicted for."""


class TimePassed(Event, frozen=True):
    """Nothing else happened."""


class Effect(Struct, frozen=True):
    """What the shell does at once."""


class Freed(Effect, frozen=True):
    """There may be room for more pods: waiting ones are to be looked at."""


class Changed(Effect, frozen=True):
    """Wake those that wait for a change of this node or pod; without a name for any change."""

    name: str | PodName | None = None


class Tell(Effect, frozen=True):
    """An event for the owner of an object."""

    subject: ObjectReference
    notice: Notice


class Nominated(Effect, frozen=True):
    """kube-scheduler means this pod for this node: the room that it gets there is to be found and kept."""

    pod: Pod
    node: str
