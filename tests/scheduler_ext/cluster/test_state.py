"""Events go into the cluster's state, and what has to be done outside comes out."""

import re
from math import inf

import pytest
from msgspec.structs import replace

from proto.annotations import keys
from proto.kubernetes.objects import Node, Pod
from scheduler_ext.cluster.events import (
    Applied,
    BindBegan,
    BindingSent,
    BindStep,
    Changed,
    ClusterEvent,
    Decided,
    Dropped,
    Effect,
    Explained,
    FilterBegan,
    Freed,
    LeadershipGained,
    Listed,
    NodeChosen,
    Nominated,
    NominationsEnded,
    PodRefused,
    PodWatch,
    Proposed,
    RecordEvent,
    Removed,
    Requeued,
    RoomsGivenUp,
    TimePassed,
    WaitEnded,
    Wake,
    unperformed,
)
from scheduler_ext.cluster.history import MOST_PODS, MOST_STEPS, Histories
from scheduler_ext.cluster.pod_index import pod_name
from scheduler_ext.cluster.records import RecordState
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.decide.index import NodeIndex
from tests.builders import container, node, pod
from tests.scheduler_ext.cluster.ledgers import bound, share
from tests.scheduler_ext.gpus import device, request

NODE = node("n", [device(0)])
WAITING = pod(container(gpu=1), name="p")
DECIDED = Decided("uid-p", WAITING, "n", ((share("G0"),),), 60.0)


def effects_of(made: Cluster, event: ClusterEvent, now: float = 0.0) -> list[Effect]:
    found: list[Effect] = []
    made.step(event, now, found.append)
    return found


def cluster(*happened: ClusterEvent) -> Cluster:
    made = Cluster()
    for event in (Listed(Node, [NODE]), *happened):
        made.step(event, 0.0, unperformed(Wake))
    return made


@pytest.mark.parametrize(
    "own",
    [
        FilterBegan(WAITING),
        DECIDED,
        PodRefused(WAITING, request(WAITING)),
        PodRefused(WAITING, None),
        Explained("uid-p", "no node"),
        NodeChosen("uid-p", "n", 1e9),
        BindBegan("uid-p", 90.0),
        Dropped("uid-p"),
        BindStep("uid-p", "refused"),
        BindingSent("uid-p", 1),
        Requeued("uid-p"),
        WaitEnded("uid-p"),
        RoomsGivenUp(["uid-p"]),
        NominationsEnded(["uid-p"]),
        LeadershipGained(),
        TimePassed(),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_the_extender_decides_itself_has_no_effect_outside(own: ClusterEvent) -> None:
    assert effects_of(cluster(Applied(WAITING), DECIDED), own, 1.0) == []


def test_who_waits_for_a_node_or_pod_is_woken_and_waiting_pods_are_looked_at_when_room_is_made() -> None:
    made = cluster()
    assert effects_of(made, Applied(NODE)) == [Changed("n")]
    assert effects_of(made, Applied(node("n", [device(0), device(1)]))) == [Changed("n"), Freed()]
    assert effects_of(made, Applied(WAITING)) == [Changed(pod_name(WAITING))]
    assert effects_of(made, Removed(WAITING)) == [Changed(pod_name(WAITING)), Freed()]
    assert effects_of(made, Listed(Pod, [])) == [Changed()]
    assert effects_of(made, Applied(pod(container(), name="without-gpus"))) == []


def test_an_annotation_that_cannot_be_read_is_told_once() -> None:
    made, broken = cluster(), bound("p", "garbage")
    effects = [effect for _ in range(2) for effect in effects_of(made, Applied(broken))]
    (told,) = (effect for effect in effects if isinstance(effect, RecordEvent))
    assert (told.subject.uid, told.notice.reason) == ("uid-p", "UnreadableAllocation")
    assert keys.DEVICES_ALLOCATED in told.notice.message


def test_a_nominated_pod_without_a_promise_is_to_get_its_room() -> None:
    nominated = pod(container(gpu=1), name="p")
    nominated.status.nominated_node_name = "n"
    assert Nominated(nominated, "n") in effects_of(cluster(), Applied(nominated))
    assert Nominated(nominated, "n") not in effects_of(cluster(DECIDED), Applied(nominated))
    assert effects_of(cluster(), Proposed(nominated, {"n": ["uid-low"]})) == [Nominated(nominated, "n")]
    assert effects_of(cluster(), Proposed(nominated, {"m": ["uid-low"]})) == []


def test_time_ends_a_promise_before_the_event_that_brings_it() -> None:
    made = cluster(DECIDED)
    assert len(made.ledger.records.of(RecordState.RESERVED)) == 1
    made.apply(BindBegan("uid-p", inf), 60.0)
    assert len(made.ledger.records.of(RecordState.RESERVED)) == 0


def test_the_story_of_a_pod_is_told_in_order() -> None:
    made = Cluster()
    for at, event in enumerate((Listed(Node, [NODE]), FilterBegan(WAITING), DECIDED, Dropped("uid-p"))):
        made.step(event, float(at), unperformed(Wake))
    assert made.history.line("uid-p", 4.0) == (
        "3.0 s ago kube-scheduler asked about it, 2.0 s ago node n was decided, 1.0 s ago its reservation was dropped"
    )


def test_stories_take_no_more_memory_than_they_may() -> None:
    histories = Histories()
    for number in range(MOST_PODS + 1):
        histories.add(str(number), 0.0, "asked")
        histories.set_decided(str(number), 0.0, "no node")
    for _ in range(2 * MOST_STEPS):
        histories.add("1", 0.0, "asked")
    assert (histories.of("0").steps, histories.of("0").decided) == ((), None)
    assert len(histories.of("1").steps) == MOST_STEPS
    histories.set_decided("unknown", 0.0, "no node")
    assert histories.of("unknown").decided is None


def test_a_pod_without_gpus_has_no_story() -> None:
    """kube-scheduler can be configured to bind every pod here, also pods without GPUs."""
    made = Cluster()
    for event in (
        NodeChosen("uid-p", "n", 60.0),
        BindBegan("uid-p", 60.0),
        BindStep("uid-p", "bound"),
        Dropped("uid-p"),
    ):
        made.step(event, 0.0, unperformed(Wake))
    assert made.history.of("uid-p").steps == ()


@pytest.mark.parametrize(("pods", "free_at"), [([], 700.0), ([WAITING], 1130.0)], ids=["gone", "still there"])
def test_a_sent_reservation_waits_for_the_watch_only_while_its_pod_exists(pods: list[Pod], free_at: float) -> None:
    """Otherwise it would never end where the watch is interrupted now and then."""
    asked = pod(container(gpu=1), name="p")
    asked.metadata.resource_version = "10"
    made = cluster(PodWatch(works=False), replace(DECIDED, pod=asked, until=600.0), BindingSent("uid-p", 1))
    for now in (30.0, 530.0):
        made.step(PodWatch(works=False), now - 1, unperformed(Wake))
        made.step(Listed(Pod, pods, 20), now, unperformed(Wake))
        made.step(PodWatch(works=True), now, unperformed(Wake))
    made.apply(TimePassed(), free_at - 101)
    assert made.ledger.records.reserved("uid-p") is not None
    made.apply(TimePassed(), free_at)
    assert made.ledger.records.reserved("uid-p") is None


@pytest.mark.parametrize(
    ("key", "value", "where"),
    [
        (keys.NODE_NUMA, '{"version":1,"policy":"most-effort"}', r"\$\.policy: .*'most-effort'"),
        (keys.NODE_NUMA, '{"version":2,"policy":"none"}', r"\$\.version: Invalid value 2"),
        (keys.NODE_UNDECIDED, "{", ""),
        (keys.NODE_OUTLIVING, "{", ""),
    ],
)
def test_a_newer_daemon_s_annotation_that_cannot_be_read_is_named_in_an_event_and_the_node_gets_pods(
    key: str, value: str, where: str
) -> None:
    made = Cluster()
    effects = effects_of(made, Applied(node("n", [device(0)], annotations={key: value})))
    (told,) = [each for each in effects if isinstance(each, RecordEvent)]
    assert (told.subject.uid, told.notice.reason) == ("n", "UnreadableRegistration")
    assert re.match(f"{key}: {where}.*; without it the node gets pods all the same", told.notice.message)
    assert NodeIndex(made.ledger).choose(request(WAITING), ["n"]).node == "n"
    made.step(Applied(NODE), 0.0, unperformed(Wake))
    assert made.ledger.nodes.problem("n") == ""


def test_an_effect_that_a_caller_neither_performs_nor_names_is_an_error() -> None:
    unreadable = node("n", [device(0)], annotations={keys.NODE_UNDECIDED: "{"})
    with pytest.raises(TypeError, match="nothing performs RecordEvent"):
        Cluster().step(Applied(unreadable), 0.0, unperformed(Wake))
