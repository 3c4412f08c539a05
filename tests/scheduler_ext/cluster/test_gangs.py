"""What is missing of a group, as far as it is known."""

from collections.abc import Callable

import pytest

from proto.annotations.keys import NODE_CLIQUE
from proto.kubernetes.objects import (
    CoschedulingPodGroup,
    GangPolicy,
    GroupSchedulingPolicy,
    Object,
    ObjectMeta,
    Pod,
    PodGroup,
    PodGroupSpec,
    SchedulingGroup,
    WorkloadReference,
)
from scheduler_ext.cluster.events import Applied, Effect, Freed, Listed, RecordEvent, Removed, Wake, unperformed
from scheduler_ext.cluster.gangs import Gang, MissingMember
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.membership import membership_of
from scheduler_ext.requests import RequestSettings, pod_key
from tests.builders import container, node, pod
from tests.scheduler_ext.gpus import device, request

SETTINGS = RequestSettings()


def member(name: str, gpus: int = 1, node: str = "") -> Pod:
    found = pod(container(gpu=gpus), name=name)
    found.spec.scheduling_group, found.spec.node_name = SchedulingGroup(pod_group_name="g"), node
    return found


def gang_object(size: int) -> PodGroup:
    policy = GroupSchedulingPolicy(gang=GangPolicy(min_count=size))
    return PodGroup(metadata=ObjectMeta(name="g", namespace="default"), spec=PodGroupSpec(scheduling_policy=policy))


def seen(*objects: Pod | PodGroup) -> Cluster:
    cluster = Cluster()
    for each in objects:
        cluster.step(Applied(each), 0.0, unperformed(Wake, RecordEvent))
    return cluster


def missing(gang: Gang | None, asked: Pod, *placed: str) -> list[str]:
    assert gang is not None
    first = MissingMember(uid=pod_key(asked), pod=asked, request=request(asked))
    return [each.uid for each in gang.missing(first, placed, SETTINGS)]


def test_of_a_gang_pods_that_are_bound_and_pods_without_gpus_are_not_missing() -> None:
    launcher = member("launcher")
    launcher.spec.containers = [container()]
    asked = member("b")
    cluster = seen(gang_object(5), launcher, member("a", node="n"), asked, member("c"))
    gang = cluster.gang_of(asked)
    assert gang is not None
    assert (gang.size, gang.settled, gang.needed) == (5, 2, 3)
    assert missing(gang, asked) == ["uid-b", "uid-c", "default/g#0"]
    assert missing(gang, asked, "default/g#0") == ["uid-b", "uid-c"]
    assert missing(gang, asked, "uid-c") == ["uid-b", "default/g#0"]


def test_members_that_do_not_exist_yet_cost_no_request_of_their_own_until_they_are_placed() -> None:
    asked = member("a")
    gang = seen(gang_object(10_000), asked).gang_of(asked)
    assert gang is not None
    first = MissingMember(uid=pod_key(asked), pod=asked, request=request(asked))
    found = gang.missing(first, (), SETTINGS)
    assert len(found) == 10_000
    assert {id(each.request) for each in found} == {id(first.request)}
    assert {each.own_request.uid for each in found[:3]} == {"uid-a", "default/g#0", "default/g#1"}


def test_a_gang_follows_its_pods_and_its_object() -> None:
    asked, other = member("a"), member("b")
    cluster = seen(gang_object(2), asked, other)
    assert missing(cluster.gang_of(asked), asked) == ["uid-a", "uid-b"]
    cluster.step(Removed(other), 0.0, unperformed(Wake))
    assert missing(cluster.gang_of(asked), asked) == ["uid-a", "default/g#0"]
    cluster.step(Listed(Pod, [asked]), 0.0, unperformed(Wake))
    assert missing(cluster.gang_of(asked), asked) == ["uid-a", "default/g#0"]
    cluster.step(Removed(gang_object(2)), 0.0, unperformed(Wake))
    assert cluster.gang_of(asked) is None
    cluster.step(
        Listed(CoschedulingPodGroup, [CoschedulingPodGroup(metadata=gang_object(2).metadata)]), 0.0, unperformed(Wake)
    )
    assert cluster.gang_of(asked) is None


def test_groups_that_wait_are_looked_at_again_where_a_node_or_a_group_changed() -> None:
    """Neither changes which pod fits on a node."""
    cluster, found = Cluster(), list[Effect]()

    def frees(changed: Object) -> bool:
        found.clear()
        cluster.step(Applied(changed), 0.0, found.append)
        return Freed() in found

    changes = [node("n", [device(0)], labels={NODE_CLIQUE: clique}) for clique in "aab"]
    assert [frees(each) for each in changes] == [True, False, True]
    assert [frees(gang_object(size)) for size in (4, 4, 3)] == [True, False, True]


def test_a_group_without_a_size_is_no_gang() -> None:
    basic = PodGroup(metadata=gang_object(1).metadata, spec=PodGroupSpec(scheduling_policy=GroupSchedulingPolicy()))
    for group in (basic, gang_object(1), gang_object(20_000)):
        assert seen(group, member("a")).gang_of(member("a")) is None
    assert seen().gang_of(member("a")) is None


def kubernetes_1_35(found: Pod) -> None:
    found.spec.workload_ref = WorkloadReference(name="w", pod_group="workers", pod_group_replica_key="3")


def labelled(key: str) -> Callable[[Pod], None]:
    def write(found: Pod) -> None:
        found.metadata.labels = {key: "g"}
        found.metadata.annotations = {"kueue.x-k8s.io/pod-group-total-count": "4"}

    return write


def volcano(size: str) -> Callable[[Pod], None]:
    def write(found: Pod) -> None:
        found.metadata.annotations = {
            "scheduling.k8s.io/group-name": "g",
            "scheduling.volcano.sh/group-min-member": size,
        }

    return write


@pytest.mark.parametrize(
    ("write", "group", "size"),
    [
        (kubernetes_1_35, "default/w/workers/3", 0),
        (labelled("scheduling.x-k8s.io/pod-group"), "default/g", 0),
        (labelled("pod-group.scheduling.sigs.k8s.io"), "default/g", 0),
        (labelled("kueue.x-k8s.io/pod-group-name"), "default/g", 4),
        (volcano("3"), "default/g", 3),
        (volcano("-3"), "default/g", 0),
        (volcano("99999"), "default/g", 0),
    ],
)
def test_membership_is_read_as_each_scheduler_writes_it(write: Callable[[Pod], None], group: str, size: int) -> None:
    found = pod(container(gpu=1), name="p")
    assert membership_of(found) is None
    write(found)
    read = membership_of(found)
    assert read is not None
    assert (read.group, read.size) == (group, size)
