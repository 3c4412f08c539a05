"""What holds of every decision, whatever the cluster and the pods are."""

import dataclasses
from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as with_fields

from proto.annotations import keys
from proto.devices import Device
from proto.kubernetes.objects import Container, ObjectMeta, Pod, ResourceQuota, ResourceQuotaSpec
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Quota, Snapshot
from scheduler_ext.decide.decision import Decision, decide
from tests.builders import container, node, pod
from tests.scheduler_ext.gpus import device, request, snapshot, usage

POLICIES = (
    "spread",
    "binpack",
    "topology-aware",
    "mutex",
    "numa",
    "numa,spread",
    "binpack,topology-aware",
    "fgd",
    "bogus",
)


@st.composite
def gpus(draw: st.DrawFn, number: int) -> Device:
    return dataclasses.replace(
        device(
            number,
            numa=draw(st.integers(0, 1)),
            memory_mib=draw(st.sampled_from([8000, 16000, 40000])),
            replicas=draw(st.integers(1, 2)),
        ),
        cores=draw(st.sampled_from([100, 200])),
        healthy=draw(st.sampled_from([True, True, True, False])),
    )


@st.composite
def machines(draw: st.DrawFn) -> tuple[Device, ...]:
    return tuple(draw(gpus(number)) for number in range(draw(st.integers(1, 4))))


@st.composite
def used(draw: st.DrawFn, whole: Device) -> GpuUsage:
    """No more than there is; nothing at all on a GPU nobody has a slot of."""
    slots = draw(st.integers(0, whole.replicas))
    if not slots:
        return GpuUsage(whole)
    memory_mib = draw(st.sampled_from([0, 1000, whole.memory_mib // 2, whole.memory_mib]))
    return GpuUsage(whole, slots, memory_mib, draw(st.sampled_from([0, 30, 100])))


@st.composite
def nodes(draw: st.DrawFn, name: str = "n") -> NodeUsage:
    cards = [draw(used(each)) for each in draw(machines())]
    uuids = [each.device.uuid for each in cards]
    links = st.sampled_from([0, 10, 100, 200])
    scores = {a: {b: draw(links) for b in uuids if b != a} for a in uuids}
    return usage(name, cards, scores)


@st.composite
def asking(draw: st.DrawFn) -> Container:
    """A container that asks for one to three GPUs, and memory by amount or percentage."""
    count, cores = draw(st.integers(1, 3)), draw(st.sampled_from([0, 20, 100, 150]))
    if draw(st.booleans()):
        return container(gpu=count, gpucores=cores, gpumem=draw(st.sampled_from([1000, 7700, 8000, 20000])))
    return container(gpu=count, gpucores=cores, gpumem_percentage=draw(st.sampled_from([10, 53, 100])))


@st.composite
def annotated(draw: st.DrawFn) -> dict[str, str]:
    return {
        keys.GPU_POLICY: draw(st.sampled_from(POLICIES)),
        keys.NODE_POLICY: draw(st.sampled_from(["binpack", "spread", "fgd"])),
        keys.NUMA_BIND: draw(st.sampled_from(["true", "false"])),
    }


@st.composite
def pods(draw: st.DrawFn, name: str = "p", *, in_turn: bool = True) -> Pod:
    """App containers and sidecars, some without GPUs, and `in_turn` init containers that end before the next starts."""
    sidecars = asking().map(lambda made: msgspec.structs.replace(made, restart_policy="Always"))
    inits = [sidecars, st.just(container()), *([asking()] if in_turn else [])]
    return pod(
        *draw(st.lists(st.one_of(asking(), st.just(container())), min_size=1, max_size=2)),
        draw(asking()),
        name=name,
        inits=draw(st.lists(st.one_of(inits), max_size=2)),
        annotations=draw(annotated()),
    )


@given(st.data())
def test_no_gpu_and_no_quota_is_ever_overbooked(data: st.DataObject) -> None:
    """Whatever is decided, reserved and forgotten, in whatever order.

    The quota is held by pods without ordinary init containers. Like HAMi, a pod may use its quota twice: in init
    containers, and on other GPUs in the containers that follow; both count once it is placed.
    """
    machine, limit = data.draw(machines()), data.draw(st.sampled_from([None, 15000]))
    ledger = Ledger()
    ledger.replace_nodes([node("n", machine)])
    if limit is not None:
        spec = ResourceQuotaSpec(hard={"limits.nvidia.com/gpumem": str(limit)})
        ledger.quotas.apply(ResourceQuota(metadata=ObjectMeta(name="q", namespace="default"), spec=spec))
    for step in range(data.draw(st.integers(1, 8))):
        wanted = data.draw(pods(f"p{data.draw(st.integers(0, step))}", in_turn=limit is None))
        uid = wanted.metadata.uid
        decision = decide(request(wanted), ledger.snapshot(uid), ["n"])
        if decision.node is not None and data.draw(st.booleans()):
            ledger.reserve(uid, wanted, decision.node, decision.shares, until=60.0)
        elif data.draw(st.booleans()):
            ledger.records.drop(ledger.records.reserved(uid))
        _assert_within_capacity(ledger.snapshot(), limit)


def _assert_within_capacity(cluster: Snapshot, limit: int | None) -> None:
    for gpu in cluster.nodes["n"].gpus:
        whole = gpu.device
        assert (gpu.replicas <= whole.replicas, gpu.memory_mib <= whole.memory_mib, gpu.cores <= whole.cores) == (
            True,
        ) * 3
    if limit is not None:
        assert cluster.quotas["default"][0].used.memory_mib <= limit


@given(st.data())
def test_the_order_of_the_nodes_in_the_request_and_in_the_cluster_does_not_matter(data: st.DataObject) -> None:
    names = ["a", "b", "c"]
    cluster = [data.draw(nodes(name)) for name in names]
    wanted = request(data.draw(pods()))
    decision = decide(wanted, snapshot(*cluster), [*names, "nowhere"])
    assert decision == decide(wanted, snapshot(*data.draw(st.permutations(cluster))), [*names, "nowhere"])
    assert decision == decide(wanted, snapshot(*cluster), data.draw(st.permutations([*names, "nowhere"])))


@given(st.data())
def test_a_decision_depends_on_what_is_held_and_not_on_how_it_came_about(data: st.DataObject) -> None:
    """Pods reserved in any order, with others that were forgotten meanwhile, lead to the same decision."""
    machine = data.draw(machines())
    first = Ledger()
    first.replace_nodes([node("n", machine)])
    held: list[tuple[Pod, Decision]] = []
    for number in range(3):
        each = data.draw(pods(f"p{number}"))
        decision = decide(request(each), first.snapshot(), ["n"])
        if decision.node is not None:
            first.reserve(each.metadata.uid, each, "n", decision.shares, until=60.0)
            held.append((each, decision))
    second = Ledger()
    second.replace_nodes([node("n", machine)])
    passing = data.draw(pods("passing"))
    fleeting = decide(request(passing), second.snapshot(), ["n"])
    second.reserve(
        passing.metadata.uid, passing, "n", fleeting.shares or ((),) * len(request(passing).needs), until=60.0
    )
    for each, decision in data.draw(st.permutations(held)):
        second.reserve(each.metadata.uid, each, "n", decision.shares, until=60.0)
    second.records.drop(second.records.reserved(passing.metadata.uid))
    wanted = request(data.draw(pods("wanted")))
    assert decide(wanted, first.snapshot(), ["n"]) == decide(wanted, second.snapshot(), ["n"])


@given(st.data())
def test_more_capacity_never_turns_a_fit_into_a_misfit(data: st.DataObject) -> None:
    """Under a quota, if the pod asks for amounts of memory: a percentage of a larger GPU is more, and a quota may not
    cover that.
    """
    before = data.draw(nodes())
    wanted = request(data.draw(pods()))
    by_amount = all(need is None or need.memory_mib for need in wanted.needs)
    quotas = {"default": (Quota(memory_mib=data.draw(st.sampled_from([8000, 30000]))),)} if by_amount else {}
    less, more = (dataclasses.replace(snapshot(each), quotas=quotas) for each in (before, data.draw(_grown(before))))
    if decide(wanted, less, ["n"]).node is not None:
        assert decide(wanted, more, ["n"]).node == "n"


def test_more_memory_that_draws_a_first_container_leaves_room_for_the_second() -> None:
    def fits(large_mib: int) -> bool:
        small = GpuUsage(device(0, memory_mib=7600), 1, 0, 0)
        large = GpuUsage(device(1, memory_mib=large_mib), 1, 0, 7)
        both = pod(container(gpu=1, gpumem=1000), container(gpu=1, gpumem=16000))
        return decide(request(both), snapshot(usage("n", [small, large])), ["n"]).node is not None

    assert fits(16000)
    assert fits(16500)
    assert fits(17000)


@given(st.data())
def test_one_more_node_never_turns_a_fit_into_a_misfit(data: st.DataObject) -> None:
    old, new = data.draw(nodes("a")), data.draw(nodes("b"))
    wanted = request(data.draw(pods()))
    if decide(wanted, snapshot(old), ["a"]).node is not None:
        assert decide(wanted, snapshot(old, new), ["a", "b"]).node is not None


@st.composite
def _grown(draw: st.DrawFn, before: NodeUsage) -> NodeUsage:
    """With one more GPU, or with more of one of them free."""
    cards: list[GpuUsage] = list(before.gpus)
    if draw(st.booleans()):
        added = draw(gpus(len(cards)).flatmap(used))
        cards.insert(draw(st.integers(0, len(cards))), added)
        return usage("n", cards, before.node.pair_scores)
    position = draw(st.integers(0, len(cards) - 1))
    cards[position] = draw(st.sampled_from(_larger(cards[position])))
    return usage("n", cards, before.node.pair_scores)


def _larger(gpu: GpuUsage) -> Sequence[GpuUsage]:
    whole = gpu.device
    grown = (
        dataclasses.replace(whole, replicas=whole.replicas + 1),
        dataclasses.replace(whole, memory_mib=whole.memory_mib + 8000),
        dataclasses.replace(whole, cores=whole.cores + 100),
        dataclasses.replace(whole, healthy=True),
    )
    return [GpuUsage(whole), *(with_fields(gpu, device=each) for each in grown)]
