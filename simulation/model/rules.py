"""The rules of the small world: what may happen next, and what must hold.

An event that nothing delays happens before the next tick, in any order. A fault is whatever costs: a delay, a lost or
doubled message, a process that is killed, a change of the leader, a deleted pod.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from proto.kubernetes.objects import Lease
from scheduler_ext.leadership.election import Role, after_another_had_the_turn, after_catching_up, after_lease
from scheduler_ext.leadership.turn import after_seen, is_anothers, lease_seconds
from scheduler_ext.settings import SLACK_SECONDS
from scheduler_ext.verbs.state_machine import BindEffect, BindEvent
from simulation.model.objects import WAITING, fits, overbooked
from simulation.model.process import TICK_SECONDS, Act, ActKind, Local, Machines, Processes
from simulation.model.search import WorldStep
from simulation.model.world import (
    FOR_EVER,
    LONG_AGO,
    REPLICAS,
    Flight,
    SmallWorld,
    first_world,
    host,
    identity,
    killed,
    knows_holder,
    knows_leader,
    leader_changed,
    lease,
    lease_written,
    pod_changed,
    process_name,
    renamed,
    without_receiver,
)

WorldSteps = Iterator[WorldStep[SmallWorld]]

_MOST_LAG = 2
"""Ticks for which a watch may show nothing: less than a written Binding counts from memory."""
_READS = (BindEffect.DECIDE, BindEffect.READ)
_ASKS = (BindEffect.GET_PERMISSION, BindEffect.GET_PERMISSION_LATER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The size of a world. Each pod requests `gpus` whole GPUs."""

    pods: int
    gpus: int
    faults: int


class WorldRules:
    def __init__(self, bounds: Bounds, machines: Machines | None = None) -> None:
        self._bounds, self._machines = bounds, machines or Machines()
        self.processes = Processes(self._machines, bounds.gpus, bounds.pods)
        seconds = self._machines.settings.binding_seconds
        self._lease_seconds = lease_seconds(seconds)
        self._write = round(seconds / TICK_SECONDS)
        self._given_up = self._write + round(SLACK_SECONDS / TICK_SECONDS)
        """Ticks for which a Binding that was given up may still be carried out."""

    def start(self) -> SmallWorld:
        pods = (WAITING,) * self._bounds.pods
        process, _ = self.processes.after(self.processes.begin(), Act(ActKind.LISTED, every=pods))
        return first_world(self._bounds.pods, self._bounds.faults, process)

    def wrong(self, world: SmallWorld) -> str:
        return overbooked(world.pods)

    def is_over(self, world: SmallWorld) -> bool:
        """Every pod is bound, deleted or refused by the leader because it does not fit, and nothing is under way."""
        leading = [r for r in REPLICAS if world.replicas[r].leads]
        if not leading or world.flights or any(replica.news for replica in world.replicas):
            return False
        if any(state.bind or state.looks for r in REPLICAS for state in self._local(world, r)):
            return False
        if any(state.left for state in self._local(world, leading[0])):
            return False
        waiting = [pod for pod, seen in enumerate(world.pods) if seen == WAITING]
        process = world.replicas[leading[0]].process
        asked = (self.processes.after(process, Act(ActKind.FILTER, pod)) for pod in waiting)
        return not (waiting and fits(world.pods, self._bounds.gpus)) and not any(answer.node for _, answer in asked)

    def steps(self, world: SmallWorld) -> WorldSteps:
        for label, after, fault in self._steps(world):
            yield WorldStep(label, self._reduced(after), fault)

    def _steps(self, world: SmallWorld) -> WorldSteps:
        for r in REPLICAS:
            yield from self._leadership(world, r)
            yield from self._schedules(world, r)
            yield from self._binds(world, r)
            yield from self._watches(world, r)
        for at in range(len(world.flights)):
            yield from self._flies(world, at)
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
                world = self._saw_leader(world, r)
            if replica.lag >= 0 and replica.standing.role is not Role.LEADER:
                world = world.put(r, lag=-1)
            while world.replicas[r].news and world.replicas[r].lag < 0:
                world = self._saw_pod(world, r)
            replica = world.replicas[r]
            if replica.standing.role is not Role.LEADER and any(replica.chosen):
                world = world.put(r, chosen=("",) * len(world.pods))
            if replica.turn.holder != process_name(r):
                turn = replica.turn
                if not knows_holder(world, replica):
                    turn = after_seen(turn, self._binding_lease(world), 0.0)
                is_ours = turn.holder == process_name(r)
                world = world.put(r, turn=turn, asked=LONG_AGO, open=replica.open if is_ours else 0)
        return world

    # Who leads

    def _leadership(self, world: SmallWorld, r: int) -> WorldSteps:
        replica = world.replicas[r]
        if not knows_leader(replica):
            yield WorldStep(f"{r} sees that {world.leader} leads", self._saw_leader(world, r))
        if not knows_holder(world, replica):
            yield WorldStep(f"{r} sees that {world.holder} holds the Binding Lease", self._looked_up(world, r))
        if replica.standing.role is Role.TAKING_OVER:
            yield from self._takes_over(world, r)
        elif replica.is_catching_up:
            yield from self._catches_up(world, r)
        elif replica.standing.role is Role.FOLLOWER and replica.turn.holder == process_name(r) == world.holder:
            waits = any(flight.sender == r for flight in world.flights)
            if not waits and replica.open == 0:
                free = lease_written(world, r, "", self._lease_seconds, asked=LONG_AGO)
                yield WorldStep(f"{r} releases the Binding Lease", free)

    def _takes_over(self, world: SmallWorld, r: int) -> WorldSteps:
        if world.replicas[r].is_catching_up:
            yield from self._catches_up(world, r)
            return
        turn = after_seen(world.replicas[r].turn, self._binding_lease(world), 0.0)
        if self._machines.free_at(turn, process_name(r)) <= 0.0:
            if is_anothers(turn, process_name(r)):
                world, _ = self._acts(world, r, Act(ActKind.OVERTAKEN))
            taken = lease_written(world, r, process_name(r), self._lease_seconds, asked=0)
            yield WorldStep(f"{r} takes the Binding Lease", taken.put(r, is_catching_up=True))

    def _catches_up(self, world: SmallWorld, r: int) -> WorldSteps:
        local = self._local(world, r)
        for pod, state in enumerate(local):
            if state.left:
                after, _ = self._acts(world, r, Act(ActKind.RECOVERED, pod, world.pods[pod]))
                yield WorldStep(f"{r} looks for what was sent for pod {pod} before", after)
        if not any(state.left or state.bind for state in local):
            after, _ = self._acts(world, r, Act(ActKind.LEADING))
            after, _ = self._acts(after, r, Act(ActKind.LISTED, every=world.pods))
            standing = after_catching_up(after.replicas[r].standing)
            if after.replicas[r].turn.holder != process_name(r):
                standing = after_another_had_the_turn(standing)
            after = after.put(r, standing=standing, is_catching_up=False, news=(), lag=-1)
            yield WorldStep(f"{r} drops its reservations and lists all pods", after)

    def _saw_leader(self, world: SmallWorld, r: int) -> SmallWorld:
        shown = lease(host(world.leader), FOR_EVER)
        return world.put(r, standing=after_lease(world.replicas[r].standing, shown, identity(r), 0.0))

    def _looked_up(self, world: SmallWorld, r: int) -> SmallWorld:
        """The replica has read the Binding Lease."""
        turn, standing = after_seen(world.replicas[r].turn, self._binding_lease(world), 0.0), world.replicas[r].standing
        if turn.holder != process_name(r):
            standing = after_another_had_the_turn(standing)
        return world.put(r, turn=turn, standing=standing)

    def _binding_lease(self, world: SmallWorld) -> Lease:
        return lease(world.holder, self._lease_seconds)

    # kube-scheduler, and the binds that it waits for

    def _schedules(self, world: SmallWorld, r: int) -> WorldSteps:
        replica = world.replicas[r]
        if not replica.leads:
            return
        local = self._local(world, r)
        for pod in range(min(world.begun + 1, len(world.pods))):
            node = replica.chosen[pod]
            if local[pod].bind is not None:
                continue
            if node:
                act = Act(ActKind.BIND, pod, node=node)
                yield from self._goes_on(f"{r} binds pod {pod} to {node}", world.choose(r, pod, ""), r, act)
            elif world.pods[pod] == WAITING:
                after, node = self._acts(world, r, Act(ActKind.FILTER, pod))
                after = after.choose(r, pod, node)._replace(begun=max(world.begun, pod + 1))
                yield WorldStep(f"{r} answers for pod {pod}: {node or 'it fits nowhere'}", after)

    def _binds(self, world: SmallWorld, r: int) -> WorldSteps:
        for pod, state in enumerate(self._local(world, r)):
            bind = state.bind
            if bind is not None and bind.question in _ASKS:
                yield from self._permitted(f"{r} goes on with pod {pod}", world, r, pod)
            if bind is not None and bind.ends == 0:
                after = self._given_up_by(world, r, pod)
                yield from self._goes_on(f"{r}: the time for pod {pod} is up", after, r, Act(ActKind.CUT_OFF, pod))
            if any(look.ends == 0 for look in state.looks):
                after, _ = self._acts(world, r, Act(ActKind.LOOKED, pod, world.pods[pod]))
                yield WorldStep(f"{r} looks whether pod {pod} was bound", after)

    def _goes_on(self, label: str, world: SmallWorld, r: int, act: Act, *, fault: bool = False) -> WorldSteps:
        """The act, and what its bind does at once: it reads the pod, and sends its Binding where it may."""
        after, _ = self._acts(world, r, act)
        bind = self._local(after, r)[act.pod].bind
        if bind is not None and bind.question in _READS:
            yield from self._goes_on(label, after, r, Act(ActKind.READ, act.pod, after.pods[act.pod]), fault=fault)
            if after.faults:
                less, unreadable = after._replace(faults=after.faults - 1), Act(ActKind.UNREADABLE, act.pod)
                yield from self._goes_on(f"{label}, and cannot read the pod", less, r, unreadable, fault=True)
        elif bind is not None and bind.question in _ASKS:
            yield from self._permitted(label, after, r, act.pod, fault=fault)
            if after.faults:
                yield WorldStep(f"{label}, not yet permitted", after._replace(faults=after.faults - 1), fault=True)
        else:
            yield WorldStep(label, after, fault)

    def _permitted(self, label: str, world: SmallWorld, r: int, pod: int, *, fault: bool = False) -> WorldSteps:
        """A Binding begins if the Lease was renewed shortly before; else the Lease is renewed first."""
        replica, forbidden = world.replicas[r], Act(ActKind.FORBIDDEN, pod)
        if not replica.leads:
            yield WorldStep(f"{label}: it does not lead", self._acts(world, r, forbidden)[0], fault)
            return
        if replica.asked < LONG_AGO:
            yield WorldStep(f"{label}: sent", self._acts(world, r, Act(ActKind.PERMITTED, pod))[0], fault)
        if replica.asked == 0:
            return
        if world.holder != process_name(r):
            yield WorldStep(
                f"{label}: the Lease is lost", self._acts(self._looked_up(world, r), r, forbidden)[0], fault
            )
            return
        renewed = lease_written(world, r, process_name(r), self._lease_seconds, asked=0)
        yield WorldStep(f"{label}: renewed and sent", self._acts(renewed, r, Act(ActKind.PERMITTED, pod))[0], fault)
        if world.faults:
            unknown = renewed._replace(faults=world.faults - 1).put(r, asked=replica.asked)
            yield WorldStep(f"{label}: no answer to the renewal", self._acts(unknown, r, forbidden)[0], fault=True)

    def _given_up_by(self, world: SmallWorld, r: int, pod: int) -> SmallWorld:
        """The sender gives the pod's Binding up."""
        if not any(flight.sender == r and flight.pod == pod for flight in world.flights):
            return world
        return without_receiver(world, r, self._given_up, pods=(pod,)).put(r, open=self._given_up)

    # The API server and its watch

    def _flies(self, world: SmallWorld, at: int) -> WorldSteps:
        flight = world.flights[at]
        without = world.fly([*world.flights[:at], *world.flights[at + 1 :]])
        name = f"the Binding of pod {flight.pod} to {flight.binding.node}"
        r = flight.sender
        if flight.answer is not None and r is not None:
            act = Act(ActKind.ANSWERED, flight.pod, event=flight.answer)
            yield from self._goes_on(f"{r} gets the answer to {name}: {flight.answer}", without, r, act)
        elif flight.answer is None:
            after, answer = self._carried_out(without, flight)
            if r is None:
                yield WorldStep(f"{name} arrives late", after)
            elif flight.slow:
                yield WorldStep(f"{name} arrives", after.fly([*after.flights, flight._replace(answer=answer)]))
            else:
                act = Act(ActKind.ANSWERED, flight.pod, event=answer)
                yield from self._goes_on(f"{name} is carried out and answered: {answer}", after, r, act)
        if r is not None and flight.age >= self._write:
            act = Act(ActKind.ANSWERED, flight.pod, event=BindEvent.LOST)
            after = self._given_up_by(world, r, flight.pod)
            yield from self._goes_on(f"{r} waits no longer for an answer to {name}", after, r, act)

    def _carried_out(self, world: SmallWorld, flight: Flight) -> tuple[SmallWorld, BindEvent]:
        there = world.pods[flight.pod]
        if there is None:
            return world, BindEvent.VOID
        if there.node:
            return world, BindEvent.CONFLICT
        return pod_changed(world, flight.pod, flight.binding), BindEvent.TAKEN

    def _watches(self, world: SmallWorld, r: int) -> WorldSteps:
        news = world.replicas[r].news
        if news:
            word = "is gone" if news[0].is_gone else f"is on {news[0].shown.node}"
            yield WorldStep(f"{r} sees that pod {news[0].pod} {word}", self._saw_pod(world, r))

    def _saw_pod(self, world: SmallWorld, r: int) -> SmallWorld:
        first, *rest = world.replicas[r].news or ()
        act = Act(ActKind.REMOVED if first.is_gone else ActKind.SEEN, first.pod, first.shown)
        lag = world.replicas[r].lag if rest else -1
        return self._acts(world, r, act)[0].put(r, news=tuple(rest), lag=lag)

    # Time

    def _may_tick(self, world: SmallWorld) -> bool:
        """Whether all that nothing delays has happened, and something waits for its time."""
        waits = bool(world.flights)
        for flight in world.flights:
            if flight.sender is not None and (not flight.slow or flight.age >= self._write):
                return False
        for r, replica in enumerate(world.replicas):
            if replica.news and replica.lag == _MOST_LAG:
                return False
            for state in self._local(world, r):
                bind = state.bind
                if bind is not None and (bind.question != BindEffect.SEND or bind.ends == 0):
                    return False
                if any(look.ends == 0 for look in state.looks):
                    return False
                waits |= bool(bind or state.looks or (state.reservation and replica.leads))
            is_held = self._machines.free_at(replica.turn, process_name(r)) > 0.0
            waits |= replica.lag >= 0 or replica.open > 0 or (is_held and replica.standing.role is Role.TAKING_OVER)
        return waits

    def _ticked(self, world: SmallWorld) -> SmallWorld:
        flights = [flight._replace(age=flight.age + 1, left=flight.left - 1) for flight in world.flights]
        for r in REPLICAS:
            world, _ = self._acts(world, r, Act(ActKind.TICK))
            replica = world.replicas[r]
            world = world.put(
                r,
                turn=replace(replica.turn, ends_at=max(replica.turn.ends_at - TICK_SECONDS, 0.0)),
                asked=min(replica.asked + 1, LONG_AGO),
                open=max(replica.open - 1, 0),
                lag=replica.lag + 1 if 0 <= replica.lag < _MOST_LAG else -1,
            )
        return world.fly([flight for flight in flights if flight.left > 0])

    # Faults. Those of a bind's own questions are with the bind.

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
        files = self.processes.files(replica.process)
        again = self.processes.begin(files)
        open_ticks = self._given_up if files else 0
        next_process = killed(world, r, again, open_ticks=open_ticks, given_up=self._given_up)
        yield WorldStep(f"{r} is killed and starts again", next_process, fault=True)
        other = killed(world, r, self.processes.begin(), open_ticks=0, given_up=self._given_up)
        yield WorldStep(f"{r} is replaced by a process of another name", renamed(other, r), fault=True)
        for pod, state in enumerate(self._local(world, r)):
            if replica.chosen[pod]:
                yield WorldStep(f"the kube-scheduler of {r} gives pod {pod} up", world.choose(r, pod, ""), fault=True)
            if any(look.ends == 0 for look in state.looks):
                after, _ = self._acts(world, r, Act(ActKind.LOOKED, pod, event=BindEvent.STOPPED))
                yield WorldStep(f"{r} cannot look whether pod {pod} was bound", after, fault=True)

    # The processes

    def _local(self, world: SmallWorld, r: int) -> Local:
        return self.processes.locals[world.replicas[r].process]

    def _acts(self, world: SmallWorld, r: int, act: Act) -> tuple[SmallWorld, str]:
        """Returns the world after the act, and the node that was answered."""
        process, reaction = self.processes.after(world.replicas[r].process, act)
        after = world.put(r, process=process)
        if reaction.sent is not None:
            left = self._write + self._given_up
            flight = Flight(act.pod, reaction.sent, by=r, sender=r, age=0, left=left, slow=False)
            after = after.fly([*after.flights, flight])
        return after, reaction.node
