"""`/bind` keeps a group in the domain that it requires, also where labels of nodes have changed since `/filter`."""

import pytest

from proto.kubernetes.objects import Pod
from scheduler_ext.cluster.events import Removed
from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.verbs.bind_decision import BindRefused, decide_read, decide_unread
from scheduler_ext.verbs.state_machine import BindAttempt, BindEvent
from tests.scheduler_ext.cluster.test_gang_decisions import LEASE_SECONDS, Played, member, one_by_one
from tests.scheduler_ext.verbs.test_filter_domains import PREFERRED, REQUIRED, cliques, placed, relabel, wishing


def begun(played: Played, waiting: Pod, node: str) -> BindEvent:
    """Returns the event after the decision of a bind. Raises BindRefused."""
    name = PodName(namespace="default", name=waiting.metadata.name)
    attempt = BindAttempt(number=1, pod=name, uid=waiting.metadata.uid, node=node)
    until = played.now + LEASE_SECONDS
    decided = decide_unread(played.cluster, attempt, now=played.now, until=until)
    return (decided or decide_read(played.cluster, attempt, waiting, now=played.now, until=until)).event


def bind(played: Played, waiting: Pod, node: str) -> None:
    assert begun(played, waiting, node) is BindEvent.DECIDED
    played.bind(waiting, node)


@pytest.mark.parametrize("in_one_cycle", [False, True])
@pytest.mark.parametrize("first", [0, 1])
def test_a_node_that_leaves_the_required_clique_between_filter_and_bind_is_refused_and_the_group_stays_in_one(
    in_one_cycle: bool, first: int
) -> None:
    played = cliques(a=4, b=5)
    members = wishing(played.gang("g", 3) if in_one_cycle else one_by_one(played, "g", 3), REQUIRED)
    nodes = placed(played, members)
    assert {name[0] for name in nodes} == {"a"}
    relabel(played, nodes[0], "b")
    for number in sorted(range(3), key=lambda each: each != first):
        if number:
            bind(played, members[number], nodes[number])
            continue
        with pytest.raises(BindRefused, match="the node is not in the clique of its group's other pods"):
            begun(played, members[0], nodes[0])
    again = played.filter(members[0])
    assert again[0] == "a"
    assert again not in nodes
    bind(played, members[0], again)
    assert sorted(played.slots()) == [0] * 6 + [1] * 3


def test_a_node_that_leaves_every_clique_between_filter_and_bind_is_refused() -> None:
    played = cliques(a=2)
    members = wishing(one_by_one(played, "g", 2), REQUIRED)
    nodes = placed(played, members)
    for name in nodes:
        relabel(played, name, "")
    with pytest.raises(BindRefused, match="the node is in no clique any more, which its group requires"):
        begun(played, members[0], nodes[0])


def test_a_clique_that_is_renamed_as_a_whole_between_filter_and_bind_is_still_one() -> None:
    played = cliques(a=2)
    members = wishing(one_by_one(played, "g", 2), REQUIRED)
    nodes = placed(played, members)
    for name in nodes:
        relabel(played, name, "b")
    for each, name in zip(members, nodes, strict=True):
        bind(played, each, name)


def test_a_preferred_clique_refuses_no_bind() -> None:
    played = cliques(a=2, b=1)
    members = wishing(one_by_one(played, "g", 2), PREFERRED)
    nodes = placed(played, members)
    relabel(played, nodes[0], "b")
    for each, name in zip(members, nodes, strict=True):
        bind(played, each, name)


def test_a_bind_that_decides_again_after_a_restart_keeps_the_group_in_its_required_clique() -> None:
    played = cliques(a=2, b=2)
    members = wishing(one_by_one(played, "g", 2), REQUIRED)
    nodes = placed(played, members)
    bind(played, members[0], nodes[0])
    played.start()
    elsewhere = next(name for name in played.names if name[0] != nodes[0][0])
    with pytest.raises(BindRefused, match="the node is not in the clique of its group's other pods"):
        begun(played, members[1], elsewhere)
    bind(played, members[1], nodes[1])


@pytest.mark.parametrize("in_one_cycle", [False, True])
def test_a_group_whose_extender_restarts_between_its_binds_is_bound_whole(in_one_cycle: bool) -> None:
    played = Played("a", "b", "c")
    members = played.gang("g", 3) if in_one_cycle else one_by_one(played, "g", 3)
    nodes = placed(played, members)
    bind(played, members[0], nodes[0])
    played.start()
    assert played.held() == {}
    for each, name in zip(members[1:], nodes[1:], strict=True):
        bind(played, each, name)
    assert played.slots() == [1, 1, 1]


def test_a_member_whose_gpu_another_pod_takes_after_a_restart_waits_and_no_gpu_is_booked_twice() -> None:
    played = Played("a", "b", "c")
    members, other = played.gang("g", 3), member("other", "")
    nodes = placed(played, members)
    bind(played, members[0], nodes[0])
    played.start()
    taken = played.filter(other)
    late = members[nodes.index(taken)]
    with pytest.raises(BindRefused, match="does not fit"):
        begun(played, late, taken)
    bind(played, other, taken)
    (rest,) = [each for each in members[1:] if each is not late]
    bind(played, rest, nodes[members.index(rest)])
    assert played.filter(late) == ""
    assert played.slots() == [1, 1, 1]
    played.step(Removed(other))
    bind(played, late, played.filter(late))
    assert played.slots() == [1, 1, 1]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("clique", ["b", ""])
def test_no_further_pod_is_bound_to_a_group_whose_bound_pods_are_in_two_cliques_by_now(
    clique: str, restarted: bool
) -> None:
    played = cliques(a=4)
    members = wishing(one_by_one(played, "g", 3), REQUIRED)
    nodes = placed(played, members)
    for each, name in zip(members[:2], nodes, strict=False):
        bind(played, each, name)
    if restarted:
        played.start()
    relabel(played, nodes[0], clique)
    with pytest.raises(BindRefused, match="the node is not in the clique of its group's other pods"):
        begun(played, members[2], nodes[2])
    assert not played.answer(members[2]).node_names
