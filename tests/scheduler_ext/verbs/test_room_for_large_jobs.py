"""A node is set aside for a pod, or nodes for a group, that needs half of a node or more and has waited for long."""

import heapq
import random
from datetime import UTC, datetime
from math import inf

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kubectl_topogpu.cluster import Objects, read_cluster
from kubectl_topogpu.top import notes
from proto.annotations.keys import DEVICES_ALLOCATED, NODE_CLIQUE, REQUIRED_TOPOLOGY, SET_ASIDE
from proto.annotations.pod_devices import decode_pod_devices
from proto.annotations.set_aside import SetAside, encode_set_aside
from proto.annotations.unhealthy_since import stamp
from proto.kubernetes.objects import (
    LabelSelector,
    Node,
    ObjectMeta,
    Pod,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    SchedulingGate,
)
from scheduler_ext.capacity.account import account
from scheduler_ext.capacity.unused import set_aside_words
from scheduler_ext.cluster.events import Applied, BackfillAllowed, Listed, Wake, unperformed
from scheduler_ext.cluster.history import PodHistory
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.decide.effort import finished
from scheduler_ext.decide.setting_aside import LONGEST_SECONDS, UNTAKEN_SECONDS, most_set_aside
from scheduler_ext.membership import KUEUE_GROUP, KUEUE_SIZE
from scheduler_ext.metrics.families import MetricsInput, families
from scheduler_ext.policies import NodePolicy
from scheduler_ext.requests import RequestSettings, read_request
from scheduler_ext.status.view import NodePoll, node_of
from scheduler_ext.verbs.waiting_jobs import MOST_DUE, MOST_NAMES, PAUSE_SECONDS
from tests.builders import container, node_json, pod
from tests.scheduler_ext.job_stream import BEGINNING, JobStream

AFTER = 600.0
MOST_HOURS = 3
"""The longest wait of a large job whose neighbours run for twenty minutes at most."""
REFUSED = "NodeSetAside: set aside for pod default/large"


def machine(name: str, gpus: int = 4, clique: str = "") -> Node:
    found = msgspec.convert(node_json(name, gpus=gpus), Node)
    found.metadata.labels = {NODE_CLIQUE: clique} if clique else {}
    return found


def stream(*nodes: Node, after: float = AFTER, policy: NodePolicy = NodePolicy.BINPACK) -> JobStream:
    return JobStream(nodes or [machine("a"), machine("b")], RequestSettings(node_policy=policy), after=after)


def asking(name: str, gpus: int = 1, **facts: object) -> Pod:
    return pod(container(gpu=gpus), name=name, **facts)  # type: ignore[arg-type]  # facts of any pod


def members(group: str, size: int, gpus: int, **annotations: str) -> list[Pod]:
    written = {KUEUE_SIZE: str(size), **annotations}
    names = (f"{group}{number}" for number in range(size))
    return [asking(name, gpus, labels={KUEUE_GROUP: group}, annotations=written) for name in names]


def full(played: JobStream) -> JobStream:
    """Every GPU is in use by a pod of its own, `s0`, `s1` …: those of the first node come first."""
    gpus = sum(len(usage.gpus) for usage in played.cluster.ledger.nodes.usages().values())
    for number in range(gpus):
        assert played.place(played.come(asking(f"s{number}")))
    return played


def waiting(played: JobStream, *pods: Pod, seconds: float = AFTER) -> JobStream:
    """These pods are refused, and wait so long."""
    for uid in [played.come(each) for each in pods]:
        assert played.place(uid) == ""
    played.now += seconds
    return played


def with_a_node_set_aside(gpus: int = 4, **facts: object) -> JobStream:
    played = waiting(full(stream()), asking("large", gpus, **facts))
    assert [aside.node for aside in played.turn().values()] == ["a"]
    played.turn()
    return played


def refusals(played: JobStream, asked: Pod) -> dict[str, str]:
    return dict(played.answer(played.come(asked)).failed_and_unresolvable_nodes or {})


def test_a_node_is_set_aside_once_a_large_pod_has_waited_for_the_time_and_not_before() -> None:
    played = waiting(full(stream()), asking("large", 4), seconds=AFTER - 1)
    assert not played.turn()
    played.now += 1
    (aside,) = played.turn().values()
    assert (aside.node, aside.until - aside.since) == ("a", LONGEST_SECONDS)
    assert not played.turn()


def test_without_the_setting_no_node_is_set_aside() -> None:
    played = waiting(full(stream(after=0)), asking("large", 4), seconds=LONGEST_SECONDS)
    assert not played.turn()


def test_what_an_extender_with_the_setting_left_behind_ends_under_one_without_it() -> None:
    played = stream(after=0)
    aside = SetAside(node="a", since=int(BEGINNING), until=int(BEGINNING) + LONGEST_SECONDS)
    uid = played.come(asking("large", 4, annotations={SET_ASIDE: encode_set_aside(aside)}))
    assert played.jobs.over(played.now) == {uid: "nodes are no longer set aside"}
    played.turn()
    assert not played.cluster.ledger.set_asides


def test_a_small_pod_gets_no_node_set_aside() -> None:
    played = waiting(full(stream()), asking("small"), seconds=LONGEST_SECONDS)
    assert not played.turn()


def test_a_pod_of_half_a_node_gets_the_node_with_fewest_gpus_in_use() -> None:
    played = full(stream())
    played.leave("uid-s5")
    assert [aside.node for aside in waiting(played, asking("large", 2)).turn().values()] == ["b"]


def test_a_node_whose_pods_have_deadlines_is_set_aside_before_one_whose_pods_may_run_for_ever() -> None:
    played = stream()
    for number in range(8):
        deadline = None if number < 4 else 3600
        assert played.place(played.come(asking(f"s{number}", active_deadline_seconds=deadline)))
    assert [aside.node for aside in waiting(played, asking("large", 4)).turn().values()] == ["b"]


def test_a_pod_that_fits_now_or_never_or_is_over_its_quota_gets_no_node_set_aside() -> None:
    played = full(stream())
    waiting(played, asking("large", 4), asking("never", 9))
    for number in range(4):
        played.leave(f"uid-s{number}")
    assert not played.turn()


def test_other_pods_are_refused_on_a_set_aside_node_in_a_sentence_that_names_the_large_pod() -> None:
    played = with_a_node_set_aside()
    played.leave("uid-s0")
    assert refusals(played, asking("small")) == {"a": REFUSED}
    played.leave("uid-s4")
    assert played.place(played.come(asking("other"))) == "b"


def test_the_large_pod_gets_its_node_once_that_is_free_and_the_node_is_open_again() -> None:
    played = with_a_node_set_aside()
    for number in range(4):
        played.leave(f"uid-s{number}")
        assert refusals(played, asking(f"late{number}"))["a"] == REFUSED
    assert played.place("uid-large") == "a"
    assert not played.cluster.ledger.set_asides
    played.leave("uid-large")
    assert played.place("uid-late0") == "a"


def test_a_pod_of_higher_priority_goes_to_a_set_aside_node() -> None:
    played = with_a_node_set_aside()
    played.leave("uid-s0")
    assert refusals(played, asking("equal")) == {"a": REFUSED}
    assert played.place(played.come(asking("urgent", priority=1))) == "a"


def test_a_pod_that_ends_before_the_others_of_a_set_aside_node_fills_it_and_a_longer_one_does_not() -> None:
    played = stream(machine("a"))
    for number in range(4):
        played.place(played.come(asking(f"s{number}", active_deadline_seconds=3600)))
    waiting(played, asking("large", 4)).turn()
    played.turn()
    played.leave("uid-s0")
    left = int(3600 - AFTER)
    assert refusals(played, asking("long", active_deadline_seconds=left + 1)) == {"a": REFUSED}
    assert played.place(played.come(asking("short", active_deadline_seconds=left))) == "a"


def test_pods_that_start_late_do_not_delay_a_set_aside_node_further_and_further() -> None:
    played = stream(machine("a"))
    for number in range(4):
        played.place(played.come(asking(f"s{number}", active_deadline_seconds=3600)))
    waiting(played, asking("large", 4)).turn()
    played.turn()
    before = dict(played.cluster.ledger.set_asides.backfill_until)
    played.leave("uid-s0")
    uid = played.come(asking("late", active_deadline_seconds=int(3600 - AFTER)))
    assert played.place(uid, starts_in=30) == "a"
    played.turn()
    assert played.cluster.ledger.set_asides.backfill_until == before


def test_beside_a_pod_without_deadline_a_set_aside_node_is_filled_for_no_longer_than_the_wait() -> None:
    played = with_a_node_set_aside()
    played.leave("uid-s0")
    assert refusals(played, asking("long", active_deadline_seconds=int(AFTER) + 1)) == {"a": REFUSED}
    assert played.place(played.come(asking("short", active_deadline_seconds=int(AFTER)))) == "a"


def test_a_pod_that_may_be_evicted_fills_a_set_aside_node_where_pods_are_evicted() -> None:
    played = with_a_node_set_aside(priority=5)
    played.leave("uid-s0")
    uid = played.come(asking("low", labels={"app": "low"}))
    assert played.place(uid) == ""
    until = played.cluster.ledger.set_asides.backfill_until
    played.cluster.apply(BackfillAllowed(until, evicts=True), played.now)
    budget = PodDisruptionBudget(
        metadata=ObjectMeta(name="keep", namespace="default"),
        spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": "low"})),
    )
    played.cluster.step(Applied(budget), played.now, unperformed(Wake))
    assert played.place(uid) == ""
    played.cluster.step(Listed(PodDisruptionBudget, []), played.now, unperformed(Wake))
    assert played.place(uid) == "a"


def test_no_pod_fills_the_node_of_a_large_pod_that_evicts_nobody() -> None:
    played = with_a_node_set_aside(priority=5, preemption_policy="Never")
    played.leave("uid-s0")
    played.cluster.apply(BackfillAllowed({}, evicts=True), played.now)
    assert refusals(played, asking("low")) == {"a": REFUSED}


def test_a_restarted_extender_and_a_second_one_set_the_same_nodes_aside() -> None:
    played = with_a_node_set_aside()
    other = Cluster()
    other.step(Listed(Node, [machine("a"), machine("b")]), played.now, unperformed(Wake))
    other.step(Listed(Pod, [*played.pods.values()]), played.now, unperformed(Wake))
    assert other.ledger.set_asides.every() == played.cluster.ledger.set_asides.every()
    small = asking("small")
    assert other.ledger.set_asides.closed_to(small) == {"a": REFUSED}
    assert other.ledger.nodes.usages()["a"].set_aside == played.cluster.ledger.nodes.usages()["a"].set_aside


def test_a_node_is_set_aside_for_a_day_at_most_and_then_not_again_for_as_long() -> None:
    played = with_a_node_set_aside()
    played.now += LONGEST_SECONDS
    assert not played.turn()
    assert not played.cluster.ledger.set_asides
    uid = "uid-large"
    assert played.place(uid) == ""
    played.now += LONGEST_SECONDS - 1
    assert not played.turn()
    played.now += 1 + PAUSE_SECONDS
    assert [aside.node for aside in played.turn().values()] == ["a"]


def test_a_node_is_open_again_when_the_large_pod_is_deleted() -> None:
    played = with_a_node_set_aside()
    played.leave("uid-s0")
    played.leave("uid-large")
    assert played.place(played.come(asking("small"))) == "a"


def test_a_node_is_open_again_when_the_large_pod_no_longer_fits_there() -> None:
    played = with_a_node_set_aside()
    played.cluster.step(Applied(machine("a", gpus=3)), played.now, unperformed(Wake))
    assert set(played.jobs.over(played.now).values()) == {"the pod no longer fits there"}


def test_a_job_whose_node_is_lost_gets_the_next_one_after_the_time_of_the_setting() -> None:
    played = with_a_node_set_aside()
    played.now += LONGEST_SECONDS / 2
    closed = machine("a")
    closed.spec.unschedulable = True
    played.cluster.step(Applied(closed), played.now, unperformed(Wake))
    assert not played.turn()
    assert played.place("uid-large", ["b"]) == ""
    played.now += AFTER
    assert [aside.node for aside in played.turn().values()] == ["b"]


def test_a_free_node_that_the_large_pod_does_not_take_is_open_again() -> None:
    played = with_a_node_set_aside()
    for number in range(4):
        played.leave(f"uid-s{number}")
    played.turn()
    played.now += UNTAKEN_SECONDS - 1
    assert not played.jobs.over(played.now)
    played.now += 1
    (why,) = played.jobs.over(played.now).values()
    assert why == "its GPUs have been free for 10 min, and the pod was not placed there"


def test_a_node_is_set_aside_for_a_day_at_most_whatever_the_annotation_has() -> None:
    played = full(stream())
    times = stamp_of(BEGINNING), stamp_of(BEGINNING + 10 * LONGEST_SECONDS)
    written = {SET_ASIDE: f'{{"node":"a","since":"{times[0]}","until":"{times[1]}"}}'}
    waiting(played, asking("large", 4, annotations=written), seconds=LONGEST_SECONDS)
    assert set(played.jobs.over(played.now)) == {"uid-large"}
    played = full(stream())
    written = {SET_ASIDE: f'{{"node":"a","since":"{times[1]}","until":"{times[1]}"}}'}
    waiting(played, asking("large", 4, annotations=written), seconds=0)
    assert set(played.jobs.over(played.now)) == {"uid-large"}


def test_a_pod_without_gpus_sets_no_node_aside() -> None:
    written = with_a_node_set_aside().pods["uid-large"].metadata.annotations
    played = stream()
    played.come(pod(container(cpu=4), name="other", annotations=written))
    assert not played.cluster.ledger.set_asides


def test_a_job_that_waits_for_earlier_ones_is_not_passed_over_by_those_whose_turn_is_later() -> None:
    played = full(stream())
    waiting(played, asking("first", 4, priority=1)).turn()
    waiting(played, asking("urgent", 4, priority=1), asking("group", 4))
    assert not played.turn()
    waiting(played, asking("later", 4))
    played.leave("uid-first")
    played.now += 5
    assert set(played.turn()) == {"uid-urgent"}


def test_a_node_that_was_written_just_now_is_taken_before_the_watch_shows_it() -> None:
    played = full(stream())
    played.jobs.written("a", played.now)
    assert played.jobs.taken(played.now + PAUSE_SECONDS - 1) == {"a"}
    assert not played.jobs.taken(played.now + PAUSE_SECONDS)


def test_the_wait_of_a_pod_begins_when_its_last_scheduling_gate_is_removed() -> None:
    played = full(stream())
    gated = asking("large", 4, scheduling_gates=(SchedulingGate(name="queue"),))
    uid = played.come(gated)
    played.now += LONGEST_SECONDS
    played.turn()
    opened = replace(played.pods[uid], spec=replace(gated.spec, scheduling_gates=()))
    played.show(opened)
    assert played.place(uid) == ""
    played.now += AFTER - 1
    assert not played.turn()
    played.now += 1
    assert [aside.node for aside in played.turn().values()] == ["a"]


def test_the_grace_period_of_a_pod_belongs_to_the_time_for_which_it_fills_a_set_aside_node() -> None:
    played = with_a_node_set_aside()
    played.leave("uid-s0")
    late = asking("late", active_deadline_seconds=1, termination_grace_period_seconds=int(AFTER))
    assert refusals(played, late) == {"a": REFUSED}
    short = asking("short", active_deadline_seconds=1, termination_grace_period_seconds=int(AFTER) - 1)
    assert played.place(played.come(short)) == "a"


def test_one_gpu_in_ten_is_on_a_set_aside_node_and_never_fewer_than_one_node() -> None:
    assert [most_set_aside([8] * nodes) for nodes in (0, 1, 9, 20, 1000)] == [0, 8, 8, 16, 800]
    assert most_set_aside([8, 1, 1]) == 8
    played = full(stream(*(machine(f"n{number}") for number in range(3))))
    waiting(played, *(asking(f"large{number}", 4) for number in range(3)))
    assert len(played.turn()) == 1
    played.now += LONGEST_SECONDS / 2
    assert not played.turn()


def test_the_large_pod_of_the_highest_priority_and_then_the_longest_wait_comes_first() -> None:
    played = waiting(full(stream()), asking("first", 4), seconds=60)
    waiting(played, asking("second", 4))
    assert set(played.turn()) == {"uid-first"}
    played = waiting(full(stream()), asking("first", 4), seconds=60)
    waiting(played, asking("urgent", 4, priority=1))
    assert set(played.turn()) == {"uid-urgent"}


def test_a_group_gets_all_the_nodes_it_needs_or_none() -> None:
    few = waiting(full(stream()), *members("g", 2, 4))
    assert not few.turn()
    many = full(stream(*(machine(f"n{number:02}") for number in range(20))))
    waiting(many, *members("g", 2, 4))
    assert sorted(aside.node for aside in many.turn().values()) == ["n00", "n01"]
    many.turn()
    many.leave("uid-s0")
    outsider = refusals(many, asking("small"))
    assert set(outsider.values()) == {"NodeSetAside: set aside for group default/g"}
    assert set(outsider) == {"n00", "n01"}
    for number in range(1, 8):
        many.leave(f"uid-s{number}")
    assert {many.place("uid-g0"), many.place("uid-g1")} == {"n00", "n01"}


def test_a_group_that_needs_all_nodes_that_may_be_set_aside_is_not_passed_over_for_single_pods() -> None:
    played = full(stream(*(machine(f"n{number:02}") for number in range(20))))
    waiting(played, asking("first", 4)).turn()
    waiting(played, *members("g", 2, 4), seconds=1)
    waiting(played, asking("later", 4))
    assert not played.turn()
    played.leave("uid-first")
    played.now += PAUSE_SECONDS
    assert set(played.turn()) == {"uid-g0", "uid-g1"}


def test_pods_that_fit_nowhere_do_not_keep_a_large_pod_from_its_turn() -> None:
    played = full(stream())
    waiting(played, *(asking(f"never{number}", 9) for number in range(20 * MOST_DUE)), seconds=1)
    waiting(played, asking("large", 4))
    for _ in range(20):
        assert not played.turn()
        played.now += 5
    assert set(played.turn()) == {"uid-large"}


def test_a_group_is_read_in_one_step_of_a_turn_however_many_members_it_has() -> None:
    steps = [[*waiting(full(stream()), *members("g", size, 1)).jobs.due(BEGINNING + AFTER)] for size in (2, 100)]
    assert steps[0] == steps[1]


def test_names_of_nodes_are_remembered_of_a_bounded_number_of_pods() -> None:
    played = full(stream())
    names = [f"n{number}" for number in range(MOST_NAMES // 4)]
    for number in range(6):
        asked = played.pods[played.come(asking(f"large{number}", 4, node_selector={"disk": "fast"}))]
        request = read_request(asked, played.cluster.requests)
        assert request is not None
        played.jobs.refused(asked, request, names)
    played.now += AFTER
    assert {job.name for job in finished(played.jobs.due(played.now))} == {f"default/large{n}" for n in range(2, 6)}


def test_members_of_a_group_share_a_set_aside_node() -> None:
    played = waiting(full(stream()), *members("g", 4, 1))
    assert [aside.node for aside in played.turn().values()] == ["a"] * 4


def test_a_group_whose_pods_do_not_exist_yet_has_no_nodes_set_aside() -> None:
    played = waiting(full(stream()), members("g", 4, 1)[0])
    assert not played.turn()


def test_a_group_that_lost_one_of_its_nodes_gives_the_others_back() -> None:
    played = full(stream(*(machine(f"n{number:02}") for number in range(20))))
    waiting(played, *members("g", 2, 4)).turn()
    played.leave("uid-g1")
    played.come(members("g", 2, 4)[1])
    played.now += PAUSE_SECONDS
    (why,) = played.jobs.over(played.now).values()
    assert why == "the pods of its group that are needed are others than those with a node set aside"


def test_small_pods_of_a_group_do_not_use_the_nodes_set_aside_for_its_large_ones_for_long() -> None:
    played = full(stream(*(machine(f"n{number:02}") for number in range(20))))
    waiting(played, *members("g", 2, 4)).turn()
    played.leave("uid-s0")
    assert played.place(played.come(asking("small", labels={KUEUE_GROUP: "g"}))) == "n00"
    played.now += PAUSE_SECONDS
    assert set(played.jobs.over(played.now)) == {"uid-g0", "uid-g1"}


def test_the_nodes_of_a_group_are_in_the_domain_that_it_requires() -> None:
    nodes = [machine(f"n{number:02}", clique="x" if number % 2 else "y") for number in range(20)]
    played = full(stream(*nodes))
    waiting(played, *members("g", 2, 4, **{REQUIRED_TOPOLOGY: NODE_CLIQUE}))
    cliques = {played.cluster.ledger.nodes.usages()[aside.node].node.clique for aside in played.turn().values()}
    assert len(cliques) == 1


def test_a_pod_with_wishes_for_nodes_gets_one_where_kube_scheduler_lets_it() -> None:
    played = full(stream())
    uid = played.come(asking("large", 4, node_selector={"disk": "fast"}))
    assert played.place(uid, ["b"]) == ""
    played.now += AFTER
    assert [aside.node for aside in played.turn().values()] == ["b"]


def test_a_node_with_too_little_cpu_for_the_pod_even_when_empty_is_not_set_aside() -> None:
    small = machine("a")
    small.status.allocatable = {**small.status.allocatable, "cpu": "8", "memory": "64Gi"}
    played = full(stream(small, machine("b")))
    waiting(played, pod(container(gpu=4, cpu=16), name="large"))
    assert [aside.node for aside in played.turn().values()] == ["b"]


def test_what_is_no_annotation_of_ours_sets_no_node_aside() -> None:
    played = stream()
    assert played.place(played.come(asking("large", 4, annotations={SET_ASIDE: "a"}))) == "a"
    played.come(asking("other", 4, annotations={SET_ASIDE: "b"}))
    assert played.place(played.come(asking("small"))) == "b"


@pytest.mark.parametrize("policy", [NodePolicy.BINPACK, NodePolicy.SPREAD])
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1_000_000), deadlines=st.booleans(), group=st.booleans())
def test_in_a_stream_that_keeps_nodes_full_every_large_job_starts_and_no_gpu_is_given_twice(
    policy: NodePolicy, seed: int, deadlines: bool, group: bool
) -> None:
    rng = random.Random(seed)
    nodes = 20 if group else rng.randint(1, 4)
    played = stream(*(machine(f"n{number:02}") for number in range(nodes)), policy=policy)
    ends: list[tuple[float, str]] = []
    small: list[str] = []
    large: list[str] = []
    comes, number, began = played.now, 0, inf
    while played.now < began + MOST_HOURS * 3600:
        if ends and ends[0][0] <= comes:
            played.now, uid = heapq.heappop(ends)
            played.leave(uid)
        else:
            played.now, comes = comes, comes + rng.expovariate(4 * nodes / (AFTER * 0.9))
            deadline = rng.randint(1, 2 * int(AFTER)) if deadlines and rng.random() < 0.5 else None
            small.append(played.come(asking(f"s{number}", active_deadline_seconds=deadline)))
            number += 1
        if not large and number >= 8 * nodes:
            large = [played.come(each) for each in (members("g", 2, 4) if group else [asking("g", 4)])]
            began = played.now
        for uid in [*large, *small[:1], *small[1:][-1:]]:
            if DEVICES_ALLOCATED not in played.pods[uid].metadata.annotations and played.place(uid) and uid in small:
                small.remove(uid)
                lasts = played.pods[uid].spec.active_deadline_seconds or 2 * int(AFTER)
                heapq.heappush(ends, (played.now + rng.randint(1, lasts), uid))
        if number % 4 == 0:
            played.turn()
            _laws(played)
        if large and all(DEVICES_ALLOCATED in played.pods[uid].metadata.annotations for uid in large):
            return
    raise AssertionError(f"{large} waits for {MOST_HOURS} h")


def _laws(played: JobStream) -> None:
    asides = played.cluster.ledger.set_asides
    sizes = {name: len(usage.gpus) for name, usage in played.cluster.ledger.nodes.usages().items()}
    assert sum(sizes[name] for name in asides.nodes()) <= most_set_aside(sizes.values())
    decided = (each.metadata.annotations.get(DEVICES_ALLOCATED, "") for each in played.pods.values())
    shares = [share.uuid for text in decided if text for each in decode_pod_devices("", text) for share in each]
    assert len(shares) == len(set(shares))
    owners: dict[str, set[str]] = {}
    for each in asides.every().values():
        owners.setdefault(each.aside.node, set()).add(each.owner)
        assert each.aside.until - each.aside.since <= LONGEST_SECONDS
    assert all(len(found) == 1 for found in owners.values())


def test_people_see_a_set_aside_node_on_page_and_terminal_in_metrics_and_in_the_answers_about_both_pods() -> None:
    played = with_a_node_set_aside()
    played.leave("uid-s0")
    usage, ledger, cluster = played.cluster.ledger.nodes.usages()["a"], played.cluster.ledger, played.cluster
    begun, until = stamp_of(BEGINNING + AFTER), stamp_of(BEGINNING + AFTER + LONGEST_SECONDS)
    words = f"set aside for pod default/large since {begun}, until {until} at the latest: 1 of 4 GPUs are idle"
    assert set_aside_words(usage) == words
    alone = ledger.alone("a")
    assert alone is not None
    assert f"S{words[1:]}." in node_of(NodePoll(usage=usage, alone=alone, names={})).notes
    read = Objects(nodes=(machine("a"), machine("b")), pods=[*played.pods.values()])
    assert f"! node a: {words}" in {str(note) for note in notes(read_cluster(read, cluster.requests), None)}
    large, small = played.pods["uid-large"], played.pods[played.come(asking("small"))]
    of_large, of_small = (
        account(each, cluster.requests, "", ledger.snapshot_for(each), PodHistory(), now=played.now).sentence
        for each in (large, small)
    )
    assert of_large.endswith(f"; node a is set aside for it since {begun}, until {until} at the latest")
    assert "set aside for pod default/large (on a)" in of_small
    gauges = {each.name: [value for _, value in each.rows()] for each in families(seen(played))}
    assert (gauges["topogpu_set_aside_nodes"], gauges["topogpu_set_aside_idle_gpus"]) == ([1.0], [1.0])


def stamp_of(seconds: float) -> str:
    return stamp(datetime.fromtimestamp(seconds, UTC))


def seen(played: JobStream) -> MetricsInput:
    return MetricsInput(
        snapshot=played.cluster.ledger.snapshot(),
        records={},
        names={},
        resources=played.cluster.requests.names,
        reservations=0,
        kept=0,
        waiting=1,
        leads=True,
        synced=True,
        problems=0,
    )
