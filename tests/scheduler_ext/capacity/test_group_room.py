"""People read how many pods of a group fit, where one alone would."""

from proto.kubernetes.objects import GroupConstraints, Pod, TopologyConstraint
from scheduler_ext.capacity.pod_verdict import judge_pod
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.requests import RequestSettings
from tests.builders import container, node, pod
from tests.scheduler_ext.cluster.test_gangs import gang_object, member, seen
from tests.scheduler_ext.gpus import device

CLIQUE = "nvidia.com/gpu.clique"
SETTINGS = RequestSettings()


def cluster_of(size: int, domain: str = "") -> Cluster:
    group = gang_object(size)
    if domain:
        group.spec.scheduling_constraints = GroupConstraints(topology=(TopologyConstraint(key=domain),))
    cluster = seen(group, *(member(f"g{number}") for number in range(size)))
    for name in ("a0", "a1", "b0"):
        made = node(name, [device(0, replicas=1)])
        made.metadata.labels = {CLIQUE: name[0]}
        cluster.ledger.apply_node(made)
    return cluster


def sentence(cluster: Cluster, waiting: Pod) -> str:
    snapshot = cluster.ledger.snapshot_for(waiting)
    return judge_pod(waiting, SETTINGS, snapshot, cluster.gang_of(waiting)).sentence


def test_a_member_of_a_group_that_does_not_fit_waits_for_all_of_it() -> None:
    assert sentence(cluster_of(4), member("g0")) == "waits: group default/g needs 4 pods of 1 GPU; 3 fit"
    assert "its GPUs fit on 3 nodes now" in sentence(cluster_of(3), member("g0"))


def test_of_a_group_in_one_domain_the_largest_one_counts() -> None:
    expected = "waits: group default/g needs 3 pods of 1 GPU; 2 fit in clique a"
    assert sentence(cluster_of(3, CLIQUE), member("g0")) == expected


def test_a_pod_without_a_group_and_one_that_fits_nowhere_have_their_own_reasons() -> None:
    cluster = cluster_of(4)
    assert sentence(cluster, pod(container(gpu=2), name="p")).startswith("waits: fewer GPUs than asked for")
    assert sentence(cluster, member("g0", gpus=2)).startswith("waits: fewer GPUs than asked for")
