"""The small world as a value: an API server, and two replicas of the extender, each beside a kube-scheduler.

All times are relative to now: ticks of five seconds, or seconds in the values of `leadership`.
"""

from collections.abc import Container
from dataclasses import replace
from typing import Any, NamedTuple

from proto.kubernetes.objects import Lease, LeaseSpec, ObjectMeta
from scheduler_ext.leadership.election import ElectionStanding, Role
from scheduler_ext.leadership.turn import Turn, after_seen
from scheduler_ext.verbs.state_machine import BindEvent
from simulation.model.objects import WAITING, ModelPod

REPLICAS = (0, 1)
LONG_AGO = 2
"""Ticks since a renewal after which it permits nothing."""
FOR_EVER = 10**9
"""The duration of kube-scheduler's Lease: a replica that does not see the change goes on to believe."""
_NOW, _OLD = "now", "old"
"""The renewal of a Lease that is the last one, and any other."""
_GONE = "gone"
"""A process that was replaced, as the holder of the Binding Lease."""


class Flight(NamedTuple):
    """A Binding on its way, sent `by` a replica. `sender` is None if nothing waits for its answer."""

    pod: int
    binding: ModelPod
    by: int
    sender: int | None
    age: int
    left: int
    """Ticks for which the API server may still carry it out."""
    slow: bool
    """Whether time may pass before it is answered."""
    answer: BindEvent | None = None
    """The answer on its way back."""


class News(NamedTuple):
    pod: int
    shown: ModelPod
    is_gone: bool


class Replica(NamedTuple):
    process: int
    standing: ElectionStanding
    turn: Turn
    since_renewal: int
    """Ticks since the last renewal of the Binding Lease was sent."""
    open: int
    """Ticks until no Binding that was given up can be carried out."""
    is_catching_up: bool
    """True if it holds the Binding Lease, and learns what was sent before."""
    chosen: tuple[str, ...]
    """The node to which kube-scheduler will bind each pod."""
    news: tuple[News, ...] | None
    """The changes that the watch has not shown yet; None until pods are listed."""
    lag: int
    """Ticks for which the watch has been late; -1 if it is in time."""

    @property
    def leads(self) -> bool:
        return self.standing.role is Role.LEADER and self.news is not None


class SmallWorld(NamedTuple):
    pods: tuple[ModelPod | None, ...]
    """The pods as the API server has them; None for a deleted pod."""
    flights: tuple[Flight, ...]
    leader: int
    """The holder of kube-scheduler's Lease."""
    holder: str
    """The holder of the Binding Lease; empty if it is free."""
    begun: int
    """Pods that anything has happened to. They are alike, so they begin in their order."""
    replicas: tuple[Replica, ...]
    faults: int
    """Faults that may still happen."""

    def put(self, r: int, **changes: Any) -> "SmallWorld":
        replica = self.replicas[r]._replace(**changes)
        return self._replace(replicas=(replica, self.replicas[1]) if r == 0 else (self.replicas[0], replica))

    def fly(self, flights: list[Flight]) -> "SmallWorld":
        """Returns the world with these Bindings on their way, in whatever order."""
        return self._replace(flights=tuple(sorted(flights, key=repr)) if len(flights) > 1 else tuple(flights))

    def choose(self, r: int, pod: int, node: str) -> "SmallWorld":
        chosen = self.replicas[r].chosen
        return self.put(r, chosen=(*chosen[:pod], node, *chosen[pod + 1 :]))


def first_world(pods: int, faults: int, process: int) -> SmallWorld:
    """Both replicas know all pods, and the first leads."""
    first = Replica(
        process=process,
        standing=ElectionStanding(role=Role.LEADER, holder=host(0), renewed=_NOW, expires_at=FOR_EVER),
        turn=Turn(holder=process_name(0), renewed=_NOW, version="v"),
        since_renewal=LONG_AGO,
        open=0,
        is_catching_up=False,
        chosen=("",) * pods,
        news=(),
        lag=-1,
    )
    second = first._replace(standing=replace(first.standing, role=Role.FOLLOWER))
    return SmallWorld(
        pods=(WAITING,) * pods,
        flights=(),
        leader=0,
        holder=process_name(0),
        begun=0,
        replicas=(first, second),
        faults=faults,
    )


def identity(r: int) -> str:
    return f"host-{r}"


def host(r: int) -> str:
    """Returns the identity of the kube-scheduler beside the replica."""
    return f"{identity(r)}_scheduler"


def process_name(r: int) -> str:
    return str(r)


def lease(holder: str, seconds: int) -> Lease:
    spec = LeaseSpec(
        holder_identity=holder or None, renew_time=_NOW if holder else None, lease_duration_seconds=seconds
    )
    return Lease(metadata=ObjectMeta(resource_version="v"), spec=spec)


def knows_leader(replica: Replica) -> bool:
    return replica.standing.renewed == _NOW


def knows_holder(world: SmallWorld, replica: Replica) -> bool:
    return (replica.turn.holder, replica.turn.renewed) == ((world.holder, _NOW) if world.holder else ("", ""))


def lease_written(world: SmallWorld, r: int, holder: str, seconds: int, *, since_renewal: int) -> SmallWorld:
    """The replica has written the Binding Lease: what the other has seen of it is old."""
    after = world._replace(holder=holder)
    for each in REPLICAS:
        turn = after.replicas[each].turn
        if turn.renewed == _NOW:
            after = after.put(each, turn=replace(turn, renewed=_OLD))
    turn = after_seen(after.replicas[r].turn, lease(holder, seconds), 0.0)
    return after.put(r, turn=turn, since_renewal=since_renewal)


def leader_changed(world: SmallWorld) -> SmallWorld:
    after = world._replace(leader=1 - world.leader)
    for r in REPLICAS:
        after = after.put(r, standing=replace(after.replicas[r].standing, renewed=_OLD))
    return after


def pod_changed(world: SmallWorld, pod: int, becomes: ModelPod | None) -> SmallWorld:
    """The API server has another pod, and each watch has news."""
    news = News(pod, becomes or world.pods[pod] or WAITING, is_gone=becomes is None)
    after = world._replace(pods=(*world.pods[:pod], becomes, *world.pods[pod + 1 :]))
    for r in REPLICAS:
        waiting = after.replicas[r].news
        if waiting is not None:
            after = after.put(r, news=(*waiting, news))
    return after


def killed(world: SmallWorld, r: int, process: int, *, open_ticks: int, given_up: int) -> SmallWorld:
    """Puts another process in its place, which knows nothing yet. What was sent may be carried out for a while."""
    return without_receiver(world, r, given_up, pods=range(len(world.pods))).put(
        r,
        process=process,
        standing=ElectionStanding(),
        turn=Turn(),
        since_renewal=LONG_AGO,
        open=open_ticks,
        is_catching_up=False,
        news=None,
        lag=-1,
    )


def without_receiver(world: SmallWorld, r: int, given_up: int, *, pods: Container[int]) -> SmallWorld:
    """The replica gives its Bindings of these pods up: they may still be carried out for so many ticks."""
    flights = []
    for flight in world.flights:
        if flight.by != r or flight.pod not in pods:
            flights.append(flight)
        elif not flight.answer:
            flights.append(flight._replace(sender=None, left=min(flight.left, given_up)))
    return world.fly(flights)


def renamed(world: SmallWorld, r: int) -> SmallWorld:
    """The process has another name than the one before, which may hold the Binding Lease."""
    turn = world.replicas[1 - r].turn
    if turn.holder == process_name(r):
        world = world.put(1 - r, turn=replace(turn, holder=_GONE))
    holder = _GONE if world.holder == process_name(r) else world.holder
    return world._replace(holder=holder).put(r, chosen=("",) * len(world.pods))
