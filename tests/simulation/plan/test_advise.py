"""Which pods to move: the fewest, proven by trying all sets, and nothing changes by asking."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proto.annotations.keys import RESOURCE_COUNT, RESOURCE_MEMORY_PERCENTAGE
from proto.kubernetes.objects import Pod
from scheduler_ext.decide.preempt import EvictionTrial
from scheduler_ext.requests import pod_key, read_request
from simulation.plan import moves as moving
from simulation.plan.advise import Advice, advise
from simulation.plan.bound import bound_of
from simulation.plan.engine import Engine, Placed
from simulation.plan.machines import node_of, read_cluster
from simulation.plan.moves import PodRemedy
from simulation.plan.objects import Arrival, Described, arrival_of
from simulation.plan.outcome import PlanRun
from simulation.plan.question import Question
from simulation.plan.recorded import drain
from tests.builders import container, pod

RUN = PlanRun(policy="binpack/binpack")


def asking(name: str, gpus: int, percent: int = 100, cpus: int = 1) -> Pod:
    main = container(cpu=cpus, gpu=gpus, gpumem_percentage=percent) if gpus else container(cpu=cpus)
    return pod(main, name=name, uid=name)


def question(cluster: str, held: Sequence[tuple[Pod, str]], coming: Iterable[Pod]) -> Question:
    """`held` are pods with the nodes to which they go."""
    described = read_cluster(cluster)
    engine = Engine(described, Question(cluster=described).under(RUN.policy), Question(cluster=described).hosts)
    for one, node in held:
        assert isinstance(engine.place(arrival_of(one), pod_key(one), 0.0, only=[node]), Placed)
    there = tuple(engine.pods())
    return Question(cluster=replace(described, held=there), arrivals=tuple(map(arrival_of, coming)))


A, B, C = (f"4x-a100-pcie-80g-bridged-{number}" for number in (1, 2, 3))


def test_the_fewest_pods_are_moved_and_of_equally_few_the_smallest() -> None:
    held = [(asking("half", 1, 50), A), (asking("whole", 1), B), (asking("whole-too", 1), B)]
    advice = advise(question("2x:4x-a100", held, [asking("large", 4)]), RUN, "")
    (remedy,) = advice.remedies
    assert remedy.node == A
    assert [(move.pod, move.to, move.gpus) for move in remedy.moves] == [("default/half", B, 0.5)]
    assert remedy.gain == 4.0
    assert remedy.search.startswith("proven")


def test_a_pod_without_gpus_is_moved_if_the_node_lacks_cpu() -> None:
    held = [(asking("busy", 0, cpus=250), "dgxa100-8x-a100-40g-1")]
    advice = advise(question("1x:dgx-a100,1x:cpu-only", held, [asking("train", 8, cpus=16)]), RUN, "")
    (remedy,) = advice.remedies
    assert [(move.pod, move.to) for move in remedy.moves] == [("default/busy", "cpu-only-1")]


def test_a_pod_without_gpus_that_finds_no_room_is_not_counted_as_placed() -> None:
    advice = advise(question("1x:4x-a100", [], [asking("huge", 0, cpus=100_000), asking("small", 1)]), RUN, "")
    assert (advice.placed, advice.remedies) == (1, [])
    assert advice.notes == ["no room for 1 pod without GPUs, such as huge"]


def test_pods_that_find_no_other_room_are_not_moved() -> None:
    held = [(asking(f"p{n}", 1), A) for n in range(4)]
    advice = advise(question("1x:4x-a100", held, [asking("more", 1)]), RUN, "")
    (remedy,) = advice.remedies
    assert (remedy.node, remedy.moves) == ("", ())
    assert remedy.search == (
        "not proven beyond one node: moving up to 8 pods of one node does not help, and no chain over 3 nodes was found"
    )


def test_pods_without_gpus_leave_gpu_nodes_where_gpus_lack_cpu() -> None:
    held = [
        (asking("busy", 0, cpus=120), "dgxa100-8x-a100-40g-1"),
        (asking("train", 1, cpus=32), "dgxa100-8x-a100-40g-1"),
    ]
    advice = advise(question("1x:dgx-a100,1x:cpu-only", held, []), RUN, "")
    (leaving,) = advice.leaving
    assert (leaving.pod, leaving.to) == ("default/busy", "cpu-only-1")
    # 104 CPUs are left for 7 GPUs, and each needs 32.
    assert leaving.gain == pytest.approx(7 - 104 / 32)


def test_what_is_not_proven_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "MOST_LOOKS", 3)
    monkeypatch.setattr(moving, "LEAST_LOOKS", 3)
    held = [(asking(f"p{n}", 1), A) for n in range(4)]
    advice = advise(question("2x:4x-a100", held, [asking(f"large-{n}", 4) for n in range(2)]), RUN, "")
    (remedy,) = advice.remedies
    assert "at least 1 move needed; 3 sets of pods were tried, not all" in remedy.search


def test_a_pod_moves_to_make_room_for_a_pod_that_moves() -> None:
    held = [
        (asking("a3", 3), A),
        (asking("b1", 1), B),
        (asking("b2", 2), B),
        (asking("c1", 1), C),
        (asking("c2", 2), C),
    ]
    asked = question("3x:4x-a100", held, [asking("new", 3)])
    (remedy,) = advise(asked, RUN, "").remedies
    assert {(move.node, move.to) for move in remedy.moves} in ({(C, A), (B, C)}, {(B, A), (C, B)})
    assert remedy.search.startswith("not proven to be the fewest: pods of several nodes move")
    assert follows(asked, remedy)


def follows(asked: Question, remedy: PodRemedy) -> bool:
    """Does each step of the remedy go where it says, one after the other?"""
    there = {pod_key(one): one for one in asked.cluster.held}
    engine = Engine(replace(asked.cluster, held=tuple(there.values())), asked.under(RUN.policy), asked.hosts)
    for move in remedy.moves:
        uid = move.pod.partition("/")[2]
        engine.end(uid, 0.0)
        if not isinstance(engine.place(arrival_of(there[uid]), uid, 0.0, only=[move.to]), Placed):
            return False
    return isinstance(engine.place(asked.arrivals[0], "new", 0.0, only=[remedy.node]), Placed)


@settings(max_examples=30)
@given(
    shares=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), min_size=4, max_size=7), wanted=st.integers(2, 4)
)
def test_whatever_is_advised_can_be_followed(shares: list[tuple[int, int]], wanted: int) -> None:
    free, held = {A: 4, B: 4, C: 4}, []
    for number, (at, gpus) in enumerate(shares):
        node = (A, B, C)[at]
        if free[node] >= gpus:
            free[node] -= gpus
            held.append((asking(f"p{number}", gpus), node))
    asked = question("3x:4x-a100", held, [asking("new", wanted)])
    for remedy in advise(asked, RUN, "").remedies:
        assert not remedy.node or follows(asked, remedy)


SHARES = st.tuples(st.sampled_from([1, 2]), st.sampled_from([25, 50, 100]))


@given(shares=st.lists(SHARES, max_size=6), wanted=st.integers(1, 4))
def test_the_number_of_moves_is_the_least_that_any_order_of_trials_finds(
    shares: list[tuple[int, int]], wanted: int
) -> None:
    described = read_cluster("2x:4x-a100")
    empty = Question(cluster=described)
    engine = Engine(described, empty.under("spread/spread"), empty.hosts)
    for number, (gpus, percent) in enumerate(shares):
        engine.place(arrival_of(asking(f"p{number}", gpus, percent)), f"p{number}", 0.0)
    there = tuple(engine.pods())
    asked = replace(empty, cluster=replace(described, held=there), arrivals=(arrival_of(asking("new", wanted)),))
    advice = advise(asked, RUN, "")
    assert _moves(advice) == _least(asked, there)


def _moves(advice: Advice) -> int | None:
    if advice.placed:
        return 0
    (remedy,) = advice.remedies
    return len(remedy.moves) if len({move.node for move in remedy.moves}) == 1 else None


def _least(asked: Question, there: Sequence[Pod]) -> int | None:
    """By brute force, each trial on a cluster of its own."""
    new = asked.arrivals[0]
    for size in range(len(there) + 1):
        for gone in combinations(there, size):
            nodes = {one.spec.node_name for one in gone}
            if len(nodes) <= 1 and _works(asked, there, gone, new, [*nodes] or [A, B]):
                return size
    return None


def _works(asked: Question, there: Sequence[Pod], gone: Sequence[Pod], new: Arrival, nodes: Sequence[str]) -> bool:
    cluster = asked.cluster
    held = tuple(one for one in there if one not in gone)
    engine = Engine(replace(cluster, held=held), asked.under(RUN.policy), asked.hosts)
    if not isinstance(engine.place(new, "new", 0.0, only=nodes), Placed):
        return False
    # The largest first, as the advice says it.
    ranked = sorted(gone, key=lambda one: (-_weight(one), pod_key(one)))
    return all(isinstance(engine.place(arrival_of(one), pod_key(one), 0.0), Placed) for one in ranked)


def _weight(one: Pod) -> float:
    limits = one.spec.containers[0].resources.limits
    return int(limits[RESOURCE_COUNT]) * int(limits[RESOURCE_MEMORY_PERCENTAGE]) / 100


def test_a_drained_node_leaves_with_its_pods() -> None:
    held = [(asking("a", 1), A), (asking("b", 1), B)]
    cluster = question("2x:4x-a100", held, []).cluster
    rest, moved = drain(cluster, [A])
    assert [node.metadata.name for node in rest.nodes] == [B]
    assert [(one.name, one.came_from) for one in moved] == [("a", A)]


def test_described_links_are_kept_when_clusters_are_joined() -> None:
    both = read_cluster("1x:4x-a100").beside(read_cluster("1x:4x-a100", "added-"))
    assert len(both.links.known) == 2 * 6
    assert Described(nodes=(node_of("n", [], {}, cpu_milli=1, memory_mib=1),)).beside(both).links == both.links


@settings(max_examples=40)
@given(shares=st.lists(SHARES, max_size=7), wanted=SHARES, leaving=st.frozensets(st.integers(0, 6)))
def test_the_quick_bound_refuses_no_set_of_pods_that_the_decision_passes(
    shares: list[tuple[int, int]], wanted: tuple[int, int], leaving: frozenset[int]
) -> None:
    described = read_cluster("1x:4x-a100")
    engine = Engine(described, Question(cluster=described).under("spread/spread"), Question(cluster=described).hosts)
    for number, (gpus, percent) in enumerate(shares):
        engine.place(arrival_of(asking(f"p{number}", gpus, percent)), f"p{number}", 0.0)
    request = read_request(asking("new", *wanted), engine.state.requests)
    assert request is not None
    gone, ledger = frozenset(f"p{number}" for number in leaving), engine.state.ledger
    alone = ledger.alone(A, request.namespace)
    assert bound_of(alone, request).allows(gone) >= EvictionTrial(alone, request, 1).fits(gone)
