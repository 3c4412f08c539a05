"""The rules of who leads: both replicas follow the Lease of kube-scheduler, and take and release the Binding Lease."""

from scheduler_ext.leadership.election import Role, after_another_had_the_turn, after_catching_up
from scheduler_ext.leadership.turn import after_seen, is_anothers
from simulation.model.process import Act, ActKind
from simulation.model.search import WorldStep
from simulation.model.world import (
    LONG_AGO,
    SmallWorld,
    knows_holder,
    knows_leader,
    lease_written,
    process_name,
)
from simulation.model.world_acts import WorldActs, WorldSteps


class LeadRules:
    def __init__(self, acts: WorldActs) -> None:
        self._acts = acts

    def steps(self, world: SmallWorld, r: int) -> WorldSteps:
        replica = world.replicas[r]
        if not knows_leader(replica):
            yield WorldStep(f"{r} sees that {world.leader} leads", self._acts.saw_leader(world, r))
        if not knows_holder(world, replica):
            yield WorldStep(f"{r} sees that {world.holder} holds the Binding Lease", self._acts.looked_up(world, r))
        if replica.standing.role is Role.TAKING_OVER:
            yield from self._takes_over(world, r)
        elif replica.is_catching_up:
            yield from self._catches_up(world, r)
        elif replica.standing.role is Role.FOLLOWER and replica.turn.holder == process_name(r) == world.holder:
            waits = any(flight.sender == r for flight in world.flights)
            if not waits and replica.open == 0:
                free = lease_written(world, r, "", self._acts.lease_seconds, since_renewal=LONG_AGO)
                yield WorldStep(f"{r} releases the Binding Lease", free)

    def _takes_over(self, world: SmallWorld, r: int) -> WorldSteps:
        if world.replicas[r].is_catching_up:
            yield from self._catches_up(world, r)
            return
        turn = after_seen(world.replicas[r].turn, self._acts.binding_lease(world), 0.0)
        if self._acts.machines.free_at(turn, process_name(r)) <= 0.0:
            if is_anothers(turn, process_name(r)):
                world, _ = self._acts.act(world, r, Act(ActKind.OVERTAKEN))
            taken = lease_written(world, r, process_name(r), self._acts.lease_seconds, since_renewal=0)
            yield WorldStep(f"{r} takes the Binding Lease", taken.put(r, is_catching_up=True))

    def _catches_up(self, world: SmallWorld, r: int) -> WorldSteps:
        local = self._acts.local(world, r)
        for pod, state in enumerate(local):
            if state.left:
                after, _ = self._acts.act(world, r, Act(ActKind.RECOVERED, pod, world.pods[pod]))
                yield WorldStep(f"{r} looks for what was sent for pod {pod} before", after)
        if not any(state.left or state.bind for state in local):
            after, _ = self._acts.act(world, r, Act(ActKind.LEADING))
            after, _ = self._acts.act(after, r, Act(ActKind.LISTED, every=world.pods))
            standing = after_catching_up(after.replicas[r].standing)
            if after.replicas[r].turn.holder != process_name(r):
                standing = after_another_had_the_turn(standing)
            after = after.put(r, standing=standing, is_catching_up=False, news=(), lag=-1)
            yield WorldStep(f"{r} drops its reservations and lists all pods", after)
