"""The waiting pods as a batch."""

from hypothesis import given, settings
from hypothesis import strategies as st

from proto.kubernetes.objects import Pod
from simulation.plan.engine import Engine, Placed
from simulation.plan.question import Question
from simulation.plan.together import Joint, place_together
from tests.simulation.plan.test_advise import RUN, A, asking, question


def joint(gpus: list[int], held: int = 0) -> Joint:
    """These pods wait, for so many GPUs each, on two nodes of four GPUs."""
    there = [(asking("held", held), A)] if held else []
    return place_together(asked(gpus, there), RUN, "")


def asked(gpus: list[int], there: list[tuple[Pod, str]]) -> Question:
    return question("2x:4x-a100", there, [asking(f"w{at}", each) for at, each in enumerate(gpus)])


def test_a_better_order_gives_more_gpus_than_one_by_one() -> None:
    found = joint([1, 2, 1, 4], held=1)
    assert (found.one_by_one.gpus, found.together.gpus) == (4.0, 7.0)
    found = joint([3, 3, 2, 2, 2])
    assert (found.one_by_one.gpus, found.together.gpus, found.gain) == (6.0, 7.0, 1.0)


def test_nothing_is_gained_where_all_find_room() -> None:
    found = joint([2, 2])
    assert (found.gain, found.orders, found.together.refused) == (0.0, 1, [])


def test_what_waits_without_gpus_has_its_part() -> None:
    found = joint([0, 4, 4, 4])
    assert len(found.together.homes) == 3
    assert len(found.together.refused) == 1


@settings(max_examples=20)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_a_batch_can_be_placed_in_its_order_and_is_never_worse(gpus: list[int]) -> None:
    found = joint(gpus)
    assert found.together.gpus >= found.one_by_one.gpus
    there = asked(gpus, [])
    engine = Engine(there.cluster, there.under(RUN.policy), there.hosts)
    by_name = {f"default/{each.name}": each for each in there.arrivals}
    for home in found.together.homes:
        placed = engine.place(by_name[home.pod], home.pod, 0.0)
        assert isinstance(placed, Placed)
        assert placed.node == home.node
    assert len(found.together.homes) + len(found.together.refused) == len(gpus)
