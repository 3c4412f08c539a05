from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from proto.annotations import keys
from proto.annotations.mig_allocations import mig_allocations
from proto.annotations.pod_devices import encode_pod_devices
from proto.devices import Device, DeviceShare, DeviceUUID, MigInstance, MigPlacement
from proto.kubernetes.objects import Pod
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.snapshot import GpuUsage, Quota, Snapshot
from scheduler_ext.decide.decision import Decision, decide
from scheduler_ext.decide.fit import instance_share, is_free
from tests.builders import container, node, pod
from tests.scheduler_ext.gpus import device, request, snapshot, usage
from tests.scheduler_ext.mig_gpus import mig_device, profile


def taken(memory_mib: int, *occupied: tuple[int, int]) -> tuple[str, int, int, int] | None:
    """Profile, start and recorded amounts on an A100 with these `(start, size)` occupied."""
    placements = tuple(MigPlacement(start=start, size=size) for start, size in occupied)
    share = instance_share(GpuUsage(mig_device(0), placements=placements), memory_mib)
    if share is None or share.instance is None:
        return None
    return share.instance.profile, share.instance.placement.start, share.memory_mib, share.cores


def test_the_smallest_profile_with_enough_memory_is_taken_and_its_own_amounts_recorded() -> None:
    assert taken(8000) == ("2g.10gb", 0, 9856, 29)
    assert taken(20000) == ("7g.40gb", 0, 40192, 100)
    assert taken(20480) == ("7g.40gb", 0, 40192, 100)


def test_1g_and_3g_start_at_the_far_end_and_2g_at_the_near_one() -> None:
    assert taken(4000) == ("1g.5gb", 6, 4864, 15)
    assert taken(4000, (6, 1)) == ("1g.5gb", 5, 4864, 15)
    assert taken(19000) == ("3g.20gb", 4, 19968, 43)
    assert taken(8000, (0, 2)) == ("2g.10gb", 2, 9856, 29)


def test_less_memory_comes_before_fewer_slices() -> None:
    profiles = (profile("1g.20gb", 19968, 15, 2, 0), profile("2g.10gb", 9856, 29, 2, 0))
    share = instance_share(GpuUsage(replace(mig_device(0), mig_profiles=profiles)), 8000)
    assert share is not None
    assert share.memory_mib == 9856


def test_the_next_profile_serves_when_no_place_is_left_for_the_smaller_one() -> None:
    assert taken(8000, (0, 1), (2, 1), (4, 1)) is None
    cut = replace(mig_device(0), mig_profiles=(profile("2g.10gb", 9856, 29, 2, 4), profile("1g.5gb", 4864, 15, 1, 0)))
    share = instance_share(GpuUsage(cut, placements=(MigPlacement(start=0, size=1),)), 4000)
    instance = MigInstance(profile="2g.10gb", placement=MigPlacement(start=4, size=2))
    assert share == DeviceShare(uuid=DeviceUUID("G0"), memory_mib=9856, cores=29, instance=instance)


def test_the_whole_card_is_more_than_its_largest_instance() -> None:
    assert taken(40960) is None


def on(devices: list[Device], wanted: Pod, quota: Quota | None = None) -> Decision:
    cluster = snapshot(usage("n", [GpuUsage(each) for each in devices]))
    return decide(request(wanted), Snapshot(nodes=cluster.nodes, quotas={"default": (quota,)} if quota else {}), ["n"])


def places(decision: Decision) -> list[tuple[str, int]]:
    return [(each.gpu, each.placement.start) for each in mig_allocations(decision.shares)]


def test_one_container_gets_several_instances_of_one_gpu_before_the_next() -> None:
    wanted = pod(container(gpu=4, gpumem=8000), annotations={keys.VGPU_MODE: "mig"})
    decision = on([mig_device(0), mig_device(1)], wanted)
    assert encode_pod_devices(decision.shares) == "G1,NVIDIA,9856,29:" * 3 + "G0,NVIDIA,9856,29:;"
    assert places(decision) == [("G1", 0), ("G1", 2), ("G1", 4), ("G0", 0)]


def test_a_topology_aware_pod_chooses_among_every_instance_there_is_room_for() -> None:
    wanted = pod(container(gpu=6, gpumem=8000), annotations={keys.GPU_POLICY: "topology-aware"})
    decision = on([mig_device(0), mig_device(1)], wanted)
    assert sorted(places(decision)) == [("G0", 0), ("G0", 2), ("G0", 4), ("G1", 0), ("G1", 2), ("G1", 4)]


def test_a_gpu_in_mig_mode_is_no_card_for_hami_core() -> None:
    wanted = pod(container(gpu=1), annotations={keys.VGPU_MODE: "hami-core"})
    assert on([mig_device(0)], wanted).failed == {"n": "1/1 CardTypeMismatch"}


def test_a_request_for_the_whole_card_is_infeasible_in_mig_mode() -> None:
    assert on([mig_device(0)], pod(container(gpu=1, gpucores=100))).failed == {"n": "1/1 CardMigTopologyInfeasible"}


def test_too_many_instances_are_refused_with_how_many_there_would_have_been() -> None:
    failed = on([mig_device(0)], pod(container(gpu=4, gpumem=8000))).failed
    assert failed == {"n": "1/1 CardMigTopologyInfeasible, 3/1 AllocatedCardsInsufficientRequest"}


def test_containers_of_one_pod_never_share_a_place_not_even_with_an_init_container() -> None:
    one = container(gpu=1, gpumem=8000)
    assert places(on([mig_device(0)], pod(one, one, inits=[one]))) == [("G0", 0), ("G0", 2), ("G0", 4)]
    assert on([mig_device(0)], pod(one, one, inits=[one, one])).failed == {"n": "1/1 CardMigTopologyInfeasible"}


def test_a_quota_counts_the_memory_of_the_instance() -> None:
    wanted = pod(container(gpu=1, gpumem=8000))
    assert on([mig_device(0)], wanted, Quota(memory_mib=9000)).failed == {"n": "1/1 ResourceQuotaNotFit"}
    assert on([mig_device(0)], wanted, Quota(memory_mib=9856)).node == "n"


def test_a_static_mig_device_is_a_plain_device_for_one_container() -> None:
    static = replace(device(0, memory_mib=9856, replicas=1), uuid=DeviceUUID("MIG-a"), type="NVIDIA A100 MIG 2g.10gb")
    made = Ledger()
    made.replace_nodes([node("n", [static])])
    wanted = pod(container(gpu=1))
    decision = decide(request(wanted), made.snapshot(), ["n"])
    assert decision.shares == ((DeviceShare(uuid=DeviceUUID("MIG-a"), memory_mib=9856, cores=0),),)
    made.reserve("uid-a", wanted, "n", decision.shares, until=60.0)
    second = pod(container(gpu=1, gpumem=100), name="b")
    assert decide(request(second), made.snapshot(), ["n"]).failed == {"n": "1/1 CardTimeSlicingExhausted"}


wishes = st.tuples(
    st.integers(1, 4), st.integers(1, 42000), st.booleans(), st.sampled_from(["spread", "topology-aware"])
)


@given(st.lists(wishes, max_size=12), st.sets(st.integers(0, 11)))
def test_no_two_pods_ever_get_overlapping_instances(
    wanted: list[tuple[int, int, bool, str]], forgotten: set[int]
) -> None:
    made = Ledger()
    made.replace_nodes([node("n", [mig_device(0), mig_device(1)])])
    for number, (count, memory, with_init, policy) in enumerate(wanted):
        inits = [container("i", gpu=1, gpumem=memory)] if with_init else []
        main = container(gpu=count, gpumem=memory)
        each = pod(main, inits=inits, name=str(number), annotations={keys.GPU_POLICY: policy})
        decision = decide(request(each), made.snapshot(), ["n"])
        if decision.node is not None:
            made.reserve(each.metadata.uid, each, decision.node, decision.shares, until=1.0)
        if number in forgotten:
            made.records.drop(made.records.reserved(each.metadata.uid))
        for gpu in made.snapshot().nodes["n"].gpus:
            assert gpu.memory_mib <= gpu.device.memory_mib
            assert gpu.replicas <= gpu.device.replicas
            assert all(is_free(place, gpu.placements[n + 1 :]) for n, place in enumerate(gpu.placements))
    made.expire(1.0)
    assert [gpu.placements for gpu in made.snapshot().nodes["n"].gpus] == [(), ()]
