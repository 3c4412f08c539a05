"""`NodeIndex` remembers what it found out; its choice is always the one `decide` takes afresh."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.annotations import keys
from proto.annotations.node_limits import NodeLimits
from proto.annotations.node_register import encode_register, encode_scores
from proto.annotations.pod_devices import encode_pod_devices
from proto.devices import MIG_MODE, Device, DeviceShare, DeviceUUID, MigInstance, MigPlacement, MigProfile
from proto.kubernetes.objects import (
    Container,
    Node,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodStatus,
    ResourceQuota,
    ResourceQuotaSpec,
    Resources,
)
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.decide.decision import Tally, choice_of, decide
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.decide.index.ranking import MOST_SHAPES
from tests.builders import container, node, pod
from tests.scheduler_ext.decide.test_laws import asking, pods
from tests.scheduler_ext.gpus import device, request
from tests.scheduler_ext.reached import sizes

NAMES = ("a", "b", "c", "d")
PODS = tuple(f"p{number}" for number in range(8))
NAMED = ({keys.USE_GPU_UUID: "a-0,b-1"}, {keys.NO_USE_GPU_UUID: "c-0"}, {keys.USE_GPU_TYPE: "A100"})
SLICES = tuple(MigPlacement(start=start, size=1) for start in range(3))
PROFILE = MigProfile(name="1g.5gb", memory_mib=4864, cores=14, slice_count=1, placements=SLICES)


@dataclasses.dataclass(frozen=True)
class Machine:
    """A kind of node; links by the positions of two GPUs, not always the same both ways."""

    cards: tuple[Device, ...]
    links: dict[tuple[int, int], int]
    cpu: str = ""
    """Allocatable; nothing is said of the machine if it is empty."""
    clique: str = ""

    def node(self, name: str, *, first_cordoned: bool, allocation: str, limits: str = "partly-enforced") -> Node:
        uuids = [DeviceUUID(f"{name}-{number}") for number in range(len(self.cards))]
        cards = [dataclasses.replace(card, uuid=uuid) for card, uuid in zip(self.cards, uuids, strict=True)]
        scores = {a: {b: self.links[i, j] for j, b in enumerate(uuids) if j != i} for i, a in enumerate(uuids)}
        annotations = {keys.NODE_REGISTER: encode_register(cards), keys.NODE_SCORE: encode_scores(scores, uuids)}
        annotations[keys.DEVICE_CORDON] = uuids[0] if first_cordoned else ""
        annotations[keys.NODE_ALLOCATION] = allocation
        annotations[keys.NODE_LIMITS] = limits
        machine = {"cpu": self.cpu, "memory": "64Gi"} if self.cpu else {}
        status = NodeStatus(allocatable={keys.RESOURCE_COUNT: sum(card.replicas for card in cards), **machine})
        labels = {keys.NODE_CLIQUE: self.clique} if self.clique else {}
        return Node(metadata=ObjectMeta(name=name, annotations=annotations, labels=labels), status=status)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    cards = tuple(draw(gpus(number)) for number in range(draw(st.integers(1, 4))))
    links, mutual = draw(st.lists(st.sampled_from([0, 10, 100]), min_size=16, max_size=16)), draw(st.booleans())
    pairs = {(i, j): (min(i, j), max(i, j)) if mutual else (i, j) for i in range(4) for j in range(4)}
    return Machine(
        cards,
        {pair: links[4 * i + j] for pair, (i, j) in pairs.items()},
        draw(st.sampled_from(["", "4", "8"])),
        draw(st.sampled_from(["", "fabric.1"])),
    )


@st.composite
def gpus(draw: st.DrawFn, number: int) -> Device:
    plain = device(number, numa=number // 2, memory_mib=draw(st.sampled_from([8000, 16000])), replicas=3)
    plain = dataclasses.replace(plain, type=draw(st.sampled_from(["NVIDIA A100", "NVIDIA A100", "NVIDIA T4", "Other"])))
    if draw(st.integers(0, 4)) == 0:
        return dataclasses.replace(plain, mode=MIG_MODE, mig_profiles=(PROFILE,))
    return dataclasses.replace(plain, healthy=draw(st.sampled_from([True, True, True, False])))


@st.composite
def shapes(draw: st.DrawFn) -> Pod:
    """Half of them of one container; some name GPUs or a type."""
    made = draw(pods())
    if draw(st.booleans()):
        made.spec.init_containers, made.spec.containers = [], [draw(asking())]
    named = draw(st.sampled_from([{}, {}, *NAMED]))
    made.metadata.annotations = {**made.metadata.annotations, **named}
    for each in made.spec.containers:
        each.resources.limits |= {"cpu": draw(st.sampled_from(["500m", "2"]))}
    return made


def cpu_pod(name: str, node_name: str) -> Pod:
    """Asks for no GPU."""
    return pod(Container(name="c", resources=Resources(requests={"cpu": "3"})), name=name, node_name=node_name)


def quota(limit_mib: int, cores: int) -> ResourceQuota:
    hard: dict[str, str | int | float] = {"limits.nvidia.com/gpumem": limit_mib, "limits.nvidia.com/gpucores": cores}
    return ResourceQuota(metadata=ObjectMeta(name="q", namespace="default"), spec=ResourceQuotaSpec(hard=hard))


@given(st.data())
def test_the_choice_is_what_decide_decides_whatever_happened_before(data: st.DataObject) -> None:
    """In a small world, so that nodes and pods are often alike: two kinds of machines, three shapes of pods."""
    kinds = data.draw(st.lists(machines(), min_size=1, max_size=2))
    asked = data.draw(st.lists(shapes(), min_size=1, max_size=3))
    ledger = Ledger()
    index = NodeIndex(ledger, step_effort=1)

    def some_node(name: str) -> Node:
        cordoned, allocation = data.draw(st.integers(0, 3)) == 0, data.draw(st.sampled_from(["slots", "immediate"]))
        limits = data.draw(st.sampled_from(NodeLimits)).value
        kind = data.draw(st.sampled_from(kinds))
        return kind.node(name, first_cordoned=cordoned, allocation=allocation, limits=limits)

    def some_pod() -> Pod:
        shape, name = data.draw(st.sampled_from(asked)), data.draw(st.sampled_from(PODS))
        return msgspec.structs.replace(shape, metadata=msgspec.structs.replace(shape.metadata, uid=name, name=name))

    events: list[Callable[[], object]] = [
        lambda: ledger.apply_node(some_node(data.draw(st.sampled_from(NAMES)))),
        lambda: ledger.remove_node(data.draw(st.sampled_from(NAMES))),
        lambda: ledger.remove_pod(data.draw(st.sampled_from(PODS))),
        lambda: ledger.apply_pod(cpu_pod("w", data.draw(st.sampled_from(NAMES)))),
        lambda: ledger.apply_pod(some_pod()),
        lambda: ledger.apply_pod(_runs_elsewhere(data.draw(st.sampled_from(asked)), data.draw(st.sampled_from("xyz")))),
        lambda: ledger.quotas.apply(quota(*data.draw(st.sampled_from([(9000, 10**4), (40000, 60), (10**6, 10**4)])))),
        lambda: ledger.quotas.remove(quota(0, 0)),
        lambda: ledger.expire(data.draw(st.sampled_from([5.0, 20.0]))),
    ]
    changes = tuple(events)
    events += [lambda: _filter(ledger, index, some_pod(), data, changes)] * 14
    ledger.replace_nodes([some_node(name) for name in NAMES])
    for event in data.draw(st.lists(st.sampled_from(events), min_size=5, max_size=25)):
        event()


def _filter(
    ledger: Ledger,
    index: NodeIndex,
    wanted: Pod,
    data: st.DataObject,
    changes: Sequence[Callable[[], object]],
) -> None:
    """As `/filter` does it; the cluster changes meanwhile, and a pod may be seen bound and filtered again."""
    uid, asked = wanted.metadata.uid, request(wanted)
    offered = data.draw(st.lists(st.sampled_from([*NAMES, "nowhere"]), max_size=6))
    for _ in index.prepare(asked, offered, every=data.draw(st.booleans())):
        if data.draw(st.integers(0, 3)) == 0:
            data.draw(st.sampled_from(changes))()
    if data.draw(st.integers(0, 3)) == 0:
        data.draw(st.sampled_from(changes))()
    ledger.records.drop(ledger.records.reserved(uid))
    expected = decide(asked, ledger.snapshot(uid), offered)
    choice = index.choose(asked, offered)
    assert choice == choice_of(expected)
    counted, everything = choice.tally(), choice_of(expected).tally()
    if len(set(offered)) < len(offered):
        # kube-scheduler names each node once. Only the count for people has such a node twice.
        assert counted.fitting >= everything.fitting or counted.unknown
    elif counted.unknown:
        # GPUs in MIG mode may take more effort than is spent on counting.
        assert counted.fitting <= everything.fitting <= counted.fitting + counted.unknown
    else:
        assert counted == everything
    assert index.fitting(asked, offered) == expected.preferences
    if data.draw(st.booleans()):
        index.look_ahead()
    if expected.node is None:
        return
    ledger.reserve(uid, wanted, expected.node, expected.shares, until=data.draw(st.sampled_from([5.0, 20.0])))
    if data.draw(st.integers(0, 3)) == 0:
        ledger.apply_pod(_bound(wanted, expected.node, encode_pod_devices(expected.shares)))


def _bound(wanted: Pod, node_name: str, devices: str) -> Pod:
    metadata = msgspec.structs.replace(
        wanted.metadata, annotations={**wanted.metadata.annotations, keys.DEVICES_ALLOCATED: devices}
    )
    spec = msgspec.structs.replace(wanted.spec, node_name=node_name)
    return msgspec.structs.replace(wanted, metadata=metadata, spec=spec, status=PodStatus(phase="Running"))


def _runs_elsewhere(wanted: Pod, name: str) -> Pod:
    """On a node that is not registered: only that it came counts."""
    metadata = msgspec.structs.replace(wanted.metadata, uid=name, name=name)
    return _bound(msgspec.structs.replace(wanted, metadata=metadata), "elsewhere", "")


def test_of_many_fitting_nodes_only_the_chosen_ones_score_is_named() -> None:
    ledger = Ledger()
    names = [f"n{number:02d}" for number in range(30)]
    ledger.replace_nodes([node(name, [device(0)]) for name in names])
    asked = request(pod(container(gpu=1, gpumem=1000)))
    choice = NodeIndex(ledger).choose(asked, [*names, "nowhere"])
    assert (choice.node, choice.tally()) == ("n00", Tally(fitting=30, scores={"n00": 0.0}))


class _Asked(list[str]):
    """Counts how often a name is looked for in it."""

    times = 0

    def __contains__(self, name: object) -> bool:
        self.times += 1
        return super().__contains__(name)


def test_the_names_that_were_offered_are_gone_through_once_for_a_pod() -> None:
    ledger, names = Ledger(), _Asked(["b", "a"])
    ledger.replace_nodes([node(name, [device(0)]) for name in names])
    index, asked = NodeIndex(ledger), request(pod(container(gpu=1, gpumem=1000)))
    assert list(index.prepare(asked, names)) == []
    assert index.choose(asked, names, prepared=True).node == "a"
    assert names.times == 1


def test_a_node_that_went_after_the_pod_was_prepared_is_not_chosen() -> None:
    ledger, names = Ledger(), ["a", "b"]
    ledger.replace_nodes([node(name, [device(0)]) for name in names])
    index, asked = NodeIndex(ledger), request(pod(container(gpu=1, gpumem=1000)))
    assert list(index.prepare(asked, names)) == []
    ledger.remove_node("a")
    assert index.choose(asked, names, prepared=True).node == "b"


def test_what_holds_for_a_node_with_hami_core_holds_for_no_node_without() -> None:
    ledger = Ledger()
    for name, limits in (("a", "none"), ("b", "hami-core"), ("c", "none")):
        made = node(name, [device(0)])
        made.metadata.annotations[keys.NODE_LIMITS] = limits
        ledger.apply_node(made)
    index, part = NodeIndex(ledger), request(pod(container(gpu=1, gpumem=1000)))
    choice = index.choose(part, ["a", "b", "c"])
    assert choice == choice_of(decide(part, ledger.snapshot(), ["a", "b", "c"]))
    assert (choice.node, choice.tally().fitting) == ("b", 1)
    made.metadata.annotations[keys.NODE_LIMITS] = "unenforced"
    ledger.apply_node(made)
    assert index.choose(part, ["a", "c"]).node == "c"


def test_more_shapes_than_are_remembered_are_answered_all_the_same() -> None:
    ledger = Ledger()
    ledger.replace_nodes([node("n", [device(0, memory_mib=100)])])
    index = NodeIndex(ledger)
    for _ in range(2):
        fits = [
            index.choose(request(pod(container(gpu=1, gpumem=50 + each))), ["n"]).node is not None
            for each in range(2 * MOST_SHAPES)
        ]
        assert fits == [each <= 50 for each in range(2 * MOST_SHAPES)]


LARGE = MigProfile(
    name="2g.10gb", memory_mib=9728, cores=28, slice_count=2, placements=(MigPlacement(start=0, size=2),)
)
MIG = dataclasses.replace(device(0), mode=MIG_MODE, mig_profiles=(PROFILE, LARGE))
TOPOLOGY = {keys.GPU_POLICY: "topology-aware"}
ONE, TWO = container("c", gpu=1, gpumem=9000, gpucores=20), container("d", gpu=1, gpumem=4000, gpucores=20)


@pytest.mark.parametrize(
    ("card", "wanted", "held"),
    [
        pytest.param(device(0), pod(ONE), [(1000, 90, None), (1000, 10, None)], id="cores"),
        pytest.param(device(0), pod(ONE, TWO), [(1000, 70, None), (1000, 10, None)], id="cores, several containers"),
        pytest.param(device(0), pod(ONE, TWO), [(40000, 0, None), (1000, 0, None)], id="memory"),
        pytest.param(MIG, pod(ONE), [(4864, 14, SLICES[0]), (4864, 14, SLICES[2])], id="where an instance lies"),
    ],
)
def test_nodes_that_differ_in_one_thing_are_not_taken_for_alike(
    card: Device, wanted: Pod, held: list[tuple[int, int, MigPlacement | None]]
) -> None:
    """Memory, cores and place that a pod holds of the only GPU of each of two nodes."""
    ledger = Ledger()
    for name, (memory_mib, cores, place) in zip("ab", held, strict=True):
        ledger.apply_node(Machine((card,), {}).node(name, first_cordoned=False, allocation="slots"))
        instance = None if place is None else MigInstance(profile=PROFILE.name, placement=place)
        taken = DeviceShare(uuid=DeviceUUID(f"{name}-0"), memory_mib=memory_mib, cores=cores, instance=instance)
        ledger.reserve(f"on-{name}", pod(container(gpu=1)), name, ((taken,),), until=1.0)
    expected = choice_of(decide(request(wanted), ledger.snapshot(), ["a", "b"]))
    choice = NodeIndex(ledger).choose(request(wanted), ["a", "b"])
    assert (expected.node, expected.tally().fitting) == ("b", 1)
    assert (choice, choice.tally()) == (expected, expected.tally())


def test_nodes_whose_links_differ_are_not_taken_for_alike() -> None:
    ledger = Ledger()
    for name, score in (("a", 10), ("b", 400)):
        links = {(i, j): score for i in range(2) for j in range(2)}
        ledger.apply_node(Machine((device(0), device(1)), links).node(name, first_cordoned=False, allocation="slots"))
    wanted = request(pod(container(gpu=2, gpumem=1000), annotations=TOPOLOGY))
    assert NodeIndex(ledger).choose(wanted, ["a", "b"]).node == "b"


@pytest.mark.parametrize("busy", [0, 1])
def test_a_link_that_is_worth_more_from_one_side_counts_as_decide_reads_it(busy: int) -> None:
    """It is read from the GPU that is tried first, which is another one on a node in other use."""
    ledger, links = Ledger(), {(i, j): 400 if i < j else 10 for i in range(2) for j in range(2)}
    for name, used in (("a", busy), ("b", 1 - busy)):
        ledger.apply_node(Machine((device(0), device(1)), links).node(name, first_cordoned=False, allocation="slots"))
        taken = DeviceShare(uuid=DeviceUUID(f"{name}-{used}"), memory_mib=1000, cores=0)
        ledger.reserve(f"on-{name}", pod(container(gpu=1)), name, ((taken,),), until=1.0)
    wanted = request(pod(container(gpu=2, gpumem=1000), annotations=TOPOLOGY))
    expected = decide(wanted, ledger.snapshot(), ["a", "b"])
    assert set(expected.connections.values()) == {10, 400}
    assert NodeIndex(ledger).choose(wanted, ["a", "b"]) == choice_of(expected)


def test_what_is_remembered_of_a_small_cluster_stays_small_however_many_states_its_nodes_were_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for least in ("index.node_states.LEAST_NUMBERED", "index.verdicts.LEAST_KNOWN"):
        monkeypatch.setattr(f"scheduler_ext.decide.{least}", 50)
    ledger = Ledger()
    ledger.replace_nodes([node("a", [device(0)])])
    index, asked = NodeIndex(ledger), request(pod(container(gpu=1, gpumem=100)))

    def after(states: range) -> Counter[str]:
        for memory_mib in states:
            other = pod(container(gpu=1, gpumem=memory_mib))
            shares = ((DeviceShare(uuid=DeviceUUID("G0"), memory_mib=memory_mib, cores=0),),)
            ledger.reserve("other", other, "a", shares, until=60.0)
            assert index.choose(asked, ["a"]).node == "a"
        return sizes([("index", index)], ["scheduler_ext"])

    few, many = after(range(1, 50)), after(range(50, 500))
    for store in ("ShapeJudge._by_state", "_Containers._of_gpu", "_Numbers._known"):
        assert many[store] < 4 * few[store]
