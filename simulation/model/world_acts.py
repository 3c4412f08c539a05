"""Acts of the processes in the small world, and what each changes there."""

from collections.abc import Iterator

from proto.kubernetes.objects import Lease
from scheduler_ext.leadership.election import after_another_had_the_turn, after_lease
from scheduler_ext.leadership.turn import after_seen, lease_seconds
from scheduler_ext.settings import SLACK_SECONDS
from simulation.model.process import TICK_SECONDS, Act, ActKind, Local, Machines, Processes
from simulation.model.search import WorldStep
from simulation.model.world import (
    FOR_EVER,
    Flight,
    SmallWorld,
    host,
    identity,
    lease,
    process_name,
    without_receiver,
)

WorldSteps = Iterator[WorldStep[SmallWorld]]


class WorldActs:
    def __init__(self, machines: Machines, gpus: int, pods: int) -> None:
        self.machines = machines
        self.processes = Processes(machines, gpus, pods)
        seconds = machines.settings.binding_seconds
        self.lease_seconds = lease_seconds(seconds)
        self.write_ticks = round(seconds / TICK_SECONDS)
        self.given_up_ticks = self.write_ticks + round(SLACK_SECONDS / TICK_SECONDS)
        """Ticks for which a Binding that was given up may still be carried out."""

    def local(self, world: SmallWorld, r: int) -> Local:
        return self.processes.locals[world.replicas[r].process]

    def act(self, world: SmallWorld, r: int, act: Act) -> tuple[SmallWorld, str]:
        """Returns the world after the act, and the node that was answered."""
        process, reaction = self.processes.after(world.replicas[r].process, act)
        after = world.put(r, process=process)
        if reaction.sent is not None:
            left = self.write_ticks + self.given_up_ticks
            flight = Flight(act.pod, reaction.sent, by=r, sender=r, age=0, left=left, slow=False)
            after = after.fly([*after.flights, flight])
        return after, reaction.node

    def saw_leader(self, world: SmallWorld, r: int) -> SmallWorld:
        shown = lease(host(world.leader), FOR_EVER)
        return world.put(r, standing=after_lease(world.replicas[r].standing, shown, identity(r), 0.0))

    def looked_up(self, world: SmallWorld, r: int) -> SmallWorld:
        """The replica has read the Binding Lease."""
        turn, standing = after_seen(world.replicas[r].turn, self.binding_lease(world), 0.0), world.replicas[r].standing
        if turn.holder != process_name(r):
            standing = after_another_had_the_turn(standing)
        return world.put(r, turn=turn, standing=standing)

    def binding_lease(self, world: SmallWorld) -> Lease:
        return lease(world.holder, self.lease_seconds)

    def given_up_by(self, world: SmallWorld, r: int, pod: int) -> SmallWorld:
        """The sender gives the pod's Binding up."""
        if not any(flight.sender == r and flight.pod == pod for flight in world.flights):
            return world
        return without_receiver(world, r, self.given_up_ticks, pods=(pod,)).put(r, open=self.given_up_ticks)

    def saw_pod(self, world: SmallWorld, r: int) -> SmallWorld:
        first, *rest = world.replicas[r].news or ()
        act = Act(ActKind.REMOVED if first.is_gone else ActKind.SEEN, first.pod, first.shown)
        lag = world.replicas[r].lag if rest else -1
        return self.act(world, r, act)[0].put(r, news=tuple(rest), lag=lag)
