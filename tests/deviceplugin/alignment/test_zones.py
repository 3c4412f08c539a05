"""The NUMA nodes that the Node shows and that kubelet is led to."""

from dataclasses import replace

import pytest

from deviceplugin.alignment.kubelet_configuration import (
    ConfigurationUnreadable,
    KubeletAlignment,
    decode_configuration,
)
from deviceplugin.alignment.notices import apart, refused
from deviceplugin.alignment.zones import Leading, closed_zones, held_zones, is_served, node_numa, shown_numa
from deviceplugin.allocation.decision import TakenPart
from deviceplugin.plugin_calls import NumaHints
from deviceplugin.records.holdings import ExclusiveCpus, Holding
from deviceplugin.records.pod_resources import exclusive_cpus
from proto.annotations.keys import NODE_NUMA
from proto.annotations.node_numa import NodeNuma, TopologyPolicy, TopologyScope, ZoneCpus, encode_numa
from proto.kubernetes.objects import STATIC_UID, Node, ObjectMeta
from proto.podresources import podresources_v1_pb2 as pb
from tests.deviceplugin.gpus import PAIR, A, B, bound_pod, share

NEAR, FAR = replace(PAIR[0], numa=0), replace(PAIR[1], numa=1)
ALL_OF_A = {A: TakenPart(1, NEAR.memory_mib, 0)}
ZONES = {0: range(4), 1: range(4, 8), 2: ()}
FREE = {0: 4, 1: 4}
GPU = "nvidia.com/gpu"
STRICT = KubeletAlignment(TopologyPolicy.RESTRICTED, TopologyScope.POD, "static")


def test_kubelets_configuration_is_read_with_its_defaults() -> None:
    head = b"kind: KubeletConfiguration\n"
    assert decode_configuration(head) == KubeletAlignment()
    strict = b"topologyManagerPolicy: restricted\ntopologyManagerScope: pod\ncpuManagerPolicy: static\n"
    assert decode_configuration(head + strict) == STRICT
    for empty in (b'""', b"null"):
        assert (
            decode_configuration(b'{"kind":"KubeletConfiguration","topologyManagerScope":%b}' % empty)
            == KubeletAlignment()
        )
    assert decode_configuration(head + b"1: 2\n") == KubeletAlignment()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"kind: Pod",
        b"kind: [",
        b"\xff",
        b"kind: KubeletConfiguration\ncpuManagerPolicy: 1",
        b"a: 2026-13-45",
        b"a: 0b_",
    ],
)
def test_another_file_is_no_configuration_of_kubelet(text: bytes) -> None:
    with pytest.raises(ConfigurationUnreadable):
        decode_configuration(text)


def test_cpus_of_pods_without_gpus_are_not_free_and_cpus_of_pods_with_gpus_are() -> None:
    cpus = ExclusiveCpus(all=frozenset(range(1, 8)), of_others=frozenset({4, 5}))
    assert node_numa(STRICT, ZONES, cpus, Leading(frozenset({1}), frozenset({1}))) == NodeNuma(
        policy=TopologyPolicy.RESTRICTED,
        scope=TopologyScope.POD,
        zones={0: ZoneCpus(4, 3), 1: ZoneCpus(4, 2, closed=True)},
    )
    with_gpu = pb.PodResources(
        containers=[
            pb.ContainerResources(
                name="a", cpu_ids=[1], devices=[pb.ContainerDevices(resource_name=GPU, device_ids=["a"])]
            ),
            pb.ContainerResources(name="b", cpu_ids=[2]),
        ],
        namespace="team",
        name="p",
    )
    other = pb.PodResources(containers=[pb.ContainerResources(cpu_ids=[4, 5])])
    found = exclusive_cpus(
        pb.AllocatableResourcesResponse(cpu_ids=range(1, 8)),
        pb.ListPodResourcesResponse(pod_resources=[with_gpu, other]),
        GPU,
    )
    of_ours = {("team", "p", "a"): frozenset({1}), ("team", "p", "b"): frozenset({2})}
    assert found == replace(cpus, of_ours=of_ours, without_gpus=frozenset({2}))


@pytest.mark.parametrize(("scope", "free"), [(TopologyScope.CONTAINER, 2), (TopologyScope.POD, 3)])
def test_cpus_of_a_container_without_gpus_are_not_free_where_containers_are_aligned_one_by_one(
    scope: TopologyScope, free: int
) -> None:
    kubelet = KubeletAlignment(TopologyPolicy.RESTRICTED, scope, "static")
    cpus = ExclusiveCpus(all=frozenset(range(1, 8)), of_others=frozenset(), without_gpus=frozenset({2}))
    assert node_numa(kubelet, ZONES, cpus, Leading()).zones[0] == ZoneCpus(4, free)


@pytest.mark.parametrize(
    ("kubelet", "zones"),
    [
        (KubeletAlignment(TopologyPolicy.NONE, cpu_manager_policy="static"), ZONES),
        (KubeletAlignment(TopologyPolicy.RESTRICTED), ZONES),
        (STRICT, {0: range(8)}),
    ],
)
def test_zones_are_shown_only_where_kubelet_keeps_cpus_and_gpus_together(
    kubelet: KubeletAlignment, zones: dict[int, range]
) -> None:
    cpus = ExclusiveCpus(all=frozenset(range(8)), of_others=frozenset())
    assert not node_numa(kubelet, zones, cpus, Leading()).zones
    assert not node_numa(kubelet, zones, None, Leading()).zones


def test_a_numa_node_none_of_whose_gpus_has_room_is_closed() -> None:
    assert closed_zones((NEAR, FAR), (), FREE) == frozenset()
    assert closed_zones((NEAR, FAR), (ALL_OF_A,), FREE) == {0}
    assert closed_zones((NEAR, FAR), ({A: TakenPart(1, 1, 100)},), FREE) == {0}
    assert closed_zones((NEAR, replace(FAR, healthy=False)), (), FREE) == {1}
    assert closed_zones((NEAR, replace(FAR, numa=0)), (ALL_OF_A,), FREE) == frozenset()
    assert closed_zones((replace(NEAR, numa=-1),), (ALL_OF_A,), FREE) == frozenset()


def test_a_numa_node_without_an_idle_gpu_is_closed_while_another_has_one_and_as_many_cpus() -> None:
    part = {A: TakenPart(1, 1, 0)}
    assert closed_zones((NEAR, FAR), (part,), FREE) == {0}
    assert closed_zones((NEAR, FAR), (part,), {0: 4, 1: 3}) == frozenset()
    assert closed_zones((NEAR, FAR), (part, {B: TakenPart(1, 1, 0)}), FREE) == frozenset()
    assert ExclusiveCpus(
        all=frozenset(range(4)), of_others=frozenset({1}), of_ours={("team", "p", "c"): frozenset({2})}
    ).free == {0, 3}


def test_a_replica_keeps_the_numa_node_that_it_was_given_with_and_a_free_one_of_a_closed_node_names_none() -> None:
    holding = Holding(
        pod_uid="u",
        container_name="main",
        resource_name=GPU,
        device_ids={"-1": [f"{A}-0"], "0": [f"{A}-1"], "1": None},
    )
    other = Holding(pod_uid="u", container_name="main", resource_name="other.io/nic", device_ids={"0": [f"{B}-0"]})
    hints = NumaHints(zones=frozenset({0, 1}), closed=frozenset({0}), held=held_zones((holding, other), None, GPU))
    assert [list(hints.of(f"{A}-{number}", NEAR)) for number in range(3)] == [[0, 1], [0], []]
    assert list(hints.of(f"{B}-0", FAR)) == [1]
    assert list(hints.of(f"{B}-0", replace(FAR, numa=2))) == []


def test_a_replica_of_a_pod_that_is_gone_or_has_ended_is_free_though_kubelets_record_still_has_it() -> None:
    """Kubelet writes its record when it serves the next container, which may then get the replica."""
    phases = {"runs": "Running", "ended": "Succeeded"}
    made = [bound_pod(name, ((share(A),),), phase=phase) for name, phase in phases.items()]
    pods = {each.metadata.uid: each for each in made}
    held = [
        Holding(pod_uid=uid, container_name="main", resource_name=GPU, device_ids={"0": [f"{A}-{number}"]})
        for number, uid in enumerate((*pods, "gone"))
    ]
    assert held_zones(held, pods, GPU) == {f"{A}-0": {0}}
    assert held_zones(held, None, GPU).keys() == {f"{A}-0", f"{A}-1", f"{A}-2"}


def test_replicas_of_a_static_pod_are_held_while_its_mirror_is_there() -> None:
    file = "9f86d081884c7d659a2feaa0c55ad015"
    mirror = bound_pod("static", ((share(A),),))
    mirror.metadata.annotations[STATIC_UID] = file
    held = [Holding(pod_uid=file, container_name="c0", resource_name=GPU, device_ids={"0": [f"{A}-0"]})]
    assert held_zones(held, {mirror.metadata.uid: mirror}, GPU) == {f"{A}-0": {0}}
    assert held_zones(held, {}, GPU) == {}


def test_a_notice_names_the_numa_nodes_of_cpus_that_are_apart_from_their_gpus() -> None:
    zone_of_cpu = {cpu: zone for zone, cpus in ZONES.items() for cpu in cpus}
    gpus, shares = {A: NEAR, B: FAR}, (share(A),)
    assert apart("main", {0, 1}, shares, zone_of_cpu, gpus) is None
    assert apart("main", {0, 4}, shares, zone_of_cpu, gpus) is None
    assert apart("main", (), shares, zone_of_cpu, gpus) is None
    for nowhere in (-1, 2):
        assert apart("main", {4}, shares, zone_of_cpu, {A: replace(NEAR, numa=nowhere)}) is None
    notice = apart("main", {4, 5}, shares, zone_of_cpu, gpus)
    assert notice is not None
    assert notice.message.startswith("container main has CPUs of NUMA node 1, and its GPUs are on NUMA node 0")


def test_a_notice_of_a_refused_pod_has_the_policy_and_what_is_free() -> None:
    numa = NodeNuma(policy=TopologyPolicy.RESTRICTED, zones={0: ZoneCpus(4, 3)})
    assert refused(numa).message == (
        "kubelet's Topology Manager (restricted) found no NUMA nodes with enough for one of its containers: NUMA node "
        "0 has 3 CPUs that no pod without GPUs has"
    )
    assert "set kubelet_config" in refused(None).message


def test_a_pod_counts_once_kubelet_has_served_each_of_its_containers() -> None:
    shares = ((share(A),), (), (share(B),))
    waiting = bound_pod("p", shares, init=1)
    names = [each.name for each in waiting.all_containers]
    assert not is_served(waiting, shares, ())
    assert not is_served(waiting, shares, names[:1])
    assert is_served(waiting, shares, (names[0], names[2]))


def test_the_node_shows_which_numa_nodes_are_closed_and_that_this_changes() -> None:
    cpus = ExclusiveCpus(all=frozenset(range(8)), of_others=frozenset())
    numa = node_numa(STRICT, ZONES, cpus, Leading(frozenset({1}), frozenset()))
    assert [zone.closed for zone in numa.zones.values()] == [False, True]
    assert numa.changing
    shown = [Node(metadata=ObjectMeta(annotations={NODE_NUMA: value})) for value in (encode_numa(numa), "?")]
    assert [shown_numa(node) for node in (None, Node(), *shown)] == [None, None, numa, None]
