import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.annotations import keys
from proto.annotations.pod_devices import encode_pod_devices
from proto.devices import DeviceShare, DeviceUUID, PodShares
from proto.kubernetes.objects import Node, ObjectMeta, Pod, ResourceQuota, ResourceQuotaSpec
from scheduler_ext.cluster.ledger import Ledger, Reservation
from scheduler_ext.scheduling.decide import decide
from tests.scheduler_ext.gpus import container, device, node, pod, request


def share(uuid: str, memory_mib: int = 1000, cores: int = 10) -> DeviceShare:
    return DeviceShare(uuid=DeviceUUID(uuid), memory_mib=memory_mib, cores=cores)


def bound(name: str, text: str, phase: str = "Running") -> Pod:
    return pod(container(gpu=1), name=name, node_name="n", phase=phase, annotations={keys.DEVICES_ALLOCATED: text})


def ledger(gpus: int = 2) -> Ledger:
    made = Ledger()
    made.replace_nodes([node("n", [device(number) for number in range(gpus)])])
    return made


def used(made: Ledger, excluding: str = "") -> list[tuple[int, int, int]]:
    return [(gpu.slots, gpu.memory_mib, gpu.cores) for gpu in made.snapshot(excluding).nodes["n"].gpus]


def test_a_bound_pod_counts_until_it_ends_or_is_gone() -> None:
    made = ledger()
    made.apply_pod(bound("a", "G0,NVIDIA,1000,10:;"))
    assert used(made) == [(1, 1000, 10), (0, 0, 0)]
    made.apply_pod(bound("a", "G0,NVIDIA,1000,10:;", phase="Succeeded"))
    assert used(made) == [(0, 0, 0)] * 2
    made.apply_pod(bound("b", "G1,NVIDIA,1000,10:;"))
    made.remove_pod("uid-b")
    assert used(made) == [(0, 0, 0)] * 2


def test_a_pod_that_is_not_bound_counts_for_nothing_whatever_its_annotations_claim() -> None:
    made = ledger()
    claim = {keys.DEVICES_ALLOCATED: "G0,NVIDIA,1000,10:;", keys.POD_NODE: "n"}
    made.apply_pod(pod(container(gpu=1), annotations=claim))
    assert used(made) == [(0, 0, 0)] * 2


def test_a_reservation_becomes_the_bound_pod_without_counting_twice() -> None:
    made, waiting = ledger(), pod(container(gpu=1), name="a")
    shares: PodShares = ((share("G0"),),)
    made.reserve("uid-a", waiting, "n", shares, until=60.0)
    assert used(made) == [(1, 1000, 10), (0, 0, 0)]
    made.apply_pod(bound("a", encode_pod_devices(shares)))
    assert used(made) == [(1, 1000, 10), (0, 0, 0)]
    assert made.reservation("uid-a") is None


def test_a_pods_own_reservation_never_counts_against_it() -> None:
    made = ledger()
    made.reserve("uid-a", pod(container(gpu=1), name="a"), "n", ((share("G0"),),), until=60.0)
    assert used(made, excluding="uid-a") == [(0, 0, 0)] * 2
    assert used(made) == [(1, 1000, 10), (0, 0, 0)]


def test_a_reservation_ends_when_forgotten_and_exactly_at_its_time() -> None:
    made, waiting = ledger(), pod(container(gpu=1), name="a")
    made.reserve("uid-a", waiting, "n", ((share("G0"),),), until=60.0)
    made.expire(59.9)
    assert made.reservation("uid-a") is not None
    made.expire(60.0)
    assert made.reservation("uid-a") is None
    assert used(made) == [(0, 0, 0)] * 2


def test_an_unreadable_annotation_fills_the_gpus_it_names() -> None:
    made = ledger()
    made.apply_pod(bound("a", "G0,NVIDIA,lots,10:;"))
    assert used(made) == [(10, 40960, 100), (0, 0, 0)]
    assert "uid-a" in next(iter(made.problems()))


def test_an_unreadable_annotation_that_names_no_gpu_fills_the_node() -> None:
    made = ledger()
    made.apply_pod(bound("a", "garbage"))
    assert used(made) == [(10, 40960, 100)] * 2
    made.remove_pod("uid-a")
    assert used(made) == [(0, 0, 0)] * 2


def test_a_malformed_node_is_unregistered_with_the_reason_and_the_others_stand() -> None:
    made = ledger()
    made.apply_node(Node(metadata=ObjectMeta(name="broken", annotations={keys.NODE_REGISTER: '[{"id": 7}]'})))
    decision = decide(request(pod(container(gpu=1))), made.snapshot(), ["broken", "n", "nowhere"])
    assert decision.node == "n"
    assert decision.failed["broken"].startswith("node unregistered: hami.io/node-nvidia-register: $[0].id: ")
    assert decision.failed["nowhere"] == "node unregistered"


def test_a_node_whose_kubelet_offers_no_gpu_now_is_not_offered() -> None:
    made, dead = ledger(), node("n", [device(0)])
    dead.status.allocatable = {keys.RESOURCE_COUNT: "0"}
    made.apply_node(dead)
    assert made.snapshot().nodes == {}


def test_entries_that_hami_left_out_for_containers_without_gpus_are_matched_to_those_with() -> None:
    made = ledger()
    two = pod(
        container(gpu=1, gpumem=3000),
        container(gpu=1, gpumem=3000),
        inits=[container("setup")],
        node_name="n",
        annotations={keys.DEVICES_ALLOCATED: "G0,NVIDIA,3000,0:;G0,NVIDIA,3000,0:;"},
    )
    made.apply_pod(two)
    assert used(made)[0] == (2, 6000, 0)


def test_the_strictest_of_several_quotas_holds_and_usage_is_counted_with_the_pods() -> None:
    made = ledger()
    made.replace_quotas(
        ResourceQuota(
            metadata=ObjectMeta(name=f"q{limit}", namespace="default"),
            spec=ResourceQuotaSpec(hard={"limits.nvidia.com/gpumem": str(limit)}),
        )
        for limit in (5000, 2500)
    )
    made.apply_pod(bound("a", "G0,NVIDIA,2000,10:;"))
    wanted = request(pod(container(gpu=1, gpumem=1000)))
    assert decide(wanted, made.snapshot(), ["n"]).failed == {"n": "2/2 ResourceQuotaNotFit"}
    made.remove_pod("uid-a")
    assert decide(wanted, made.snapshot(), ["n"]).node == "n"


def test_a_snapshot_does_not_change_with_the_ledger() -> None:
    made = ledger()
    before = made.snapshot()
    made.apply_pod(bound("a", "G0,NVIDIA,1000,10:;"))
    assert before.nodes["n"].gpus[0].slots == 0


@pytest.mark.parametrize("policy", ["spread", "binpack", "topology-aware", "mutex"])
@given(wanted=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 30000), st.integers(0, 100)), max_size=25))
def test_no_gpu_is_ever_booked_beyond_its_capacity(policy: str, wanted: list[tuple[int, int, int]]) -> None:
    made = ledger(gpus=3)
    for number, (count, memory, cores) in enumerate(wanted):
        each = pod(
            container(gpu=count, gpumem=memory, gpucores=cores),
            container("other", gpu=1, gpumem=memory),
            inits=[container("side", "Always", gpu=1, gpumem=100), container("init", gpu=1, gpumem=memory)],
            name=str(number),
            annotations={keys.GPU_POLICY: policy},
        )
        decision = decide(request(each), made.snapshot(), ["n"])
        if decision.node is not None:
            made.reserve(each.metadata.uid, each, decision.node, decision.shares, until=1.0)
        for slots, memory_mib, used_cores in used(made):
            assert slots <= 10
            assert memory_mib <= 40960
            assert used_cores <= 100
    made.expire(1.0)
    assert used(made) == [(0, 0, 0)] * 3


def test_an_extended_reservation_lasts_until_the_later_time() -> None:
    made = Ledger()
    made.extend("uid-a", until=90.0)
    assert made.reservation("uid-a") is None
    made.reserve("uid-a", pod(container(gpu=1), name="a"), "n", ((share("G0"),),), until=60.0)
    made.extend("uid-a", until=90.0)
    made.expire(60.0)
    assert made.reservation("uid-a") == Reservation(node="n", shares=((share("G0"),),), until=90.0)
    made.expire(90.0)
    assert made.reservation("uid-a") is None
