from random import Random

from hypothesis import given
from hypothesis import strategies as st

from scheduler_ext.decide.index.node_states import FEW, Order
from scheduler_ext.decide.score import Preference

NAMES = [f"n{number:03d}" for number in range(3 * FEW)]
Place = tuple[int, float] | None
PLACES = st.none() | st.tuples(st.integers(-3, 3), st.sampled_from([0.0, 1.5, 7.0]))


@given(st.randoms(use_true_random=False), st.lists(st.tuples(st.integers(1, len(NAMES)), PLACES, PLACES), max_size=6))
def test_nodes_stand_by_what_was_said_of_them_last_however_many_change_at_once(
    random: Random, changes: list[tuple[int, Place, Place]]
) -> None:
    order, said = Order(), dict[str, Preference]()
    for count, *places in changes:
        put: dict[str, Preference | None] = {}
        for name in random.sample(NAMES, count):
            place = random.choice(places)
            put[name] = None if place is None else (place[0], place[1], name)
        order.put(put)
        said |= {name: new for name, new in put.items() if new is not None}
        said = {name: place for name, place in said.items() if put.get(name, place) is not None}
        assert list(order) == sorted(said.values())
        assert len(order) == len(said)
