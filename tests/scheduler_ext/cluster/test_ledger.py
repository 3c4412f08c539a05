from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.annotations import keys
from proto.annotations.pod_devices import decode_pod_devices, encode_pod_devices
from proto.devices import DeviceUUID, PodShares
from proto.kubernetes.objects import (
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    Node,
    ObjectMeta,
    Pod,
    PodStatus,
    ResourceQuota,
    ResourceQuotaSpec,
)
from scheduler_ext.cluster.accounting import NOTHING, Footprint, effective
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.snapshot import Quota, Snapshot
from scheduler_ext.decide.decision import decide
from scheduler_ext.requests import ContainerKind, RequestSettings, ResourceNames
from tests.builders import container, node, pod
from tests.scheduler_ext.cluster.ledgers import bound, ledger, share, used
from tests.scheduler_ext.gpus import device, request


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
    assert made.records.reserved("uid-a") is None


def test_a_pods_own_reservation_never_counts_against_it() -> None:
    made = ledger()
    made.reserve("uid-a", pod(container(gpu=1), name="a"), "n", ((share("G0"),),), until=60.0)
    assert used(made, excluding="uid-a") == [(0, 0, 0)] * 2
    assert used(made) == [(1, 1000, 10), (0, 0, 0)]


def test_a_reservation_ends_when_forgotten_and_exactly_at_its_time() -> None:
    made, waiting = ledger(), pod(container(gpu=1), name="a")
    made.reserve("uid-a", waiting, "n", ((share("G0"),),), until=60.0)
    made.expire(59.9)
    assert made.records.reserved("uid-a") is not None
    made.expire(60.0)
    assert made.records.reserved("uid-a") is None
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


@pytest.mark.parametrize("allocatable", [{keys.RESOURCE_COUNT: "0"}, {}], ids=["not now", "not yet"])
def test_a_node_whose_kubelet_offers_no_gpu_is_not_offered(allocatable: dict[str, str | int | float]) -> None:
    made, dead = ledger(), node("n", [device(0)])
    dead.status.allocatable = allocatable
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
    made.quotas.replace(
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


def test_while_quotas_are_listed_again_those_before_hold() -> None:
    """The webhook asks from a thread of its own."""
    made = Ledger()
    spec = ResourceQuotaSpec(hard={"limits.nvidia.com/gpumem": "7"})
    listed = [ResourceQuota(metadata=ObjectMeta(name="q", namespace="default"), spec=spec)]
    made.quotas.replace(listed)

    def limit() -> int | None:
        return made.snapshot().quotas["default"][0].memory_mib

    def seen() -> Iterator[ResourceQuota]:
        assert limit() == 7
        yield from listed
        assert limit() == 7

    made.quotas.replace(seen())
    assert limit() == 7


def without(made: Ledger, node: str, gone: set[str]) -> Snapshot:
    alone = made.alone(node, "default")
    assert alone is not None
    return alone.without(gone, "default", priority=0)


def test_without_pods_a_node_is_freer_and_so_is_the_quota_of_their_own_namespace() -> None:
    made = ledger()
    ours, theirs = bound("ours", "G0,NVIDIA,1000,10:;"), bound("theirs", "G1,NVIDIA,2000,20:;")
    theirs.metadata.namespace = "other"
    for each in (ours, theirs):
        made.apply_pod(each)
        metadata = ObjectMeta(name="q", namespace=each.metadata.namespace)
        made.quotas.apply(
            ResourceQuota(metadata=metadata, spec=ResourceQuotaSpec(hard={"limits.nvidia.com/gpumem": 5000}))
        )
    left = without(made, "n", {"uid-theirs"})
    assert [(gpu.replicas, gpu.memory_mib) for gpu in left.nodes["n"].gpus] == [(1, 1000), (0, 0)]
    assert left.quotas == {"default": (Quota(memory_mib=5000, used=Footprint(1, 1000, 10)),)}
    assert without(made, "n", {"uid-ours"}).quotas == {"default": (Quota(memory_mib=5000),)}
    assert made.alone("nowhere", "default") is None


def test_a_snapshot_does_not_change_with_the_ledger() -> None:
    made = ledger()
    before = made.snapshot()
    made.apply_pod(bound("a", "G0,NVIDIA,1000,10:;"))
    assert before.nodes["n"].gpus[0].replicas == 0


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
    made.groups.bind_begins("uid-a", until=90.0)
    assert made.records.reserved("uid-a") is None
    made.reserve("uid-a", pod(container(gpu=1), name="a"), "n", ((share("G0"),),), until=60.0)
    made.groups.bind_begins("uid-a", until=90.0)
    made.expire(60.0)
    record = made.records.reserved("uid-a")
    assert record is not None
    assert (record.node, record.shares, record.until) == ("n", ((share("G0"),),), 90.0)
    assert record.pending.binding
    made.expire(90.0)
    assert made.records.reserved("uid-a") is None


def test_a_terminating_pod_holds_its_gpus_until_it_is_gone() -> None:
    made, leaving = ledger(), bound("a", "G0,NVIDIA,1000,10:;")
    leaving.metadata.deletion_timestamp = "2030-01-01T00:00:00Z"
    made.replace_pods([leaving])
    assert used(made) == [(1, 1000, 10), (0, 0, 0)]
    made.replace_pods([])
    assert used(made) == [(0, 0, 0)] * 2


def test_resources_may_have_other_names() -> None:
    names = ResourceNames(count="acme.io/gpu", memory="acme.io/mib", cores="acme.io/cores")
    made, there = Ledger(RequestSettings(names=names, memory_factor=10)), node("n", [device(0)])
    there.status.allocatable = {"acme.io/gpu": "0"}
    made.apply_node(there)
    assert made.snapshot().unregistered["n"].startswith("node unregistered: its kubelet offers no acme.io/gpu now")
    there.status.allocatable = {"acme.io/gpu": "10", keys.RESOURCE_COUNT: "0"}
    made.apply_node(there)
    hard: dict[str, str | int | float] = {
        "limits.acme.io/mib": 300,
        "limits.acme.io/cores": 50,
        "limits.acme.io/gpu": 8,
        "requests.acme.io/gpu": 7,
        "limits.nvidia.com/gpumem": 1,
    }
    made.quotas.apply(
        ResourceQuota(metadata=ObjectMeta(name="q", namespace="default"), spec=ResourceQuotaSpec(hard=hard))
    )
    assert made.snapshot().quotas["default"] == (Quota(memory_mib=3000, cores=50, gpus=7),)


def finished_init(name: str, text: str) -> Pod:
    there = pod(
        container(gpu=1),
        inits=[container("i", gpu=1)],
        name=name,
        node_name="n",
        phase="Running",
        annotations={keys.DEVICES_ALLOCATED: text},
    )
    there.spec.restart_policy = "Never"
    ended = ContainerState(terminated=ContainerStateTerminated(exit_code=0))
    there.status.init_container_statuses = [ContainerStatus(name="i", state=ended)]
    return there


def test_what_an_init_container_held_is_free_once_its_pod_has_ended() -> None:
    made, text = ledger(), "G0,NVIDIA,8000,50:;G1,NVIDIA,1000,10:;"
    starting = finished_init("a", text)
    starting.status = PodStatus(phase="Pending")
    made.apply_pod(starting)
    assert used(made) == [(1, 8000, 50), (1, 1000, 10)]
    made.apply_pod(finished_init("a", text))
    assert used(made) == [(1, 8000, 50), (1, 1000, 10)]
    ended = finished_init("a", text)
    ended.status = PodStatus(phase="Succeeded")
    made.apply_pod(ended)
    assert used(made) == [(0, 0, 0), (0, 0, 0)]


names = st.sampled_from("abc")
two_shares = st.tuples(st.integers(0, 1), st.integers(1, 9), st.integers(0, 1), st.integers(1, 9)).map(
    lambda parts: ((share(f"G{parts[0]}", parts[1]),), (share(f"G{parts[2]}", parts[3]),))
)
events = st.one_of(
    st.tuples(st.just("reserve"), names, two_shares, st.integers(1, 9)),
    st.tuples(st.just("starting"), names, two_shares),
    st.tuples(st.just("running"), names, two_shares),
    st.tuples(st.sampled_from(["ended", "forget", "remove"]), names),
    st.tuples(st.just("expire"), st.integers(1, 9)),
    st.tuples(st.just("relist"), st.sets(names)),
)


@given(st.lists(events, max_size=20))
def test_what_is_used_is_always_the_sum_of_what_each_pod_holds(history: list[tuple[Any, ...]]) -> None:
    made, running, waiting = ledger(), dict[str, Pod](), dict[str, tuple[PodShares, int]]()
    made.quotas.apply(
        ResourceQuota(
            metadata=ObjectMeta(name="q", namespace="default"),
            spec=ResourceQuotaSpec(hard={"limits.nvidia.com/gpumem": 10**9}),
        )
    )
    for event, *facts in history:
        match event, facts:
            case "reserve", (name, shares, until):
                there = pod(container(gpu=1), inits=[container("i", gpu=1)], name=name)
                made.reserve(f"uid-{name}", there, "n", shares, until=float(until))
                if name not in running:
                    waiting[name] = (shares, until)
            case "starting" | "running", (name, shares):
                there = finished_init(name, encode_pod_devices(shares))
                there.status = there.status if event == "running" else PodStatus(phase="Pending")
                made.apply_pod(there)
                running[name] = there
                waiting.pop(name, None)
            case "ended", (name,):
                made.apply_pod(bound(name, "G0,NVIDIA,1000,10:;", phase="Failed"))
                running.pop(name, None)
                waiting.pop(name, None)
            case "forget", (name,):
                made.records.drop(made.records.reserved(f"uid-{name}"))
                waiting.pop(name, None)
            case "remove", (name,):
                made.remove_pod(f"uid-{name}")
                running.pop(name, None)
                waiting.pop(name, None)
            case "expire", (now,):
                made.expire(float(now))
                waiting = {name: kept for name, kept in waiting.items() if kept[1] > now}
            case "relist", (left,):
                running = {name: there for name, there in running.items() if name in left}
                made.replace_pods(running.values())
        kinds = (ContainerKind.INIT, ContainerKind.APP)
        held = [effective(kinds, shares) for shares, _ in waiting.values()]
        for there in running.values():
            shares = decode_pod_devices(keys.DEVICES_ALLOCATED, there.metadata.annotations[keys.DEVICES_ALLOCATED])
            held.append(effective(kinds, shares))
        expected = [sum((each.get(DeviceUUID(uuid), NOTHING) for each in held), NOTHING) for uuid in ("G0", "G1")]
        assert used(made) == [(each.replicas, each.memory_mib, each.cores) for each in expected]
        assert made.snapshot().quotas["default"][0].used == sum(expected, NOTHING)


def test_changes_are_handed_out_once_whatever_they_were() -> None:
    made = ledger()
    assert made.nodes.take_changed() == {"n"}
    assert made.nodes.take_changed() == set()
    made.apply_node(node("n", [device(0), device(1)]))
    made.apply_node(Node(metadata=ObjectMeta(name="without-gpus")))
    assert made.nodes.take_changed() == set()
    made.reserve("uid-a", pod(container(gpu=1), name="a"), "n", ((share("G0"),),), until=1.0)
    assert made.nodes.take_changed() == {"n"}
    made.expire(1.0)
    assert made.nodes.take_changed() == {"n"}
    made.apply_node(Node(metadata=ObjectMeta(name="n")))
    assert (made.nodes.take_changed(), made.nodes.usages().get("n")) == ({"n"}, None)


def test_a_pod_that_is_bound_as_it_was_decided_changes_no_node() -> None:
    made = ledger()
    made.reserve("uid-a", pod(container(gpu=1), name="a"), "n", ((share("G0"),),), until=60.0)
    made.nodes.take_changed()
    made.apply_pod(bound("a", "G0,NVIDIA,1000,10:;"))
    assert (made.nodes.take_changed(), used(made)[0]) == (set(), (1, 1000, 10))


def test_a_lease_that_was_made_longer_ends_later_and_the_others_in_time() -> None:
    made = ledger()
    for name, until in (("a", 5.0), ("b", 9.0)):
        made.reserve(f"uid-{name}", pod(container(gpu=1), name=name), "n", ((share("G0"),),), until=until)
    made.groups.bind_begins("uid-a", 20.0)
    for now, held in ((8.0, 2), (9.0, 1), (19.0, 1), (20.0, 0)):
        made.expire(now)
        assert used(made)[0][0] == held


def test_nothing_stays_of_nodes_pods_and_namespaces_that_are_gone() -> None:
    """Most of their names never come back. That such pods came is remembered, who they were is not."""
    made = ledger()
    made.apply_pod(bound("a", "G0,NVIDIA,1000,10:;"))
    made.reserve("uid-b", pod(container(gpu=1), name="b"), "n", ((share("G1"),),), until=60.0)
    made.expire(60.0)
    made.remove_pod("uid-a")
    made.remove_pod("uid-b")
    made.remove_node("n")
    made.nodes.take_changed()
    left, fresh = vars(made), vars(Ledger())
    classes = left["_classes"]
    for each in (left, fresh):
        del each["_classes"], each["_of_pods"]
    assert left == fresh
    assert not vars(classes)["_seen"]
