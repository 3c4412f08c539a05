from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from hypothesis import given
from hypothesis import strategies as st

from proto.devices import DeviceShare, DeviceUUID, PodShares
from scheduler_ext.cluster.accounting import NOTHING, Footprint, effective
from scheduler_ext.requests import ContainerKind


class State(IntEnum):
    WAITING = 0
    RUNNING = 1
    ENDED = 2


States = tuple[State, ...]
INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP
UUIDS = [DeviceUUID("G0"), DeviceUUID("G1")]


def one(memory_mib: int, uuid: str = "G0") -> tuple[DeviceShare, ...]:
    return (DeviceShare(uuid=DeviceUUID(uuid), memory_mib=memory_mib, cores=10),)


def test_app_containers_add_up_and_init_containers_take_turns() -> None:
    assert effective((APP, APP), (one(3000), one(5000))) == {"G0": Footprint(2, 8000, 20)}
    assert effective((INIT, INIT, APP), (one(8000), one(100), one(1000))) == {"G0": Footprint(1, 8000, 10)}


def test_a_sidecar_runs_beside_everything_after_it_and_nothing_before() -> None:
    assert effective((SIDECAR, INIT, APP), (one(1000), one(4000), one(2000))) == {"G0": Footprint(2, 5000, 20)}
    assert effective((INIT, SIDECAR, APP), (one(4000), one(1000), one(2000))) == {"G0": Footprint(2, 4000, 20)}


shares = st.lists(st.sampled_from(UUIDS), unique=True).flatmap(
    lambda uuids: st.tuples(
        *(
            st.builds(DeviceShare, uuid=st.just(uuid), memory_mib=st.integers(0, 9), cores=st.integers(0, 9))
            for uuid in uuids
        )
    )
)


@dataclass(frozen=True)
class Life:
    """A pod's containers, and every state of each: not started, running, ended. Sidecars and apps may start again."""

    kinds: tuple[ContainerKind, ...]
    shares: PodShares

    def reachable(self, start: States, *, new_sandbox: bool) -> set[States]:
        """Every state the pod may come to, also by losing all its containers at once if `new_sandbox`."""
        seen, waiting = {start}, [start]
        while waiting:
            for state in self._next(waiting.pop(), new_sandbox):
                if state not in seen:
                    seen.add(state)
                    waiting.append(state)
        return seen

    def _next(self, states: States, new_sandbox: bool) -> Iterator[States]:
        if new_sandbox:
            yield self.begin()
        for position, state in enumerate(states):
            if state is State.RUNNING:
                yield (*states[:position], State.ENDED, *states[position + 1 :])
            elif self._may_start(position, states):
                yield (*states[:position], State.RUNNING, *states[position + 1 :])

    def _may_start(self, position: int, states: States) -> bool:
        if self.kinds[position] is INIT and states[position] is State.ENDED:
            return False
        return all(self._passed(other, states) for other in range(position) if self.kinds[other] is not APP)

    def _passed(self, position: int, states: States) -> bool:
        """Whether the containers after this init container may start."""
        return states[position] is State.ENDED or (
            self.kinds[position] is SIDECAR and states[position] is State.RUNNING
        )

    def begin(self) -> States:
        return (State.WAITING,) * len(self.kinds)

    def peak(self, moments: Iterable[States]) -> dict[DeviceUUID, Footprint]:
        """The most that runs at once in any of them."""
        peak: dict[DeviceUUID, Footprint] = {}
        for states in moments:
            running = [each for each, state in zip(self.shares, states, strict=True) if state is State.RUNNING]
            for uuid in UUIDS:
                mine = [share for container in running for share in container if share.uuid == uuid]
                now = sum((Footprint(1, share.memory_mib, share.cores) for share in mine), NOTHING)
                peak[uuid] = peak.get(uuid, NOTHING) | now
        return {uuid: footprint for uuid, footprint in peak.items() if footprint != NOTHING}


lives = st.tuples(
    st.lists(st.tuples(st.sampled_from([INIT, SIDECAR]), shares), max_size=3),
    st.lists(st.tuples(st.just(APP), shares), min_size=1, max_size=3),
).map(lambda parts: Life(*map(tuple, zip(*parts[0], *parts[1], strict=True))))


@given(lives)
def test_a_pod_holds_the_most_that_any_moment_of_its_life_needs(life: Life) -> None:
    moments = life.reachable(life.begin(), new_sandbox=True)
    assert effective(life.kinds, life.shares) == life.peak(moments)
