"""The rules of the small world: what may happen next, and what must hold.

An event that nothing delays happens before the next tick, in any order. A fault is whatever costs: a delay, a lost or
doubled message, a process that is killed, a change of the leader, a deleted pod.
"""

from dataclasses import dataclass, replace

from scheduler_ext.leadership.election import Role
from scheduler_ext.leadership.turn import after_seen
from scheduler_ext.verbs.state_machine import BindEffect, BindEvent
from simulation.model.bind_rules import BindRules
from simulation.model.lead_rules import LeadRules
from simulation.model.objects import WAITING, fits, overbooked
from simulation.model.process import TICK_SECONDS, Act, ActKind, Machines
from simulation.model.search import WorldStep
from simulation.model.world import (
    LONG_AGO,
    REPLICAS,
    SmallWorld,
    first_world,
    killed,
    knows_holder,
    knows_leader,
    leader_changed,
    pod_changed,
    process_name,
    renamed,
)
from simulation.model.world_acts import WorldActs, WorldSteps

_MOST_LAG = 2
"""Ticks for which a watch may show nothing: less than a written Binding counts from memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The size of a world. Each pod requests `gpus` whole GPUs."""

    pods: int
    gpus: int
    faults: int


class WorldRules:
    def __init__(self, bounds: Bounds, machines: Machines | None = None) -> None:
        self._bounds = bounds
        self._acts = WorldActs(machines or Machines(), bounds.gpus, bounds.pods)
        self._lead, self._bind = LeadRules(self._acts), BindRules(self._acts)

    def start(self) -> SmallWorld:
        pods = (WAITING,) * self._bounds.pods
        process, _ = self._acts.processes.after(self._acts.processes.begin(), Act(ActKind.LISTED, every=pods))
        return first_world(self._bounds.pods, self._bounds.faults, process)

    def wrong(self, world: SmallWorld) -> str:
        return overbooked(world.pods)

    def is_over(self, world: SmallWorld) -> bool:
        """Every pod is bound, deleted or refused by the leader because it does not fit, and nothing is under way."""
        leading = [r for r in REPLICAS if world.replicas[r].leads]
        if not leading or world.flights or any(replica.news for replica in world.replicas):
            return False
        if any(state.bind or state.looks for r in REPLICAS for state in self._acts.local(world, r)):
            return False
        if any(state.left for state in self._acts.local(world, leading[0])):
            return False
        waiting = [pod for pod, seen in enumerate(world.pods) if seen == WAITING]
        process = world.replicas[leading[0]].process
        answers = (self._acts.processes.after(process, Act(ActKind.FILTER, pod)) for pod in waiting)
        return not (waiting and fits(world.pods, self._bounds.gpus)) and not any(answer.node for _, answer in answers)

    def steps(self, world: SmallWorld) -> WorldSteps:
        for label, after, fault in self._steps(world):
            yield WorldStep(label, self._reduced(after), fault)

    def _steps(self, world: SmallWorld) -> WorldSteps:
        for r in REPLICAS:
            yield from self._lead.steps(world, r)
            yield from self._bind.schedules(world, r)
            yield from self._bind.binds(world, r)
            yield from self._watches(world, r)
        for at in range(len(world.flights)):
            yield from self._bind.flies(world, at)
        if self._may_tick(world):
            yield WorldStep("five seconds pass", self._ticked(world))
        if world.faults:
            yield from self._faults(world._replace(faults=world.faults - 1))

    def _reduced(self, world: SmallWorld) -> SmallWorld:
        """Returns the world after what follows at once, without what makes no difference any more.

        A replica that does not lead sees pods in time: before it leads it lists them all. One that begins to lead sees
        that in time, and one that does not hold the Binding Lease sees each renewal in time: later would only make it
        wait longer.
        """
        for r in REPLICAS:
            replica = world.replicas[r]
            if world.leader == r and not knows_leader(replica):
                world = self._acts.saw_leader(world, r)
            if replica.lag >= 0 and replica.standing.role is not Role.LEADER:
                world = world.put(r, lag=-1)
            while world.replicas[r].news and world.replicas[r].lag < 0:
                world = self._acts.saw_pod(world, r)
            replica = world.replicas[r]
            if replica.standing.role is not Role.LEADER and any(replica.chosen):
                world = world.put(r, chosen=("",) * len(world.pods))
            if replica.turn.holder != process_name(r):
                turn = replica.turn
                if not knows_holder(world, replica):
                    turn = after_seen(turn, self._acts.binding_lease(world), 0.0)
                is_ours = turn.holder == process_name(r)
                world = world.put(r, turn=turn, since_renewal=LONG_AGO, open=replica.open if is_ours else 0)
        return world

    def _watches(self, world: SmallWorld, r: int) -> WorldSteps:
        news = world.replicas[r].news
        if news:
            word = "is gone" if news[0].is_gone else f"is on {news[0].shown.node}"
            yield WorldStep(f"{r} sees that pod {news[0].pod} {word}", self._acts.saw_pod(world, r))

    def _may_tick(self, world: SmallWorld) -> bool:
        """Whether all that nothing delays has happened, and something waits for its time."""
        waits = bool(world.flights)
        for flight in world.flights:
            if flight.sender is not None and (not flight.slow or flight.age >= self._acts.write_ticks):
                return False
        for r, replica in enumerate(world.replicas):
            if replica.news and replica.lag == _MOST_LAG:
                return False
            for state in self._acts.local(world, r):
                bind = state.bind
                if bind is not None and (bind.question != BindEffect.SEND or bind.ends == 0):
                    return False
                if any(look.ends == 0 for look in state.looks):
                    return False
                waits |= bool(bind or state.looks or (state.reservation and replica.leads))
            is_held = self._acts.machines.free_at(replica.turn, process_name(r)) > 0.0
            waits |= replica.lag >= 0 or replica.open > 0 or (is_held and replica.standing.role is Role.TAKING_OVER)
        return waits

    def _ticked(self, world: SmallWorld) -> SmallWorld:
        flights = [flight._replace(age=flight.age + 1, left=flight.left - 1) for flight in world.flights]
        for r in REPLICAS:
            world, _ = self._acts.act(world, r, Act(ActKind.TICK))
            replica = world.replicas[r]
            world = world.put(
                r,
                turn=replace(replica.turn, ends_at=max(replica.turn.ends_at - TICK_SECONDS, 0.0)),
                since_renewal=min(replica.since_renewal + 1, LONG_AGO),
                open=max(replica.open - 1, 0),
                lag=replica.lag + 1 if 0 <= replica.lag < _MOST_LAG else -1,
            )
        return world.fly([flight for flight in flights if flight.left > 0])

    def _faults(self, world: SmallWorld) -> WorldSteps:
        """`world` has paid for one."""
        yield WorldStep("kube-scheduler's Lease changes its holder", leader_changed(world), fault=True)
        for pod in range(min(world.begun + 1, len(world.pods))):
            if world.pods[pod] is not None:
                gone = pod_changed(world, pod, None)._replace(begun=max(world.begun, pod + 1))
                yield WorldStep(f"pod {pod} is deleted", gone, fault=True)
        for at, flight in enumerate(world.flights):
            if flight.sender is not None and not flight.slow:
                name = f"the Binding of pod {flight.pod} to {flight.binding.node}"
                others = [*world.flights[:at], *world.flights[at + 1 :]]
                late, copy = flight._replace(slow=True), flight._replace(sender=None, slow=True)
                yield WorldStep(f"{name}, or its answer, is late", world.fly([*others, late]), fault=True)
                yield WorldStep(f"{name} is sent twice on its way", world.fly([*others, flight, copy]), fault=True)
        for r in REPLICAS:
            yield from self._faults_of(world, r)

    def _faults_of(self, world: SmallWorld, r: int) -> WorldSteps:
        replica = world.replicas[r]
        if replica.leads and replica.lag < 0:
            yield WorldStep(f"the watch of {r} is late", world.put(r, lag=0), fault=True)
        files = self._acts.processes.files(replica.process)
        again = self._acts.processes.begin(files)
        open_ticks = self._acts.given_up_ticks if files else 0
        next_process = killed(world, r, again, open_ticks=open_ticks, given_up=self._acts.given_up_ticks)
        yield WorldStep(f"{r} is killed and starts again", next_process, fault=True)
        other = killed(world, r, self._acts.processes.begin(), open_ticks=0, given_up=self._acts.given_up_ticks)
        yield WorldStep(f"{r} is replaced by a process of another name", renamed(other, r), fault=True)
        for pod, state in enumerate(self._acts.local(world, r)):
            if replica.chosen[pod]:
                yield WorldStep(f"the kube-scheduler of {r} gives pod {pod} up", world.choose(r, pod, ""), fault=True)
            if any(look.ends == 0 for look in state.looks):
                after, _ = self._acts.act(world, r, Act(ActKind.LOOKED, pod, event=BindEvent.STOPPED))
                yield WorldStep(f"{r} cannot look whether pod {pod} was bound", after, fault=True)
