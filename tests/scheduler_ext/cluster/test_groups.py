"""What kube-scheduler gave up is free, though no verb says so."""

from collections.abc import Sequence
from math import inf

import msgspec
import pytest

from proto.extender import FilterResult
from proto.kubernetes.objects import Condition, Pod, ResourceQuota, SchedulingGroup
from scheduler_ext.cluster.events import Applied, NodeChosen, Proposed, TimePassed, Wake, unperformed
from scheduler_ext.cluster.group_attempt import FEWEST_THAT_WAIT_ON
from scheduler_ext.cluster.groups import (
    LONGEST_PERMIT_SECONDS,
    REFUSED_SECONDS,
    SHORTEST_LEASE_SECONDS,
    Groups,
    lets_go,
    verdict_of,
)
from scheduler_ext.cluster.records import Pending, PodRecord, Records, RecordState, SchedulerVerdict
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.membership import MOST_MEMBERS, group_of
from scheduler_ext.verbs.filter_decision import FilterDecision
from tests.builders import container, node, pod
from tests.scheduler_ext.gpus import device, request

LEASE_SECONDS = 60.0


def member(name: str, group: str = "g", gpus: int = 1, version: int = 1) -> Pod:
    found = pod(container(gpu=gpus), name=name)
    found.metadata.resource_version = str(version)
    if group:
        found.spec.scheduling_group = SchedulingGroup(pod_group_name=group)
    return found


def refused(waiting: Pod, message: str, version: int) -> Pod:
    condition = Condition(type="PodScheduled", status="False", reason="Unschedulable", message=message)
    waiting.status.conditions = [condition]
    waiting.metadata.resource_version = str(version)
    return waiting


class Asked:
    """A ledger of nodes with one GPU of one slot each, and what kube-scheduler asks of it."""

    def __init__(self, nodes: int = 2) -> None:
        self.names = [f"n{number}" for number in range(nodes)] or ["a0", "a1", "b0", "b1"]
        self.cluster, self.now = Cluster(), 0.0
        self.ledger = self.cluster.ledger
        self.ledger.replace_nodes([node(name, [device(0, replicas=1)]) for name in self.names])
        self.index = NodeIndex(self.ledger)

    def filter(self, waiting: Pod, most: int = 1, among: Sequence[str] = ()) -> Sequence[str]:
        return self.answer(waiting, most, among).node_names or []

    def place(self, group: str, domain: str, members: int = 2) -> Sequence[str]:
        """Simulates the group in the domain of two nodes with this letter, and returns the nodes of its members."""
        among = [f"{domain}{number}" for number in range(2)]
        found = (self.filter(member(f"{group}{number}", group), among=among) for number in range(members))
        return [name for names in found for name in names]

    def answer(self, waiting: Pod, most: int = 1, among: Sequence[str] = ()) -> FilterResult:
        decision = FilterDecision(self.index, self.cluster, LEASE_SECONDS, most)
        return decision.reserve(waiting, request(waiting), among or self.names, self.now).result

    def nodes_of(self, name: str) -> Sequence[str]:
        record = self.ledger.records.reserved(f"uid-{name}")
        return () if record is None else record.nodes

    def held(self) -> int:
        self.ledger.expire(self.now)
        return sum(gpu.replicas for usage in self.ledger.snapshot().nodes.values() for gpu in usage.gpus)


def test_a_group_is_named_by_the_pods_spec_or_by_coscheduling_s_label() -> None:
    assert group_of(member("p", "g")) == "default/g"
    for label in ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io"):
        labelled = member("p", "")
        labelled.metadata.labels = {label: "old"}
        assert group_of(labelled) == "default/old"
    assert group_of(member("p", "")) == ""


def test_a_group_that_does_not_fit_holds_nothing_once_kube_scheduler_asks_about_another_pod() -> None:
    asked = Asked(nodes=2)
    for attempt in range(5):
        assert [len(asked.filter(member(name))) for name in ("a", "b", "c")] == [1, 1, 0]
        other = member(f"other{attempt}", "")
        assert len(asked.filter(other)) == 1
        asked.ledger.records.drop(asked.ledger.records.reserved(other.metadata.uid))
        assert asked.held() == 0


def test_a_group_that_does_not_fit_holds_nothing_a_moment_later_if_nobody_asks() -> None:
    asked = Asked(nodes=2)
    assert [len(asked.filter(member(name))) for name in ("a", "b", "c")] == [1, 1, 0]
    assert asked.held() == 2
    asked.now += REFUSED_SECONDS
    assert asked.held() == 0


def test_what_is_promised_to_a_group_counts_for_its_own_members_after_a_refusal() -> None:
    """A group may have more members than it needs."""
    asked = Asked(nodes=2)
    assert [len(asked.filter(member("a"))), len(asked.filter(member("wide", gpus=2)))] == [1, 0]
    assert asked.filter(member("b")) == ["n1"]
    assert asked.filter(member("c")) == []


def test_members_of_a_refused_group_that_are_bound_all_the_same_keep_what_they_hold() -> None:
    asked = Asked(nodes=2)
    assert [len(asked.filter(member(name))) for name in ("a", "b", "c")] == [1, 1, 0]
    asked.ledger.groups.bind_begins("uid-a", until=100.0)
    assert asked.filter(member("other", "")) == []
    asked.now += REFUSED_SECONDS
    assert asked.held() == 2
    asked.now = 100.0
    assert asked.held() == 0


def test_a_group_that_is_tried_once_more_has_nothing_in_its_own_way() -> None:
    asked = Asked(nodes=2)
    for _ in range(3):
        assert [len(asked.filter(member(name))) for name in ("a", "b")] == [1, 1]
    assert [len(asked.filter(member(name))) for name in ("c", "a", "b")] == [0, 1, 1]


def test_members_that_wait_for_the_others_keep_what_they_hold_while_other_pods_are_asked_about() -> None:
    asked = Asked(nodes=2)
    assert asked.filter(member("a")) == ["n0"]
    assert asked.filter(member("other", "")) == ["n1"]
    assert asked.filter(member("late", "")) == []
    assert asked.held() == 2


def test_what_kube_scheduler_says_of_one_member_frees_the_group() -> None:
    asked = Asked(nodes=2)
    waiting = member("a")
    assert [len(asked.filter(waiting)), len(asked.filter(member("b")))] == [1, 1]
    asked.ledger.apply_pod(member("a", version=2))
    assert asked.held() == 2
    asked.ledger.apply_pod(refused(waiting, "rejected by Permit", version=3))
    assert asked.held() == 0


def test_nothing_that_is_said_of_a_pod_takes_away_what_is_being_bound() -> None:
    asked = Asked()
    waiting = member("a", "")
    asked.filter(waiting)
    asked.ledger.groups.bind_begins("uid-a", until=100.0)
    asked.ledger.apply_pod(refused(waiting, "an old story", version=3))
    assert asked.held() == 1


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (SchedulerVerdict(version=1), SchedulerVerdict(version=2, refusal="no"), True),
        (SchedulerVerdict(version=1, refusal="no"), SchedulerVerdict(version=2, refusal="no, again"), True),
        (SchedulerVerdict(version=1, refusal="no"), SchedulerVerdict(version=2, refusal="no"), False),
        (SchedulerVerdict(version=2), SchedulerVerdict(version=1, refusal="no"), False),
        (SchedulerVerdict(version=1, nominated="n"), SchedulerVerdict(version=2), True),
        (SchedulerVerdict(version=1), SchedulerVerdict(version=2, nominated="n"), False),
    ],
)
def test_kube_scheduler_lets_go_when_it_newly_refuses_or_no_longer_nominates(
    before: SchedulerVerdict, after: SchedulerVerdict, *, expected: bool
) -> None:
    assert lets_go(before, after) is expected


def test_a_nomination_seen_after_the_reservation_and_then_withdrawn_frees_it() -> None:
    """Before it waits for Permit or PreBind kube-scheduler nominates the node, and withdraws that when they fail."""
    asked = Asked()
    asked.filter(member("a", ""))
    nominated = member("a", "", version=2)
    nominated.status.nominated_node_name = "n0"
    asked.ledger.apply_pod(nominated)
    assert asked.held() == 1
    asked.ledger.apply_pod(member("a", "", version=3))
    assert asked.held() == 0


def test_each_promise_that_comes_to_nothing_halves_the_next_lease() -> None:
    """Reserve may fail each time for the same reason: kube-scheduler writes the same words only once."""
    asked, leases = Asked(), []
    for _ in range(8):
        asked.filter(member("a", ""))
        reservation = asked.ledger.records.reserved("uid-a")
        assert reservation is not None
        leases.append(reservation.until)
    assert leases == [60.0, 30.0, 15.0, 7.5, 3.75, *[SHORTEST_LEASE_SECONDS] * 3]
    asked.ledger.groups.bind_begins("uid-a", until=1.0)
    asked.filter(member("a", ""))
    assert asked.ledger.groups.lease_seconds(member("a", ""), LEASE_SECONDS) == 30.0


def of_coscheduling(name: str, version: int = 1) -> Pod:
    found = member(name, "", version=version)
    found.metadata.labels = {"scheduling.x-k8s.io/pod-group": "g"}
    return found


def test_members_that_wait_in_permit_get_what_they_lost_once_more_when_the_next_one_comes() -> None:
    asked = Asked(nodes=3)
    assert [len(asked.filter(of_coscheduling(name))) for name in ("a", "b")] == [1, 1]
    asked.now += LEASE_SECONDS
    assert asked.held() == 0
    assert asked.filter(of_coscheduling("c")) == ["n2"]
    assert asked.held() == 3


def test_once_others_have_what_a_member_lost_the_group_is_not_made_whole() -> None:
    """kube-scheduler would bind the rest of it. It rejects the group instead, and tries it from the beginning."""
    asked = Asked(nodes=2)
    assert asked.filter(of_coscheduling("a")) == ["n0"]
    asked.now += LEASE_SECONDS
    assert asked.filter(member("other", "")) == ["n0"]
    lost = dict.fromkeys(asked.names, "GroupMemberLost(a)")
    refusal = FilterResult(failed_nodes={}, failed_and_unresolvable_nodes=lost)
    assert asked.answer(of_coscheduling("b")) == refusal
    asked.ledger.remove_pod("uid-other")
    assert [len(asked.filter(of_coscheduling(name))) for name in ("b", "a")] == [1, 1]
    assert asked.held() == 2


@pytest.mark.parametrize("lapsed_before", [False, True])
@pytest.mark.parametrize("comes_between", [False, True])
def test_a_gang_whose_last_member_preempts_is_bound_as_a_whole_or_not_at_all(
    *, lapsed_before: bool, comes_between: bool
) -> None:
    """Where DefaultPreemption finds victims, Coscheduling is not asked: those that wait are not rejected."""
    asked = Asked(nodes=3)
    assert [len(asked.filter(of_coscheduling(name))) for name in ("a", "b")] == [1, 1]
    assert asked.filter(member("victim", "")) == ["n2"]
    asked.ledger.groups.bind_begins("uid-victim", inf)
    asked.now += LEASE_SECONDS if lapsed_before else 0.0
    asked.cluster.apply(TimePassed(), asked.now)
    asked.names[:] = ["n2"]
    assert asked.filter(of_coscheduling("last")) == []
    asked.cluster.step(Proposed(of_coscheduling("last"), {"n2": ["uid-victim"]}), asked.now, unperformed(Wake))
    asked.names[:] = ["n0", "n1", "n2"]
    asked.now += REFUSED_SECONDS
    if comes_between:
        assert asked.filter(member("other", "")) == ["n0"]
    asked.ledger.remove_pod("uid-victim")
    answer = asked.answer(of_coscheduling("last"))
    if comes_between:
        assert answer.failed_and_unresolvable_nodes == dict.fromkeys(asked.names, "GroupMemberLost(a)")
    else:
        assert answer.node_names == ["n2"]
        assert asked.held() == 3


def test_a_member_that_goes_between_a_refusal_and_its_preemption_waits_no_more() -> None:
    asked = Asked(nodes=3)
    assert [len(asked.filter(of_coscheduling(name))) for name in ("a", "b")] == [1, 1]
    asked.now += LEASE_SECONDS
    assert asked.filter(member("other", "")) == ["n0"]
    assert asked.filter(of_coscheduling("last")) == []
    asked.ledger.remove_pod("uid-a")
    asked.cluster.step(Proposed(of_coscheduling("last"), {"n0": ["uid-other"]}), asked.now, unperformed(Wake))
    assert [uid for uid, *_ in asked.ledger.groups.lapsed(of_coscheduling("last"))] == ["uid-b"]


def test_a_gang_that_came_to_nothing_holds_nothing_when_it_is_tried_again_and_another_pod_is_asked_about() -> None:
    """Another plugin refuses one: kube-scheduler does not ask about it, and writes the same words only once."""
    asked = Asked(nodes=2)
    for attempt in range(3):
        assert [len(asked.filter(of_coscheduling(name))) for name in ("a", "b")] == [1, 1]
        assert len(asked.filter(member(f"other{attempt}", ""))) == (attempt > 0)
        asked.ledger.remove_pod(f"uid-other{attempt}")
        assert asked.held() == (0 if attempt else 2)


def test_a_gang_that_is_tried_again_and_comes_gets_what_it_lost_to_nobody() -> None:
    asked = Asked(nodes=3)
    for _ in range(2):
        assert [len(asked.filter(of_coscheduling(name))) for name in ("a", "b")] == [1, 1]
    assert asked.filter(member("other", "")) == ["n0"]
    asked.ledger.remove_pod("uid-other")
    assert len(asked.filter(of_coscheduling("c"))) == 1
    assert asked.held() == 3


def test_where_a_tenth_is_missing_the_others_wait_on_after_a_refusal() -> None:
    asked = Asked(nodes=FEWEST_THAT_WAIT_ON)
    names = [f"m{number}" for number in range(FEWEST_THAT_WAIT_ON)]
    assert all(asked.filter(of_coscheduling(name)) for name in names)
    assert asked.filter(of_coscheduling("last")) == []
    assert asked.filter(member("other", "")) == ["n0"]
    asked.names.append("more")
    asked.ledger.replace_nodes([node(name, [device(0, replicas=1)]) for name in asked.names])
    assert asked.filter(of_coscheduling("last")) == []
    asked.ledger.remove_pod("uid-other")
    assert len(asked.filter(of_coscheduling("last"))) == 1
    assert asked.held() == FEWEST_THAT_WAIT_ON + 1


@pytest.mark.parametrize("sign", ["asked about again", "refused", "deleted", "Permit has ended"])
def test_what_a_member_lost_is_forgotten_once_it_waits_no_more(sign: str) -> None:
    asked = Asked(nodes=2)
    waiting = of_coscheduling("a")
    assert asked.filter(waiting) == ["n0"]
    asked.now += LEASE_SECONDS
    assert asked.filter(member("other", "")) == ["n0"]
    match sign:
        case "asked about again":
            asked.filter(waiting)
            asked.ledger.records.drop(asked.ledger.records.reserved("uid-a"))
        case "refused":
            asked.ledger.apply_pod(refused(waiting, "rejected by Permit", version=2))
        case "deleted":
            asked.ledger.remove_pod("uid-a")
        case _:
            asked.ledger.groups.bind_begins("uid-other", until=inf)
            asked.now += LONGEST_PERMIT_SECONDS
    assert asked.filter(of_coscheduling("b")) == ["n1"]


def test_a_lapsed_reservation_ends_with_the_longest_permit() -> None:
    """Before, a question about its pod was taken for the rejection of members that had begun to wait since."""
    asked = Asked(nodes=2)
    assert asked.filter(of_coscheduling("a")) == ["n0"]
    asked.now += LEASE_SECONDS
    asked.ledger.expire(asked.now)
    asked.now += LONGEST_PERMIT_SECONDS
    assert asked.filter(of_coscheduling("b")) == ["n0"]
    asked.now += LEASE_SECONDS
    assert asked.filter(of_coscheduling("a")) == ["n1"]
    assert asked.held() == 2


def test_a_group_is_not_to_blame_for_what_it_lost_by_our_own_refusal() -> None:
    asked = Asked(nodes=2)
    for _ in range(8):
        assert [len(asked.filter(member(name))) for name in ("a", "b", "c")] == [1, 1, 0]
    asked.filter(member("a"))
    reservation = asked.ledger.records.reserved("uid-a")
    assert reservation is not None
    assert reservation.until == LEASE_SECONDS


def test_of_nodes_that_are_offered_together_the_chosen_one_is_kept() -> None:
    asked = Asked(nodes=3)
    assert asked.filter(member("a", ""), most=2) == ["n0", "n1"]
    assert asked.held() == 2
    assert asked.filter(member("b", ""), most=2) == ["n2"]
    assert asked.ledger.choose("uid-a", "n2") is None
    assert asked.ledger.choose("uid-a", "n1") is not None
    used = {name: usage.gpus[0].replicas for name, usage in asked.ledger.snapshot().nodes.items()}
    assert used == {"n0": 0, "n1": 1, "n2": 1}
    reservation = asked.ledger.records.reserved("uid-a")
    assert reservation is not None
    assert (reservation.node, dict(reservation.others)) == ("n1", {})


def test_nothing_is_remembered_of_pods_and_groups_that_are_gone() -> None:
    asked = Asked(nodes=1)
    for name in ("a", "b"):
        asked.filter(member(name))
    asked.filter(member("other", ""))
    for name in ("a", "b", "other"):
        asked.ledger.remove_pod(f"uid-{name}")
    asked.filter(member("last", ""))
    asked.ledger.remove_pod("uid-last")
    asked.now += 1000.0
    asked.ledger.expire(asked.now)
    assert asked.ledger.groups == Groups(asked.ledger.records)


def test_of_pods_that_come_and_go_in_one_group_so_many_are_remembered() -> None:
    made, last = Groups(Records()), member(str(2 * MOST_MEMBERS))
    for number in range(2 * MOST_MEMBERS):
        made.filter_begins(member(str(number)), ["n"])
    for each in (last, member("last"), last):
        made.filter_begins(each, ["n"])
    fresh = Groups(Records())
    fresh.filter_begins(last, ["n"])
    assert made == fresh


def test_a_group_keeps_its_places_in_each_domain_until_a_bind_shows_the_chosen_one() -> None:
    asked = Asked(nodes=0)
    assert [*asked.place("g", "a"), *asked.place("g", "b")] == ["a0", "a1", "b0", "b1"]
    assert asked.filter(member("other", "")) == []
    assert asked.held() == 4
    asked.cluster.apply(NodeChosen("uid-g0", "a0", until=LEASE_SECONDS), asked.now)
    assert asked.held() == 2
    assert [asked.nodes_of(f"g{number}") for number in range(2)] == [("a0",), ("a1",)]
    assert asked.place("h", "b") == ["b0", "b1"]


def test_the_others_of_a_group_keep_their_places_as_long_as_the_first_bind() -> None:
    asked = Asked(nodes=0)
    asked.place("g", "a")
    asked.cluster.apply(NodeChosen("uid-g0", "a0", until=3 * LEASE_SECONDS), asked.now)
    asked.now = 2 * LEASE_SECONDS
    assert asked.held() == 2


def test_a_domain_without_room_for_all_is_free_once_kube_scheduler_asks_about_another_pod() -> None:
    asked = Asked(nodes=0)
    assert asked.filter(member("small", ""), among=["b0"]) == ["b0"]
    assert [*asked.place("g", "b"), *asked.place("g", "a")] == ["b1", "a0", "a1"]
    assert asked.filter(member("other", "")) == ["b1"]
    assert asked.nodes_of("g0") == ("a0",)


def test_a_group_that_fits_in_no_domain_holds_nothing_a_moment_later() -> None:
    asked = Asked(nodes=0)
    assert len([*asked.place("g", "a", members=3), *asked.place("g", "b", members=3)]) == 4
    asked.now += REFUSED_SECONDS
    assert asked.held() == 0


def test_the_next_attempt_at_a_group_has_nothing_of_the_one_before_in_its_way() -> None:
    asked = Asked(nodes=0)
    for _ in range(3):
        assert [*asked.place("g", "b"), *asked.place("g", "a")] == ["b0", "b1", "a0", "a1"]
    assert asked.held() == 4
    assert asked.place("g", "a") == ["a0", "a1"]
    assert asked.held() == 2


def test_members_with_nodes_of_their_own_are_of_one_placement() -> None:
    """Without a topology constraint node selectors may give members different nodes."""
    asked = Asked(nodes=0)
    for number, among in enumerate((["a0"], ["b0"], ["a0", "b0", "b1"])):
        assert len(asked.filter(member(f"g{number}", "g"), among=among)) == 1
    asked.cluster.apply(NodeChosen("uid-g0", "a0", until=LEASE_SECONDS), asked.now)
    assert asked.held() == 3


def test_a_group_is_charged_once_to_its_quota_however_many_domains_are_simulated() -> None:
    asked = Asked(nodes=0)
    limited = {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": {"limits.nvidia.com/gpu": "2"}}}
    asked.cluster.step(Applied(msgspec.convert(limited, ResourceQuota)), 0.0, unperformed(Wake))
    assert [*asked.place("g", "a"), *asked.place("g", "b")] == ["a0", "a1", "b0", "b1"]
    assert asked.filter(member("other", "")) == []
    asked.cluster.apply(NodeChosen("uid-g0", "b0", until=LEASE_SECONDS), asked.now)
    assert asked.filter(member("other", "")) == []


def test_the_condition_that_counts_is_podscheduled() -> None:
    waiting = refused(member("a"), "0/1 nodes are available", version=7)
    waiting.status.conditions.insert(0, Condition(type="Ready", status="False", reason="x", message="y"))
    assert verdict_of(waiting) == SchedulerVerdict(version=7, refusal="Unschedulable: 0/1 nodes are available")
    waiting.status.conditions = [Condition(type="PodScheduled", status="True")]
    assert verdict_of(waiting) == SchedulerVerdict(version=7)


class CountedRecords(Records):
    """Records that count how often all of them are looked through."""

    looks = 0

    def of(self, *states: RecordState) -> list[PodRecord]:
        self.looks += 1
        return super().of(*states)


def test_leases_of_many_groups_that_end_at_once_are_one_look_through_the_records() -> None:
    records = CountedRecords()
    groups = Groups(records)
    records.feed(groups)
    waits = member("p"), request(member("p"))
    held = [
        PodRecord(uid=name, state=RecordState.RESERVED, node="n", pending=Pending(group=name, waits=waits))
        for name in map(str, range(100))
    ]
    records.put(*held)
    assert len(groups.lapsed_of(held)) == 100
    assert records.looks == 1
