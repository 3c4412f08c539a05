"""A node whose kubelet refused a pod for the place of its CPUs gets no other one like it for a while."""

from collections.abc import Mapping
from itertools import count

import pytest

from proto.annotations import keys
from proto.kubernetes.objects import TOPOLOGY_AFFINITY_ERROR, Node, Pod
from scheduler_ext.cluster.events import Applied, Listed, Removed, TimePassed, Wake, unperformed
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.decide.reasons import words_of
from scheduler_ext.requests import read_request
from scheduler_ext.verbs.filter_decision import FilterDecision
from tests.builders import container, node, pod
from tests.scheduler_ext.gpus import device

WORDS = (
    "kubelet has refused a pod with the same requests there for the place of its CPUs (default/refused-1); the node is "
    "tried again when a pod with GPUs leaves it, at the latest after 300 s"
)


class Played:
    """Two nodes with one GPU each, of which kubelet and scheduler are played."""

    def __init__(self) -> None:
        self.cluster, self.now, self._numbers = Cluster(), 1000.0, count(1)
        self.cluster.step(Listed(Node, [node(name, [device(ord(name))]) for name in "ab"]), self.now, unperformed(Wake))

    def apply(self, each: Pod) -> None:
        self.cluster.step(Applied(each), self.now, unperformed(Wake))

    def bound(self, name: str, on: str, cpu: int = 2, phase: str = "", reason: str = "") -> Pod:
        shares = f"G{ord(on)},NVIDIA,1000,0:;"
        made = asking(name, cpu, node_name=on, phase=phase, annotations={keys.DEVICES_ALLOCATED: shares})
        made.status.reason = reason
        return made

    def refuse(self, on: str = "a", cpu: int = 2, reason: str = TOPOLOGY_AFFINITY_ERROR) -> None:
        """A pod is bound, and its kubelet refuses it."""
        name = f"refused-{next(self._numbers)}"
        self.apply(self.bound(name, on, cpu))
        self.apply(self.bound(name, on, cpu, "Failed", reason))

    def closed(self, cpu: int = 2) -> Mapping[str, str]:
        self.cluster.apply(TimePassed(), self.now)
        return self.cluster.closed_to(asking("next", cpu))


def asking(name: str, cpu: int = 2, node_name: str = "", phase: str = "", annotations: Mapping[str, str] = {}) -> Pod:
    one = container(gpu=1, gpumem=1000, cpu=cpu, memory="1Gi")
    return pod(one, name=name, node_name=node_name, phase=phase, annotations=annotations)


@pytest.fixture
def played() -> Played:
    return Played()


def test_a_pod_like_a_refused_one_goes_to_another_node_and_waits_with_a_sentence_if_there_is_none(
    played: Played,
) -> None:
    decision = FilterDecision(NodeIndex(played.cluster.ledger), played.cluster, 30.0)
    played.refuse()
    waiting = asking("next")
    request = read_request(waiting, played.cluster.requests)
    assert request is not None
    assert decision.reserve(waiting, request, ["a", "b"], played.now).result.node_names == ["b"]
    refused = decision.reserve(waiting, request, ["a"], played.now).result
    assert refused.node_names is None
    assert words_of((refused.failed_and_unresolvable_nodes or {})["a"]) == (WORDS,)
    assert played.cluster.snapshot_for(waiting).unregistered.keys() == {"a"}


@pytest.mark.parametrize(("reason", "closed"), [("SMTAlignmentError", {"a"}), ("OutOfcpu", set())])
def test_only_refusals_for_the_place_of_cpus_close_a_node(played: Played, reason: str, closed: set[str]) -> None:
    played.refuse(reason=reason)
    assert played.closed().keys() == closed


def test_a_pod_with_other_requests_may_go_to_the_node_that_refused_one(played: Played) -> None:
    played.refuse()
    assert played.closed().keys() == {"a"}
    assert not played.closed(cpu=1)


def test_the_pause_after_a_refusal_doubles_with_each_next_try_up_to_five_minutes(played: Played) -> None:
    for pause in (30, 60, 120, 240, 300, 300):
        played.refuse()
        played.refuse()  # Sent at the same time.
        played.now += pause - 1
        assert played.closed().keys() == {"a"}
        played.now += 1
        assert not played.closed()
    played.now += 301
    played.refuse()
    played.now += 30
    assert not played.closed()


def test_a_node_that_refused_a_pod_is_tried_again_once_a_pod_with_gpus_leaves_it(played: Played) -> None:
    for leaver in ("a", "b"):
        played.apply(played.bound(f"on-{leaver}", leaver))
    played.refuse()
    played.apply(played.bound("on-b", "b", phase="Succeeded"))
    assert played.closed().keys() == {"a"}
    played.cluster.step(Removed(played.bound("on-a", "a", phase="Succeeded")), played.now, unperformed(Wake))
    assert not played.closed()


def test_a_refused_pod_that_is_written_again_or_deleted_is_no_further_refusal_and_no_room(played: Played) -> None:
    played.refuse()
    failed = played.bound("refused-1", "a", 2, "Failed", TOPOLOGY_AFFINITY_ERROR)
    played.cluster.step(Removed(failed), played.now, unperformed(Wake))
    assert played.closed().keys() == {"a"}
    played.now += 30
    played.apply(failed)
    assert not played.closed()


def test_failed_pods_of_before_are_no_refusals_for_an_extender_that_starts(played: Played) -> None:
    failed = played.bound("old", "a", 2, "Failed", TOPOLOGY_AFFINITY_ERROR)
    played.cluster.step(Listed(Pod, [failed]), played.now, unperformed(Wake))
    assert not played.closed()


def test_refusals_that_are_remembered_are_bounded(played: Played) -> None:
    for cpu in range(1, 1100):
        played.refuse(cpu=cpu)
    assert played.closed(cpu=1000)
    assert not played.closed(cpu=1001)
