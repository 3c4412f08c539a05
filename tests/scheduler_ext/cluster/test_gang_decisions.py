"""A group whose size is known gets GPUs for all of its pods at the first question, or for none."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.annotations.keys import DEVICES_ALLOCATED
from proto.annotations.pod_devices import encode_pod_devices
from proto.extender import FilterResult
from proto.kubernetes.objects import (
    Condition,
    GangPolicy,
    GroupSchedulingPolicy,
    Node,
    ObjectMeta,
    Pod,
    PodGroup,
    PodGroupSpec,
    SchedulingGroup,
)
from scheduler_ext.cluster.events import (
    Applied,
    BindBegan,
    BindingSent,
    ClusterEvent,
    Dropped,
    LeadershipGained,
    Listed,
    NodeChosen,
    Removed,
    RoomKept,
    Wake,
    unperformed,
)
from scheduler_ext.cluster.gangs import MissingMember
from scheduler_ext.cluster.groups import FAILED_BIND_SECONDS
from scheduler_ext.cluster.records import kept_record
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.decide.decision import NodeChoice
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.membership import KUEUE_GROUP, KUEUE_SIZE
from scheduler_ext.requests import GpuRequest
from scheduler_ext.verbs.filter_decision import FilterDecision
from scheduler_ext.verbs.group_search import MOST_REFUSED, GroupDomains, GroupSearch
from tests.builders import container, node, pod
from tests.scheduler_ext.gpus import device, request

LEASE_SECONDS = 60.0


class Played:
    """Nodes with one GPU of one slot each, and kube-scheduler's questions."""

    def __init__(self, *nodes: str, slots: int = 1) -> None:
        self.names, self.now = list(nodes), 0.0
        self.shown = dict[tuple[type, str], ClusterEvent]()
        """The last event of each object, by type and name."""
        self.start()
        made = [node(name, [device(0, replicas=slots)]) for name in nodes]
        self.step(Listed(Node, made))

    def start(self) -> None:
        """Begins as a new process, which gets from the API server what there is."""
        self.cluster = Cluster()
        self.index = NodeIndex(self.cluster.ledger)
        for event in self.shown.values():
            self.cluster.step(event, self.now, unperformed(Wake))

    def step(self, event: ClusterEvent) -> None:
        if isinstance(event, Applied) and isinstance(event.object, Pod | PodGroup):
            self.shown[type(event.object), event.object.metadata.name] = event
        elif isinstance(event, Listed):
            self.shown[event.kind, ""] = event
        self.cluster.step(event, self.now, unperformed(Wake))

    def gang(self, name: str, size: int, *, exist: int | None = None, gpus: int = 1) -> list[Pod]:
        """The group's object and its pods, of which `exist` were created."""
        policy = GroupSchedulingPolicy(gang=GangPolicy(min_count=size))
        meta = ObjectMeta(name=name, namespace="default")
        self.step(Applied(PodGroup(metadata=meta, spec=PodGroupSpec(scheduling_policy=policy))))
        members = [member(f"{name}{number}", name, gpus) for number in range(size)]
        for each in members[:exist]:
            self.step(Applied(each))
        return members

    def answer(self, waiting: Pod, among: Sequence[str] = ()) -> FilterResult:
        decision = FilterDecision(self.index, self.cluster, LEASE_SECONDS)
        return decision.reserve(waiting, request(waiting), among or self.names, self.now).result

    def filter(self, waiting: Pod, among: Sequence[str] = ()) -> str:
        return next(iter(self.answer(waiting, among).node_names or []), "")

    def bind(self, waiting: Pod, name: str, *, shown: bool = True) -> None:
        uid, until = waiting.metadata.uid, self.now + LEASE_SECONDS
        self.step(NodeChosen(uid, name, until))
        self.step(BindBegan(uid, until))
        self.step(BindingSent(uid, 1))
        if shown:
            self.show(waiting, name)

    def show(self, waiting: Pod, name: str) -> None:
        bound = pod(container(gpu=1), name=waiting.metadata.name, uid=waiting.metadata.uid)
        bound.spec.scheduling_group, bound.spec.node_name = waiting.spec.scheduling_group, name
        bound.metadata.labels, bound.metadata.annotations = waiting.metadata.labels, {**waiting.metadata.annotations}
        record = self.cluster.ledger.records.reserved(waiting.metadata.uid)
        assert record is not None
        bound.metadata.annotations[DEVICES_ALLOCATED] = encode_pod_devices(record.decided[name])
        self.step(Applied(bound))

    def held(self) -> dict[str, Sequence[str]]:
        """The nodes of each reservation, by UID."""
        self.cluster.ledger.expire(self.now)
        records = self.cluster.ledger.records
        return {uid: found.nodes for uid in records.every() if (found := records.reserved(uid)) is not None}

    def slots(self) -> list[int]:
        return [gpu.replicas for usage in self.cluster.ledger.snapshot().nodes.values() for gpu in usage.gpus]


def member(name: str, group: str, gpus: int = 1) -> Pod:
    found = pod(container(gpu=gpus), name=name)
    if group:
        found.spec.scheduling_group = SchedulingGroup(pod_group_name=group)
    return found


def one_by_one(played: Played, name: str, size: int, *, exist: int | None = None) -> list[Pod]:
    """A group of an ordinary kube-scheduler, which looks at each pod alone."""
    members = [member(f"{name}{number}", "") for number in range(size)]
    for each in members:
        each.metadata.labels, each.metadata.annotations = {KUEUE_GROUP: name}, {KUEUE_SIZE: str(size)}
    for each in members[:exist]:
        played.step(Applied(each))
    return members


def test_the_first_question_holds_gpus_for_all_members_of_a_group() -> None:
    played = Played("a", "b", "c")
    members = played.gang("g", 3)
    first = played.filter(members[0])
    held = played.held()
    assert sorted(held) == ["uid-g0", "uid-g1", "uid-g2"]
    assert sorted(name for nodes in held.values() for name in nodes) == ["a", "b", "c"]
    assert (first,) == held["uid-g0"]
    assert [played.filter(each) for each in members[1:]] == [held["uid-g1"][0], held["uid-g2"][0]]


def test_a_group_that_does_not_fit_is_refused_with_one_sentence_and_holds_nothing() -> None:
    played = Played("a", "b", "c")
    members = played.gang("g", 4)
    assert set((played.answer(members[0]).failed_nodes or {}).values()) == {
        "GroupDoesNotFit: group default/g needs 4 pods of 1 GPU; 3 fit"
    }
    assert played.held() == {}


def test_a_member_that_fits_nowhere_has_its_own_reason() -> None:
    played = Played("a", "b")
    members = played.gang("g", 2, gpus=3)
    assert set((played.answer(members[0]).failed_and_unresolvable_nodes or {}).values()) == {"NodeInsufficientDevice"}


def test_the_largest_member_of_a_group_has_its_own_reason_where_only_the_smaller_ones_fit() -> None:
    played = Played("a", "b")
    small, *_ = played.gang("g", 3, exist=2)
    large = member("g2", "g", gpus=2)
    played.step(Applied(large))
    assert set((played.answer(large).failed_and_unresolvable_nodes or {}).values()) == {"NodeInsufficientDevice"}
    sentence = "GroupDoesNotFit: group default/g needs 3 pods of 1 GPU; 2 fit"
    assert set((played.answer(small).failed_and_unresolvable_nodes or {}).values()) == {sentence}


def test_gpus_are_held_for_members_that_do_not_exist_yet_and_such_a_member_gets_them() -> None:
    played = Played("a", "b", "c")
    members = one_by_one(played, "k", 3, exist=1)
    played.bind(members[0], played.filter(members[0]))
    assert sorted(played.held()) == ["default/k#0", "default/k#1"]
    assert played.filter(member("s", "")) == ""
    for each in members[1:]:
        played.step(Applied(each))
        played.bind(each, played.filter(each))
    assert played.held() == {}
    assert played.slots() == [1, 1, 1]


def test_of_two_groups_that_fit_only_one_after_the_other_the_second_waits_pod_by_pod_too() -> None:
    played = Played("a", "b", "c")
    ours, theirs = one_by_one(played, "ours", 2), one_by_one(played, "theirs", 2)
    for mine, other in zip(ours, theirs, strict=True):
        found = played.filter(mine)
        assert (bool(found), played.filter(other)) == (True, "")
        played.bind(mine, found)
    assert played.held() == {}
    assert sorted(played.slots()) == [0, 1, 1]


def test_a_group_that_fits_after_one_of_its_members_was_refused_keeps_all_of_its_gpus() -> None:
    played = Played("a", "b")
    other = member("other", "")
    played.bind(other, played.filter(other))
    first, second = one_by_one(played, "k", 2)
    assert played.filter(second) == ""
    played.step(Removed(other))
    place = played.filter(first)
    assert played.filter(member("s", "")) == ""
    played.now += LEASE_SECONDS / 2
    assert played.filter(member("t", "")) == ""
    played.bind(first, place)
    assert played.filter(second)


def test_what_kube_scheduler_leaves_out_of_a_group_frees_all_of_it() -> None:
    played = Played("a", "b", "c")
    members = played.gang("g", 3)
    assert played.filter(members[0])
    assert len(played.held()) == 3
    assert played.filter(member("s", ""))
    assert sorted(played.held()) == ["uid-s"]


def test_a_member_beyond_those_that_the_group_needs_is_not_the_groups_refusal() -> None:
    played = Played("a", "b")
    members = played.gang("g", 2)
    extra = member("g2", "g")
    played.step(Applied(extra))
    assert all([*map(played.filter, members)])
    assert played.filter(extra) == ""
    assert played.filter(member("s", "")) == ""
    assert len(played.held()) == 2


def test_places_in_the_losing_domain_are_free_once_the_winner_is_bound() -> None:
    played = Played("a0", "a1", "b0", "b1")
    members = played.gang("g", 2)
    for domain in (["a0", "a1"], ["b0", "b1"]):
        for each in members:
            assert played.filter(each, domain) in domain
    assert played.filter(member("s", "")) == ""
    played.bind(members[1], played.held()["uid-g1"][-1])
    assert len(played.held()["uid-g0"]) == 1
    assert sum(played.slots()) == 2


def with_a_failed_bind() -> tuple[Played, list[Pod], list[str]]:
    """A group of two, its members and their places: the first is bound, and the bind of the second failed."""
    played = Played("a", "b")
    members = played.gang("g", 2)
    places = [played.filter(each) for each in members]
    played.bind(members[0], places[0])
    played.bind(members[1], places[1], shown=False)
    played.step(Dropped("uid-g1"))
    return played, members, places


def test_a_member_whose_bind_failed_keeps_its_gpus_for_a_while() -> None:
    played, members, places = with_a_failed_bind()
    assert played.filter(member("s", "")) == ""
    assert played.filter(members[1]) == places[1]
    played.bind(members[1], places[1], shown=False)
    played.step(Dropped("uid-g1"))
    played.now += FAILED_BIND_SECONDS
    assert played.held() == {}


def test_a_status_that_shows_the_failed_bind_later_takes_nothing_from_the_next_attempt() -> None:
    played, members, places = with_a_failed_bind()
    assert played.filter(members[1]) == places[1]
    for version, (reason, held) in enumerate({"SchedulerError": 1, "Unschedulable": 0}.items(), start=2):
        late = member("g1", "g")
        late.metadata.resource_version = str(version)
        late.status.conditions = [Condition(type="PodScheduled", status="False", reason=reason, message="refused")]
        played.step(Applied(late))
        assert len(played.held()) == held


def test_a_new_leader_finds_the_rest_of_a_group_that_is_bound_in_part() -> None:
    played = Played("a", "b", "c")
    members = played.gang("g", 3)
    played.bind(members[0], played.filter(members[0]))
    played.step(LeadershipGained())
    assert played.held() == {}
    assert len({played.filter(each) for each in members[1:]}) == 2
    assert played.slots() == [1, 1, 1]


def test_a_gpu_that_went_out_of_service_is_not_given_to_the_member_it_was_held_for() -> None:
    played = Played("a", "b", "c")
    members = played.gang("g", 2)
    played.filter(members[0])
    (place,) = played.held()["uid-g1"]
    played.step(Applied(node(place, [replace(device(0, replicas=1), healthy=False)])))
    assert played.filter(members[1]) not in {"", place, *played.held()["uid-g0"]}


def test_a_search_refuses_each_shape_once_and_ends_after_a_few() -> None:
    played = Played("a", "b")
    members = played.gang("g", 2, gpus=3)
    for number in range(200):
        played.step(Applied(member(f"more{number}", "g", 3 + number // 10)))
    looks = list[GpuRequest]()

    def chosen(looked: GpuRequest, _: int, names: Collection[str], __: float) -> NodeChoice:
        looks.append(looked)
        return played.index.choose(looked, names)

    gang, first = played.cluster.gang_of(members[0]), request(members[0])
    search = GroupSearch(
        cluster=played.cluster,
        domains=GroupDomains(played.index, ()),
        chosen=chosen,
        member=MissingMember(uid=first.uid, pod=members[0], request=first),
        node_names=played.names,
        now=0.0,
        until=1.0,
    )
    found = search.decide(gang)
    assert found is not None
    assert found.node is None
    assert len(looks) == len({looked.needs for looked in looks}) == MOST_REFUSED


def test_a_group_that_does_not_fit_takes_no_room_that_is_kept_for_a_pod_of_lower_priority() -> None:
    played = Played("a", "b")
    lower = request(member("lower", ""))
    kept = kept_record(lower, "a", played.index.choose(lower, ["a"]).shares, priority=1, until=60.0)
    played.step(RoomKept(kept))
    first, *others = played.gang("g", 3)
    for each in (first, *others):
        each.spec.priority = 2
    assert played.filter(first) == ""
    assert played.cluster.ledger.records.kept(lower.uid) == kept


def test_members_that_may_not_go_to_the_same_nodes_are_not_decided_ahead() -> None:
    played = Played("a", "b")
    members = played.gang("g", 2)
    members[1].spec.node_selector = {"pool": "large"}
    played.step(Applied(members[1]))
    assert played.filter(members[0])
    assert sorted(played.held()) == ["uid-g0"]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask in a", "ask in b", "bind", "fail", "time", "lead", "restart", "stranger"]),
        st.integers(0, 2),
        st.integers(0, 3),
    ),
    max_size=40,
)


@given(steps=STEPS, sizes=st.tuples(*[st.integers(2, 4)] * 3), cycle=st.booleans())
def test_groups_never_over_book_and_hold_nothing_after_their_leases(
    steps: list[tuple[str, int, int]], sizes: tuple[int, int, int], cycle: bool
) -> None:
    played = Played("a0", "a1", "a2", "b0", "b1", "b2")
    groups = [
        played.gang(f"g{number}", size) if cycle else one_by_one(played, f"g{number}", size)
        for number, size in enumerate(sizes)
    ]
    bound = set[str]()
    for number, (what, group, position) in enumerate(steps):
        waiting = groups[group][position % sizes[group]]
        record = played.cluster.ledger.records.reserved(waiting.metadata.uid)
        if (
            what.startswith("ask")
            and waiting.metadata.uid not in bound
            and (record is None or not record.pending.binding)
        ):
            among = {"ask": (), "ask in a": ["a0", "a1", "a2"], "ask in b": ["b0", "b1", "b2"]}[what]
            held = played.held()
            found = played.filter(waiting, among)
            members = {each.metadata.uid for each in groups[group]}
            if found:
                assert members <= bound | played.held().keys()
            elif members.isdisjoint(held):
                assert members.isdisjoint(played.held())
        elif what == "bind" and record is not None and not (record.pending.binding or record.pending.ahead):
            played.bind(waiting, record.node)
            bound.add(waiting.metadata.uid)
        elif what == "fail" and record is not None and not (record.pending.binding or record.pending.ahead):
            played.bind(waiting, record.node, shown=False)
            played.step(Dropped(waiting.metadata.uid))
        elif what == "time":
            played.now += 10.0 * position
        elif what == "restart":
            played.start()
            assert played.held() == {}
        elif what == "lead":
            played.step(LeadershipGained())
        elif what == "stranger":
            played.filter(member(f"s{number}", ""))
        assert max(played.slots()) <= 1
    played.now += 2 * LEASE_SECONDS
    assert set(played.held()) == set()
    assert sum(played.slots()) == len(bound)


@pytest.mark.parametrize("cycle", [True, False])
def test_fifty_groups_of_eight_are_all_bound_one_after_the_other(cycle: bool) -> None:
    played = Played(*(f"n{number}" for number in range(24)))
    groups = [played.gang(f"g{number}", 8) if cycle else one_by_one(played, f"g{number}", 8) for number in range(50)]
    rounds = 0
    while groups and (rounds := rounds + 1) < 50:
        refused = []
        for members in groups:
            if not played.filter(members[0]):
                refused.append(members)
                continue
            for each, place in zip(members, [played.filter(each) for each in members], strict=True):
                played.bind(each, place)
        assert len(groups) - len(refused) == min(3, len(groups))
        for members in groups:
            for each in members:
                if members not in refused:
                    played.cluster.ledger.remove_pod(each.metadata.uid)
        groups = refused
    assert (groups, rounds) == ([], 17)
