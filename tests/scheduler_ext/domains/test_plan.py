"""The nodes of a group against a search through all choices, on small clusters."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_ext.domains.levels import Domains, DomainWish, domains_of
from scheduler_ext.domains.plan import DomainPlacement, NoDomain, Room, no_domain, placements

BLOCK, RACK, HOST = "example.com/block", "example.com/rack", "kubernetes.io/hostname"
LEVELS = (BLOCK, RACK, HOST)


def room(node: str, members: int = 1, *, block: str = "", rack: str = "") -> Room:
    return Room(node, members, domains_of({BLOCK: block, RACK: rack, HOST: node}, LEVELS))


def rack(name: str, nodes: int, *, block: str = "") -> list[Room]:
    return [room(f"{name}-{number}", rack=name, block=block) for number in range(nodes)]


def racks(found: DomainPlacement | NoDomain | None) -> Counter[str]:
    assert isinstance(found, DomainPlacement)
    return Counter(node.split("-")[0] for node in found.nodes)


def plan(
    rooms: Sequence[Room],
    missing: int,
    levels: Sequence[str],
    wish: DomainWish | None = None,
    beside: Sequence[Domains] = (),
) -> DomainPlacement | NoDomain | None:
    """The first placement, or why a required domain has none; None if all nodes together do not hold the members."""
    for placement in placements(rooms, missing, levels, wish, beside):
        return placement
    return no_domain(rooms, missing, wish, beside) if wish is not None and wish.required else None


REQUIRED, PREFERRED = DomainWish(RACK, required=True), DomainWish(RACK, required=False)


def test_a_group_goes_into_the_smallest_domain_that_holds_all_of_it() -> None:
    rooms = [*rack("a", 8), *rack("b", 4), *rack("c", 3)]
    assert racks(plan(rooms, 4, LEVELS)) == {"b": 4}
    assert racks(plan(rooms, 5, LEVELS)) == {"a": 5}


def test_a_domain_of_a_narrower_level_comes_first() -> None:
    rooms = [*rack("a", 4), room("b-0", 2, rack="b"), room("b-1", 3, rack="b")]
    assert plan(rooms, 2, LEVELS) == DomainPlacement(level=HOST, domain="b-0", nodes=("b-0", "b-0"))


def test_a_required_domain_that_does_not_exist_is_refused_with_figures() -> None:
    rooms = [*rack("a", 12), *rack("b", 9)]
    assert str(plan(rooms, 18, LEVELS, REQUIRED)) == "needs 18 nodes of one rack; the largest free rack has 12"
    two = [room("a-0", 2, rack="a"), room("b-0", 2, rack="b")]
    refusal = "needs room for 3 in one rack; the largest free rack has room for 2"
    assert str(plan(two, 3, LEVELS, REQUIRED)) == refusal
    unlabelled = "needs one rack, and no node that is offered has the label example.com/rack"
    assert str(plan([room("n", 9)], 2, LEVELS, DomainWish(RACK, required=True))) == unlabelled


def test_members_with_a_node_decide_where_the_others_of_a_required_domain_go() -> None:
    rooms = [*rack("a", 8), *rack("b", 2)]
    beside = [domains_of({RACK: "b", HOST: "b-9"}, LEVELS)]
    assert racks(plan(rooms, 2, LEVELS, REQUIRED, beside)) == {"b": 2}
    refusal = "needs 3 nodes of the rack of its other pods, which has 2"
    assert str(plan(rooms, 3, LEVELS, REQUIRED, beside)) == refusal
    assert racks(plan(rooms, 3, LEVELS, PREFERRED, beside)) == {"b": 2, "a": 1}


def test_a_preferred_domain_that_is_too_small_becomes_as_few_as_can_be() -> None:
    rooms = [*rack("a", 3), *rack("b", 4), *rack("c", 2), *rack("d", 1)]
    assert racks(plan(rooms, 6, LEVELS, PREFERRED)) == {"b": 4, "c": 2}


def test_a_block_that_holds_the_group_comes_before_several() -> None:
    rooms = [*rack("a", 3, block="x"), *rack("b", 4, block="y"), *rack("c", 3, block="x")]
    found = plan(rooms, 6, LEVELS, PREFERRED)
    assert isinstance(found, DomainPlacement)
    assert (found.level, found.domain, racks(found)) == (BLOCK, "x", {"a": 3, "c": 3})


def test_racks_of_one_name_in_two_blocks_are_two_domains() -> None:
    rooms = [room("n0", rack="r", block="x"), room("n1", rack="r", block="y")]
    assert isinstance(plan(rooms, 2, LEVELS, REQUIRED), NoDomain)


def test_a_clique_may_extend_over_racks() -> None:
    clique = "nvidia.com/gpu.clique"
    levels = (RACK, clique)
    rooms = [Room(f"n{n}", 1, domains_of({RACK: f"r{n}", clique: "c.1"}, levels)) for n in range(2)]
    assert plan(rooms, 2, levels, DomainWish(clique, required=True)) == DomainPlacement(
        level=clique, domain="c.1", nodes=("n0", "n1")
    )


def test_neighbours_in_the_order_of_a_placement_are_near_each_other() -> None:
    rooms = [room(f"{r}-{n}", 2, rack=r, block="x") for n in range(2) for r in ("a", "b")]
    found = plan(rooms, 7, LEVELS)
    assert isinstance(found, DomainPlacement)
    assert found.nodes == ("a-0", "a-0", "a-1", "a-1", "b-0", "b-0", "b-1")


def test_a_group_that_all_nodes_together_do_not_hold_has_no_placement() -> None:
    assert plan([*rack("a", 3)], 4, LEVELS) is None


NAMES = st.sampled_from(["", "p", "q", "r"])
ROOMS = st.lists(st.tuples(st.integers(0, 3), NAMES, NAMES), min_size=1, max_size=7).map(
    lambda drawn: [room(f"n{i}", members, block=b, rack=r) for i, (members, b, r) in enumerate(drawn)]
)
WISHES = st.none() | st.builds(DomainWish, st.sampled_from(LEVELS), required=st.booleans())


def holding(rooms: Sequence[Room], missing: int, level: str, within: str) -> list[int]:
    """The room of each domain of the level that holds the group, within one domain of a wider level."""
    sums = Counter[tuple[str, str]]()
    for each in rooms:
        if level in each.domains and (not within or within in each.domains):
            sums[each.domains[level], each.domains.get(within, "")] += each.members
    return [total for total in sums.values() if total >= missing]


def sets_of_domains(rooms: Sequence[Room], missing: int, level: str) -> Iterator[int]:
    """The sizes of all sets of domains that hold the group; a node without the label is one of its own."""
    sizes = Counter[str]()
    for each in rooms:
        sizes[each.domains.get(level, f"alone {each.node}")] += each.members
    for count in range(1, len(sizes) + 1):
        if any(sum(chosen) >= missing for chosen in combinations(sizes.values(), count)):
            yield count


@given(ROOMS, st.integers(1, 9), WISHES)
def test_a_plan_is_what_a_search_through_everything_finds(
    rooms: list[Room], missing: int, wish: DomainWish | None
) -> None:
    found = plan(rooms, missing, LEVELS, wish)
    allowed = LEVELS[LEVELS.index(wish.level) :] if wish is not None and wish.required else LEVELS
    required = allowed[0] if wish is not None and wish.required else ""
    narrowest = next((level for level in reversed(allowed) if holding(rooms, missing, level, required)), None)
    total = sum(each.members for each in rooms)
    if wish is not None and wish.required and narrowest is None:
        assert isinstance(found, NoDomain)
        return
    if total < missing:
        assert found is None
        return
    assert isinstance(found, DomainPlacement)
    by_node = {each.node: each for each in rooms}
    taken = Counter(found.nodes)
    assert taken.total() == missing
    assert all(taken[name] <= by_node[name].members for name in taken)
    assert found.level == (narrowest or "")
    if narrowest is not None:
        used = {(by_node[name].domains.get(required, ""), by_node[name].domains[narrowest]) for name in taken}
        assert {name for _, name in used} == {found.domain}
        whole = [each for each in rooms if (each.domains.get(required, ""), each.domains.get(narrowest)) in used]
        assert len(used) == 1
        assert sum(each.members for each in whole) == min(holding(rooms, missing, narrowest, required))
    if wish is not None and (narrowest is None or LEVELS.index(narrowest) < LEVELS.index(wish.level)):
        within = rooms if narrowest is None else [r for r in rooms if r.domains.get(narrowest) == found.domain]
        groups = {by_node[name].domains.get(wish.level, f"alone {name}") for name in taken}
        assert len(groups) == min(sets_of_domains(within, missing, wish.level))


@given(ROOMS, st.integers(1, 6), st.randoms(use_true_random=False))
def test_the_order_of_nodes_decides_nothing_but_equals(rooms: list[Room], missing: int, random: object) -> None:
    found = plan(rooms, missing, LEVELS, PREFERRED)
    again = plan(rooms[::-1], missing, LEVELS, PREFERRED)
    if not isinstance(found, DomainPlacement) or not isinstance(again, DomainPlacement):
        assert found == again
        return
    assert (found.level, found.domain) == (again.level, again.domain)


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_without_any_label_changes_nothing(level: str) -> None:
    rooms = [*rack("a", 3), *rack("b", 2)]
    assert plan(rooms, 2, (level, RACK)) == plan(rooms, 2, (RACK,)) or level == HOST
