"""Daemon, extender, users and stops in any order: no GPU is ever given out twice, and every wish ends.

TOPOGPU_NIGHTLY=1 makes the orders five thousand.
"""

import os
from collections.abc import Callable
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from proto.annotations.keys import MEMORY_WISH
from tests.resize_world import HAS, Daemon, World, wish_of

NIGHTLY = os.environ.get("TOPOGPU_NIGHTLY") == "1"
STEPS = 60
POD, OTHER = "p", "q"


class Walk:
    """Moves at random; what is needed for a resize comes more often."""

    def __init__(self, random: Random) -> None:
        self.random, self.world = random, World()
        self.world.bind(POD, random.randint(1, 6), random.randint(1, 4))
        self.moves: dict[Callable[[], object], int] = {
            self.a_wish: 7,
            self.withdrawn: 2,
            self.another_pod: 5,
            self.gone: 2,
            self.uses: 3,
            self.starts_again: 3,
            self.daemon_acts: 20,
            self.daemon_dies: 1,
            self.daemon_watches: 16,
            self.daemon_starts: 1,
            self.leader_acts: 16,
            self.leader_watches: 16,
            self.world.lead_anew: 1,
            self.lands: 20,
            self.no_answer: 3,
        }

    def move(self) -> None:
        (chosen,) = self.random.choices([*self.moves], [*self.moves.values()])
        chosen()

    def a_wish(self) -> None:
        name = self.random.choice((POD, POD, OTHER))
        earlier = [
            wish_of(seen) for at, seen in self.world.api.log if at == name and seen is not None and wish_of(seen)
        ]
        amounts = [f"c0={self.random.randint(1, HAS + 1)}", f"c1={self.random.randint(1, HAS - 1)}"]
        some = ",".join(amounts[: self.random.choice((1, 1, 2))])
        self.world.api.write(name, {MEMORY_WISH: self.random.choice([some, some, *earlier[-2:]])})

    def withdrawn(self) -> None:
        self.world.api.write(POD, {MEMORY_WISH: None})

    def another_pod(self) -> None:
        if OTHER not in self.world.api.pods:
            self.world.bind(OTHER, max(1, min(self.world.leader.free(), self.random.randint(1, HAS))))

    def gone(self) -> None:
        if OTHER in self.world.api.pods:
            self.world.delete(OTHER)

    def uses(self) -> None:
        part, (limits, used) = (
            (POD, self.random.choice(("c0", "c1"))),
            (self.world.driver.limits, self.world.driver.used),
        )
        used[part] = min(self.random.randint(0, HAS), max(limits[part], used[part]))

    def starts_again(self) -> None:
        if self.world.daemon is not None:
            self.world.daemon.start(POD, self.random.choice(("c0", "c1")))

    def daemon_acts(self, *, dies: bool = False) -> None:
        daemon, name = self.world.daemon, self.random.choice((POD, POD, OTHER))
        if daemon is not None and name in daemon.pods and name in self.world.api.pods:
            self.world.send(daemon.act(name, dies=dies))

    def daemon_dies(self) -> None:
        self.daemon_acts(dies=True)
        self.world.daemon = None

    def daemon_watches(self) -> None:
        for _ in range(self.random.choice((1, 1, 5))):
            if self.world.daemon is not None:
                self.world.daemon.watch()

    def daemon_starts(self) -> None:
        self.world.daemon = Daemon(self.world.api, self.world.driver)

    def leader_acts(self) -> None:
        self.world.send(self.world.leader.act(self.random.choice((POD, POD, OTHER))))

    def leader_watches(self) -> None:
        for _ in range(self.random.choice((1, 1, 5))):
            self.world.leader.watch()

    def lands(self) -> None:
        if self.world.flying:
            self.world.land(self.random.randrange(len(self.world.flying)))

    def no_answer(self) -> None:
        if self.world.flying:
            number = self.random.randrange(len(self.world.flying))
            self.random.choice((self.world.give_up, self.world.lose))(number)


@settings(max_examples=5_000 if NIGHTLY else settings().max_examples)
@given(seed=st.integers(0, 2**32))
def test_whatever_happens_in_whatever_order_no_memory_is_given_out_twice_and_every_wish_ends(seed: int) -> None:
    walk = Walk(Random(seed))
    for _ in range(STEPS):
        walk.move()
        assert list(walk.world.over()) == []
    walk.world.settle()
    assert [*walk.world.over(), *walk.world.wrong()] == []


def growing() -> World:
    """The leader has decided that the pod grows to 8, and its write is under way."""
    world = World()
    world.bind(POD, 2)
    world.api.write(POD, {MEMORY_WISH: "8"})
    assert world.daemon is not None
    world.daemon.watch()
    world.send(world.daemon.act(POD))
    world.land(0)
    while world.leader.seen < len(world.api.log):
        world.leader.watch()
    world.send(world.leader.act(POD))
    assert world.leader.free() == HAS - 8
    return world


def test_a_pod_that_is_deleted_amid_its_growth_leaves_nothing_behind() -> None:
    world = growing()
    world.delete(POD)
    world.land(0)
    world.settle()
    assert world.leader.free() == HAS


def test_growth_counts_from_the_decision_on_and_no_more_once_its_write_is_refused() -> None:
    world = growing()
    world.api.write(POD, {MEMORY_WISH: "3"})
    world.leader.watch()
    assert world.leader.free() == HAS - 8
    world.land(0)
    assert world.leader.free() == HAS - 2
    world.settle()
    assert (world.leader.free(), list(world.wrong())) == (HAS - 3, [])
