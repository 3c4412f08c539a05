"""`/filter` puts a group into one domain, and holds all of its GPUs there or none."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.annotations.keys import NODE_CLIQUE, PREFERRED_TOPOLOGY, REQUIRED_TOPOLOGY
from proto.kubernetes.objects import Node, Pod
from scheduler_ext.capacity.pod_verdict import judge_pod
from scheduler_ext.cluster.events import Applied, Listed
from scheduler_ext.membership import KUEUE_SIZE
from scheduler_ext.verbs.filter_decision import FilterDecision
from tests.builders import node
from tests.scheduler_ext.cluster.test_gang_decisions import LEASE_SECONDS, Played, member, one_by_one
from tests.scheduler_ext.gpus import device, request

REQUIRED, PREFERRED = {REQUIRED_TOPOLOGY: NODE_CLIQUE}, {PREFERRED_TOPOLOGY: NODE_CLIQUE}


def cliques(**sizes: int) -> Played:
    """Nodes of one GPU in cliques of these names: `a0`, `a1` … Those of `_` are in none."""
    names = [f"{clique}{number}" for clique, size in sizes.items() for number in range(size)]
    played = Played(*names)
    made = [
        node(name, [device(0, replicas=1)], labels={} if name[0] == "_" else {NODE_CLIQUE: name[0]}) for name in names
    ]
    played.step(Listed(Node, made))
    return played


def wishing(members: list[Pod], annotations: Mapping[str, str]) -> list[Pod]:
    for each in members:
        each.metadata.annotations = {**each.metadata.annotations, **annotations}
    return members


def placed(played: Played, members: list[Pod]) -> list[str]:
    return [played.filter(each) for each in members]


def test_a_group_takes_the_clique_that_it_fills() -> None:
    played = cliques(a=5, b=3, _=9)
    assert {name[0] for name in placed(played, played.gang("g", 3))} == {"b"}


def test_a_required_clique_that_is_too_small_is_refused_in_one_sentence_and_holds_nothing() -> None:
    played = cliques(a=3, b=2, _=9)
    first, *_ = wishing(played.gang("g", 4), REQUIRED)
    answer = played.answer(first)
    sentence = "GroupDoesNotFit: group default/g needs 4 nodes of one clique; the largest free clique has 3"
    assert set((answer.failed_and_unresolvable_nodes or {}).values()) == {sentence}
    assert played.held() == {}


def test_a_preferred_clique_that_is_too_small_becomes_two() -> None:
    played = cliques(a=3, b=2, _=9)
    nodes = placed(played, wishing(played.gang("g", 5), PREFERRED))
    assert sorted(name[0] for name in nodes) == ["a", "a", "a", "b", "b"]


def test_a_pod_that_replaces_a_member_goes_to_the_clique_of_the_others() -> None:
    played = cliques(a=4, b=4)
    members = wishing(played.gang("g", 3, exist=3), REQUIRED)
    nodes = placed(played, members)
    for each, name in zip(members[:2], nodes, strict=False):
        played.bind(each, name)
    again = played.filter(members[2])
    assert {again[0], *(name[0] for name in nodes)} == {nodes[0][0]}


def test_a_member_whose_clique_is_full_waits_although_another_is_free() -> None:
    played = cliques(a=2, b=4)
    members = wishing(played.gang("g", 2), REQUIRED)
    nodes = placed(played, members)
    assert {name[0] for name in nodes} == {"a"}
    for each, name in zip(members, nodes, strict=True):
        played.bind(each, name)
    late = wishing(played.gang("g", 3, exist=0), REQUIRED)[2]
    answer = played.answer(late)
    refusals = set((answer.failed_and_unresolvable_nodes or {}).values())
    assert refusals == {"GroupDoesNotFit: group default/g needs 1 node of the clique of its other pods, which has 0"}


def test_a_member_is_offered_its_own_node_though_kube_scheduler_chooses_for_other_pods() -> None:
    played = cliques(a=3, b=3)
    decision = FilterDecision(played.index, played.cluster, LEASE_SECONDS, most=9)

    def offered(waiting: Pod) -> int:
        return len(decision.reserve(waiting, request(waiting), played.names, played.now).result.node_names or ())

    assert [offered(each) for each in wishing(played.gang("g", 2), REQUIRED)] == [1, 1]
    assert offered(member("alone", "")) == 4


@pytest.mark.parametrize(
    ("size", "bound", "gpus", "why"),
    [
        (5, 0, 1, "needs 5 nodes of one clique; the largest free clique has 3"),
        (4, 3, 1, "needs 1 node of the clique of its other pods, which has 0"),
        (2, 0, 2, "needs 2 nodes of one clique; the largest free clique has 0"),
    ],
)
def test_explain_has_the_sentence_of_the_filter_for_a_group_without_a_clique(
    size: int, bound: int, gpus: int, why: str
) -> None:
    played = cliques(a=3, b=2, _=9)
    members = wishing(one_by_one(played, "g", size), REQUIRED)
    for each in members:
        each.metadata.annotations[KUEUE_SIZE] = str(max(bound, 2))
        each.spec.containers[0].resources.limits["nvidia.com/gpu"] = gpus
        played.step(Applied(each))
    for each in members[:bound]:
        played.bind(each, played.filter(each))
    for each in members:
        each.metadata.annotations[KUEUE_SIZE] = str(size)
        if each not in members[:bound]:
            played.step(Applied(each))
    waiting = members[-1]
    answer = played.answer(waiting)
    assert set((answer.failed_and_unresolvable_nodes or {}).values()) == {f"GroupDoesNotFit: group default/g {why}"}
    snapshot, gang = played.cluster.ledger.snapshot_for(waiting), played.cluster.gang_of(waiting)
    assert judge_pod(waiting, played.cluster.requests, snapshot, gang).sentence == f"waits: group default/g {why}"


def relabel(played: Played, name: str, clique: str) -> None:
    played.step(Applied(node(name, [device(0, replicas=1)], labels={NODE_CLIQUE: clique})))


@pytest.mark.parametrize("bound", [None, False, True])
def test_a_node_that_leaves_its_clique_while_a_group_is_held_is_replaced_by_one_of_the_clique(
    bound: bool | None,
) -> None:
    """None: kube-scheduler sends its questions about all members in one cycle."""
    played = cliques(a=4, b=5)
    first, *others = wishing(played.gang("g", 3) if bound is None else one_by_one(played, "g", 3), REQUIRED)
    place = played.filter(first)
    if bound:
        played.bind(first, place)
    left = next(nodes[0] for uid, nodes in played.held().items() if uid != first.metadata.uid)
    relabel(played, left, "b")
    found = placed(played, others)
    assert {name[0] for name in (place, *found)} == {"a"}
    assert left not in found


def test_no_member_stays_where_the_clique_of_the_others_went() -> None:
    played = cliques(a=3, b=4)
    first, *others = wishing(one_by_one(played, "g", 3), REQUIRED)
    place = played.filter(first)
    assert place[0] == "a"
    played.bind(first, place)
    relabel(played, place, "b")
    second, third = others
    elsewhere = played.filter(second)
    assert elsewhere[0] == "b"
    played.bind(second, elsewhere)
    relabel(played, elsewhere, "a")
    assert set((played.answer(third).failed_and_unresolvable_nodes or {}).values()) == {
        "GroupDoesNotFit: group default/g needs one clique; its other pods are in 2"
    }


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 4), min_size=1),
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(2, 5), st.sampled_from([{}, REQUIRED, PREFERRED])), min_size=1, max_size=3),
)
def test_groups_are_held_whole_or_not_at_all_and_a_required_clique_is_never_left(
    sizes: dict[str, int], apart: int, wanted: list[tuple[int, dict[str, str]]]
) -> None:
    played = cliques(**sizes, _=apart)
    free = {**sizes, "_": apart}
    for number, (size, annotations) in enumerate(wanted):
        members = wishing(played.gang(f"g{number}-", size), annotations)
        nodes = [name for name in placed(played, members) if name]
        assert len(nodes) in (0, size)
        used = {name[0] for name in nodes}
        fits = any(free[clique] >= size for clique in sizes)
        if annotations == REQUIRED:
            assert bool(nodes) == fits
            assert used <= set(sizes)
            assert len(used) <= 1
        else:
            assert bool(nodes) == (sum(free.values()) >= size)
            assert not fits or len(used) == 1
        for each, name in zip(members, nodes, strict=False):
            played.bind(each, name)
            free[name[0]] -= 1
