"""CPUs beside GPUs: the NUMA node that kubelet's Topology Manager takes decides which GPUs a pod gets."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from proto.annotations import keys
from proto.annotations.node_numa import NodeNuma, TopologyPolicy, TopologyScope, ZoneCpus, encode_numa
from proto.devices import DeviceShare, PodShares
from proto.kubernetes.objects import Container, Pod, Resources
from proto.kubernetes.requests import exclusive_cpus
from scheduler_ext.cluster.accounting import pinned_containers, taken_cpus
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage
from scheduler_ext.decide.alignment import KubeletRefusal, zones_of
from scheduler_ext.decide.decision import decide
from scheduler_ext.decide.effort import Effort
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.decide.misfit import Misfit
from scheduler_ext.decide.place import place, pods_on, with_pod
from scheduler_ext.requests import container_kinds
from tests.builders import amounts, container, node, pod
from tests.scheduler_ext.gpus import GIB, device, request, snapshot

SINGLE, RESTRICTED = TopologyPolicy.SINGLE_NUMA_NODE, TopologyPolicy.RESTRICTED
TWO_ZONES = {0: ZoneCpus(8, 7), 1: ZoneCpus(8, 8)}
DEVICES = tuple(device(number, numa=number // 2) for number in range(4))


def pinned(
    name: str = "c", *, cpu: int | str = 2, memory: str = "1Gi", restart_policy: str = "", **gpus: int
) -> Container:
    """With CPUs of its own."""
    return container(name, restart_policy, cpu=cpu, memory=memory, **gpus)


def host(
    policy: TopologyPolicy = SINGLE,
    zones: Mapping[int, ZoneCpus] = TWO_ZONES,
    *,
    scope: TopologyScope = TopologyScope.CONTAINER,
    used: Mapping[int, int] | None = None,
) -> NodeUsage:
    """Two NUMA nodes with two GPUs each; `used` has MiB of GPUs."""
    taken = used or {}
    return NodeUsage(
        node=RegisteredNode(name="n", devices=DEVICES, numa=NodeNuma(policy=policy, scope=scope, zones=zones)),
        gpus=tuple(
            GpuUsage(each, replicas=int(number in taken), memory_mib=taken.get(number, 0))
            for number, each in enumerate(DEVICES)
        ),
        free_cpus={number: zone.free for number, zone in zones.items()},
    )


def shares_on_first(the_pod: Pod) -> PodShares:
    found = place(request(the_pod), host(scope=TopologyScope.POD), None)
    assert not isinstance(found, Misfit)
    return found


def gpus_of(the_pod: Pod, usage: NodeUsage) -> list[list[str]] | str:
    found = place(request(the_pod), usage, None)
    return found.brief if isinstance(found, Misfit) else [sorted(share.uuid for share in each) for each in found]


def test_only_whole_cpus_of_guaranteed_pods_are_exclusive() -> None:
    assert exclusive_cpus(pod(pinned(cpu=2, gpu=1), pinned(cpu="500m"))) == (2, 0)
    assert exclusive_cpus(pod(pinned(cpu="500m"))) == ()
    assert exclusive_cpus(pod(pinned(cpu=2), container(cpu=1))) == ()
    burstable = Container(name="c", resources=Resources(limits=amounts(cpu=2, memory="1Gi"), requests={"cpu": "1"}))
    assert exclusive_cpus(pod(burstable)) == ()
    assert exclusive_cpus(pod(pinned(), resources=Resources(limits={"cpu": "4"}))) == ()


def test_taken_cpus_count_init_containers_before_and_sidecars_beside_the_others() -> None:
    inits = [pinned("init", cpu=6), pinned("side", cpu=1, restart_policy="Always")]

    def taken(first: int) -> int:
        made = pod(pinned(cpu=first, gpu=1), pinned("b", cpu=1), inits=inits)
        shares: PodShares = ((), (), (DeviceShare(uuid=DEVICES[0].uuid, memory_mib=1, cores=0),), ())
        containers = pinned_containers(exclusive_cpus(made), container_kinds(made), shares)
        return taken_cpus(containers, {DEVICES[0].uuid: 0}, [0], is_whole=True)[0]

    assert taken(2) == 6
    assert taken(5) == 7


@pytest.mark.parametrize(
    ("scope", "free"), [(TopologyScope.CONTAINER, {0: 2, 1: 3}), (TopologyScope.POD, {0: 0, 1: 0})]
)
def test_cpus_of_several_containers_with_gpus_count_beside_the_gpus_of_each(
    scope: TopologyScope, free: dict[int, int]
) -> None:
    """With scope `pod` they may be beside all of them, and anywhere if the GPUs are on no NUMA node with CPUs."""
    usage, asking = host(scope=scope), pod(pinned("a", cpu=5, gpu=1), pinned("b", cpu=5, gpu=1))
    shares = tuple((DeviceShare(uuid=DEVICES[number].uuid, memory_mib=1, cores=0),) for number in (0, 3))
    assert with_pod(usage, request(asking), shares).free_cpus == free
    ledger = Ledger()
    made = node("n", DEVICES)
    made.metadata.annotations[keys.NODE_NUMA] = encode_numa(NodeNuma(policy=SINGLE, scope=scope, zones=TWO_ZONES))
    ledger.apply_node(made)
    ledger.reserve("uid-p", asking, "n", shares, until=100.0)
    assert ledger.snapshot().nodes["n"].free_cpus == free
    nowhere = replace(usage, gpus=tuple(GpuUsage(replace(each, numa=5)) for each in DEVICES))
    assert with_pod(nowhere, request(asking), shares).free_cpus == {0: 0, 1: 0}


@pytest.mark.parametrize("policy", [SINGLE, RESTRICTED])
def test_gpus_are_of_the_lowest_numa_node_that_has_the_cpus_as_kubelet_takes_it(policy: TopologyPolicy) -> None:
    assert gpus_of(pod(pinned(cpu=7, gpu=2)), host(policy)) == [["G0", "G1"]]
    assert gpus_of(pod(pinned(cpu=8, gpu=2)), host(policy)) == [["G2", "G3"]]


def test_gpus_of_another_numa_node_do_not_serve_a_container_with_cpus_of_its_own() -> None:
    full = host(used={0: 40 * GIB, 1: 40 * GIB})
    assert gpus_of(pod(pinned(gpu=1)), full) == "CardApartFromCpus 2/4 + CardInsufficientMemory 2/4"
    assert gpus_of(pod(container(gpu=1, gpumem=100)), full) == [["G3"]]


def test_a_closed_numa_node_is_not_kubelets_choice() -> None:
    zones = {0: ZoneCpus(8, 7, closed=True), 1: ZoneCpus(8, 8)}
    assert gpus_of(pod(pinned(gpu=1)), host(zones=zones, used={0: 40 * GIB, 1: 40 * GIB})) == [["G3"]]


def test_a_pod_with_cpus_of_its_own_waits_while_numa_nodes_are_closed_or_opened() -> None:
    usage = host()
    changing = replace(usage, node=replace(usage.node, numa=NodeNuma(policy=SINGLE, zones=TWO_ZONES, changing=True)))
    assert gpus_of(pod(pinned(gpu=1)), changing) == "NumaNodesChange"
    assert gpus_of(pod(container(gpu=1)), changing) == [["G3"]]


def test_a_pod_whose_cpus_fit_no_numa_node_is_refused_in_one_sentence() -> None:
    refused = place(request(pod(pinned(cpu=9, gpu=1))), host(), None)
    assert isinstance(refused, Misfit)
    assert refused.brief == "CpusApartFromGpus"
    assert refused.words() == (
        "kubelet's Topology Manager would refuse the pod: no NUMA node has enough CPUs and GPUs for it free",
    )


def test_restricted_takes_several_numa_nodes_where_cpus_and_replicas_need_them_alike() -> None:
    both = [pinned(cpu=10, gpu=4)]
    # Ten replicas of each GPU: for kubelet, four of them fit on one NUMA node.
    refused = place(request(pod(*both)), host(RESTRICTED), None)
    assert isinstance(refused, Misfit)
    assert refused.brief == "CpusApartFromReplicas"
    assert refused.words() == (
        "kubelet's Topology Manager would refuse the pod: it counts replicas; with device_split_count: 1 on this node "
        "it counts GPUs, and takes the pod",
    )
    busy = host(RESTRICTED, used={0: GIB})
    assert gpus_of(pod(*both), busy) == "CpusApartFromGpus"
    unshared = host(RESTRICTED)
    devices = tuple(replace(each, replicas=1) for each in DEVICES)
    unshared = replace(unshared, gpus=tuple(map(GpuUsage, devices)))
    assert gpus_of(pod(*both), unshared) == [["G0", "G1", "G2", "G3"]]
    assert gpus_of(pod(*both), replace(unshared, node=replace(unshared.node, numa=host(SINGLE).node.numa))) == (
        "CpusApartFromGpus"
    )


def test_more_gpus_than_a_numa_node_has_are_refused_by_single_numa_node_alone() -> None:
    many = pod(pinned(cpu=2, gpu=3))
    assert gpus_of(many, host(SINGLE)) == "CpusApartFromGpus"
    assert len(gpus_of(many, host(RESTRICTED))[0]) == 3


def test_containers_are_aligned_one_after_the_other_and_a_pod_as_a_whole() -> None:
    two = pod(pinned("a", cpu=5, gpu=1), pinned("b", cpu=5, gpu=1))
    assert gpus_of(two, host()) == [["G1"], ["G3"]]
    assert gpus_of(two, host(scope=TopologyScope.POD)) == "CpusApartFromGpus"
    small = pod(pinned("a", cpu=3, gpu=1), pinned("b", cpu=3, gpu=1))
    assert zones_of(request(small), host(scope=TopologyScope.POD)) == [frozenset({0})] * 2


def test_containers_without_gpus_take_cpus_too() -> None:
    assert gpus_of(pod(pinned("a", cpu=6), pinned("b", cpu=2, gpu=1)), host()) == [[], ["G3"]]
    assert zones_of(request(pod(pinned("a", cpu=9), pinned("b", cpu=2, gpu=1))), host()) == KubeletRefusal(0)


def test_pods_take_their_cpus_with_them() -> None:
    asking = request(pod(pinned(cpu=4, gpu=1)))
    usage = host()
    assert pods_on(usage, asking, Effort()) == 3
    shares = place(asking, usage, None)
    assert not isinstance(shares, Misfit)
    assert with_pod(usage, asking, shares).free_cpus == {0: 3, 1: 8}


def test_the_ledger_counts_cpus_of_pods_with_gpus_and_index_and_decision_agree() -> None:
    ledger = Ledger()
    made = node("n", DEVICES)
    made.metadata.annotations[keys.NODE_NUMA] = encode_numa(NodeNuma(policy=SINGLE, zones=TWO_ZONES))
    ledger.apply_node(made)
    index, given = NodeIndex(ledger), []
    for number in range(4):
        asking = pod(pinned(cpu=4, gpu=1, gpumem=1000), name=f"p{number}", uid=f"u{number}")
        chosen, same = index.choose(request(asking), ["n"]), decide(request(asking), ledger.snapshot(), ["n"])
        assert (chosen.node, chosen.shares) == (same.node, same.shares)
        if chosen.node is not None:
            ledger.reserve(f"u{number}", asking, "n", chosen.shares, until=100.0)
        given.append([share.uuid for share in chosen.shares[0]] if chosen.node else chosen.failed["n"])
    assert given == [["G1"], ["G3"], ["G2"], "CpusApartFromGpus"]
    ledger.records.drop(ledger.records.get("u0"))
    assert ledger.snapshot().nodes["n"].free_cpus == {0: 7, 1: 0}


@pytest.mark.parametrize(
    ("scope", "free"), [(TopologyScope.CONTAINER, {0: 5, 1: 8}), (TopologyScope.POD, {0: 1, 1: 8})]
)
def test_cpus_of_a_container_without_gpus_are_counted_beside_the_gpus_only_where_the_pod_is_aligned_as_a_whole(
    scope: TopologyScope, free: dict[int, int]
) -> None:
    ledger = Ledger()
    made = node("n", DEVICES)
    made.metadata.annotations[keys.NODE_NUMA] = encode_numa(NodeNuma(policy=SINGLE, scope=scope, zones=TWO_ZONES))
    ledger.apply_node(made)
    asking = pod(pinned("a", cpu=4), pinned("b", cpu=2, gpu=1, gpumem=1000))
    ledger.reserve("uid-p", asking, "n", shares_on_first(asking), until=100.0)
    assert ledger.snapshot().nodes["n"].free_cpus == free


def test_gpus_are_beside_the_cpus_also_where_kubelet_refuses_nothing_and_elsewhere_if_none_is_free_there() -> None:
    best_effort = TopologyPolicy.BEST_EFFORT
    assert gpus_of(pod(pinned(cpu=8, gpu=2)), host(best_effort)) == [["G2", "G3"]]
    assert gpus_of(pod(pinned(cpu=9, gpu=1)), host(best_effort)) == [["G3"]]
    full = {0: 40 * GIB, 1: 40 * GIB}
    assert gpus_of(pod(pinned(gpu=1)), host(best_effort, used=full)) == [["G3"]]
    assert gpus_of(pod(pinned(gpu=3)), host(best_effort, used=full)) == (
        "AllocatedCardsInsufficientRequest 2/4 + CardInsufficientMemory 2/4"
    )


def test_nothing_changes_where_kubelet_keeps_nothing_together() -> None:
    quiet = replace(host(), node=replace(host().node, numa=NodeNuma(policy=TopologyPolicy.NONE)))
    assert zones_of(request(pod(pinned(cpu=9, gpu=1))), quiet) is None
    assert zones_of(request(pod(container(gpu=1))), host()) is None


def test_the_snapshot_of_one_node_explains_itself() -> None:
    answer = decide(request(pod(pinned(cpu=9, gpu=1))), snapshot(host()), ["n"])
    assert answer.failed == {"n": "4/4 CpusApartFromGpus"}
