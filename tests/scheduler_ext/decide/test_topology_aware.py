"""Which GPUs a topology-aware pod gets on one node, and what that leaves for the next pod."""

from dataclasses import replace

from proto.annotations import keys
from proto.devices import Device, PairScores
from proto.kubernetes.objects import Pod
from scheduler_ext.cluster.snapshot import GpuUsage, Quota
from scheduler_ext.decide.decision import decide
from tests.builders import container, pod
from tests.scheduler_ext.gpus import device, request, snapshot, usage

TOPOLOGY = {keys.GPU_POLICY: "topology-aware"}
BOUND = {**TOPOLOGY, keys.NUMA_BIND: "true"}


def island_machine(count: int = 8, of: int = 4, *, taken: frozenset[int] = frozenset()) -> list[GpuUsage]:
    """GPUs of `taken` have no free replica; each NVLink island is a NUMA node."""
    return [GpuUsage(device(n, numa=n // of), replicas=10 if n in taken else 0) for n in range(count)]


def in_islands(gpus: list[GpuUsage]) -> PairScores:
    def score(one: Device, other: Device) -> int:
        return 220 if one.numa == other.numa else 10

    devices = [gpu.device for gpu in gpus]
    return {one.uuid: {other.uuid: score(one, other) for other in devices if other is not one} for one in devices}


def chosen(gpus: list[GpuUsage], wanted: Pod, quota: Quota | None = None) -> list[set[str]]:
    """The GPUs of each container."""
    cluster = snapshot(usage("n", gpus, in_islands(gpus)))
    if quota is not None:
        cluster = replace(cluster, quotas={"default": (quota,)})
    return [{str(share.uuid) for share in shares} for shares in decide(request(wanted), cluster, ["n"]).shares]


def test_two_pods_of_two_gpus_leave_an_island_of_four_whole_for_a_third() -> None:
    pair = pod(container(gpu=2), annotations=TOPOLOGY)
    four = pod(container(gpu=4), annotations=TOPOLOGY)
    assert chosen(island_machine(), pair) == [{"G7", "G6"}]
    assert chosen(island_machine(taken=frozenset({7, 6})), pair) == [{"G5", "G4"}]
    assert chosen(island_machine(taken=frozenset({0, 1})), pair) == [{"G3", "G2"}]
    assert chosen(island_machine(taken=frozenset({0, 1, 2, 3})), four) == [{"G4", "G5", "G6", "G7"}]


def test_one_gpu_comes_from_the_broken_island() -> None:
    single = pod(container(gpu=1), annotations=TOPOLOGY)
    assert chosen(island_machine(taken=frozenset({1})), single) == [{"G3"}]


def test_numa_bound_pairs_come_from_the_node_whose_loss_leaves_more() -> None:
    pair = pod(container(gpu=2), annotations=BOUND)
    assert chosen(island_machine(), pair) == [{"G7", "G6"}]
    assert chosen(island_machine(taken=frozenset({0, 1})), pair) == [{"G3", "G2"}]


def test_before_its_last_container_a_pod_keeps_the_visit_order() -> None:
    """The remainder is for the next pod."""
    both = pod(container(gpu=2, gpumem=1000), container("d", gpu=2, gpumem=1000), annotations=TOPOLOGY)
    assert chosen(island_machine(taken=frozenset({0})), both) == [{"G7", "G6"}, {"G3", "G2"}]


def test_a_quota_keeps_the_larger_gpus_out_and_the_best_pair_within_it_is_taken() -> None:
    gpus = [
        GpuUsage(device(n, numa=n // 2, memory_mib=memory_mib)) for n, memory_mib in enumerate((80, 80, 40, 40, 40, 80))
    ]
    pair = pod(container(gpu=2), annotations=TOPOLOGY)
    assert chosen(gpus, pair, Quota(memory_mib=160)) == [{"G5", "G4"}]
    assert chosen(gpus, pair, Quota(memory_mib=100)) == [{"G3", "G2"}]
