"""The rules of binds: kube-scheduler requests them, and the API server carries out their Bindings."""

from scheduler_ext.verbs.state_machine import BindEffect, BindEvent
from simulation.model.objects import WAITING
from simulation.model.process import Act, ActKind
from simulation.model.search import WorldStep
from simulation.model.world import (
    LONG_AGO,
    Flight,
    SmallWorld,
    lease_written,
    pod_changed,
    process_name,
)
from simulation.model.world_acts import WorldActs, WorldSteps

_READS = (BindEffect.DECIDE, BindEffect.READ)
_ASKS = (BindEffect.GET_PERMISSION, BindEffect.GET_PERMISSION_LATER)


class BindRules:
    def __init__(self, acts: WorldActs) -> None:
        self._acts = acts

    def schedules(self, world: SmallWorld, r: int) -> WorldSteps:
        replica = world.replicas[r]
        if not replica.leads:
            return
        local = self._acts.local(world, r)
        for pod in range(min(world.begun + 1, len(world.pods))):
            node = replica.chosen[pod]
            if local[pod].bind is not None:
                continue
            if node:
                act = Act(ActKind.BIND, pod, node=node)
                yield from self._goes_on(f"{r} binds pod {pod} to {node}", world.choose(r, pod, ""), r, act)
            elif world.pods[pod] == WAITING:
                after, node = self._acts.act(world, r, Act(ActKind.FILTER, pod))
                after = after.choose(r, pod, node)._replace(begun=max(world.begun, pod + 1))
                yield WorldStep(f"{r} answers for pod {pod}: {node or 'it fits nowhere'}", after)

    def binds(self, world: SmallWorld, r: int) -> WorldSteps:
        for pod, state in enumerate(self._acts.local(world, r)):
            bind = state.bind
            if bind is not None and bind.question in _ASKS:
                yield from self._permitted(f"{r} goes on with pod {pod}", world, r, pod)
            if bind is not None and bind.ends == 0:
                after = self._acts.given_up_by(world, r, pod)
                yield from self._goes_on(f"{r}: the time for pod {pod} is up", after, r, Act(ActKind.CUT_OFF, pod))
            if any(look.ends == 0 for look in state.looks):
                after, _ = self._acts.act(world, r, Act(ActKind.LOOKED, pod, world.pods[pod]))
                yield WorldStep(f"{r} looks whether pod {pod} was bound", after)

    def _goes_on(self, label: str, world: SmallWorld, r: int, act: Act, *, fault: bool = False) -> WorldSteps:
        """Carries out the act, and what its bind does at once: it reads the pod, and sends its Binding where it may."""
        after, _ = self._acts.act(world, r, act)
        bind = self._acts.local(after, r)[act.pod].bind
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
            yield WorldStep(f"{label}: it does not lead", self._acts.act(world, r, forbidden)[0], fault)
            return
        if replica.since_renewal < LONG_AGO:
            yield WorldStep(f"{label}: sent", self._acts.act(world, r, Act(ActKind.PERMITTED, pod))[0], fault)
        if replica.since_renewal == 0:
            return
        if world.holder != process_name(r):
            yield WorldStep(
                f"{label}: the Lease is lost", self._acts.act(self._acts.looked_up(world, r), r, forbidden)[0], fault
            )
            return
        renewed = lease_written(world, r, process_name(r), self._acts.lease_seconds, since_renewal=0)
        yield WorldStep(f"{label}: renewed and sent", self._acts.act(renewed, r, Act(ActKind.PERMITTED, pod))[0], fault)
        if world.faults:
            unknown = renewed._replace(faults=world.faults - 1).put(r, since_renewal=replica.since_renewal)
            yield WorldStep(f"{label}: no answer to the renewal", self._acts.act(unknown, r, forbidden)[0], fault=True)

    def flies(self, world: SmallWorld, at: int) -> WorldSteps:
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
        if r is not None and flight.age >= self._acts.write_ticks:
            act = Act(ActKind.ANSWERED, flight.pod, event=BindEvent.LOST)
            after = self._acts.given_up_by(world, r, flight.pod)
            yield from self._goes_on(f"{r} waits no longer for an answer to {name}", after, r, act)

    def _carried_out(self, world: SmallWorld, flight: Flight) -> tuple[SmallWorld, BindEvent]:
        there = world.pods[flight.pod]
        if there is None:
            return world, BindEvent.IMPOSSIBLE
        if there.node:
            return world, BindEvent.CONFLICT
        return pod_changed(world, flight.pod, flight.binding), BindEvent.TAKEN
