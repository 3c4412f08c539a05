"""What one pod costs is bounded, whatever its author writes: in effort, which no busy machine changes."""

import json
from dataclasses import replace
from itertools import chain
from math import inf

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proto.admission import AdmissionError, Json, decode_review
from proto.annotations import keys
from proto.devices import DeviceShare, DeviceUUID
from proto.kubernetes.objects import Container, Pod
from proto.kubernetes.wire import decode_object
from scheduler_ext.admission.admit import Why, admit
from scheduler_ext.admission.containers import AdmissionSettings
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Quota
from scheduler_ext.decide.decision import decide
from scheduler_ext.decide.effort import Effort
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.decide.index.ranking import MOST_SHAPES
from scheduler_ext.decide.index.verdicts import EFFORT_OF_A_NODE
from scheduler_ext.decide.place import place
from scheduler_ext.decide.reasons import Reason
from scheduler_ext.quota_class import quota_class
from scheduler_ext.requests import (
    LONGEST_LIST,
    MOST_CONTAINERS,
    GpuRequest,
    RequestError,
    RequestSettings,
    TooMany,
    read_request,
)
from scheduler_ext.requeue import EFFORT
from tests.builders import container, pod
from tests.builders import node as node_of
from tests.scheduler_ext.admission.pods import envelope
from tests.scheduler_ext.costly import costly, different_nodes
from tests.scheduler_ext.gpus import device, request, snapshot, usage
from tests.scheduler_ext.mig_gpus import mig_device
from tests.scheduler_ext.reached import sizes

MOST_EFFORT_PLACING = 20_000
"""The effort for such a pod on a node of eight GPUs, about 40 ms; a usual pod takes 10."""
LONGEST_SENTENCE = 800


def asks_too_much(asked: Pod) -> bool:
    try:
        read_request(asked, RequestSettings())
    except RequestError as refusal:
        return isinstance(refusal, TooMany)
    return False


def node(name: str, *, slots: bool) -> NodeUsage:
    plain = usage(name, [GpuUsage(device(number, numa=number // 4, replicas=300)) for number in range(8)])
    return replace(plain, node=replace(plain.node, by_slots=slots))


@st.composite
def machines(draw: st.DrawFn) -> NodeUsage:
    """Of any size, some of their GPUs in MIG mode, linked and in use in any way."""
    random, in_mig_mode = draw(st.randoms(use_true_random=False)), draw(st.booleans())
    count = draw(st.sampled_from([1, 2, 4, 8, 16]))
    devices = [
        mig_device(n) if in_mig_mode and random.random() < 0.7 else device(n, numa=n * 2 // count, replicas=30)
        for n in range(count)
    ]
    gpus = [GpuUsage(each, random.randrange(4), random.randrange(9000), random.randrange(20)) for each in devices]
    scores = {a.uuid: {b.uuid: random.choice([10, 20, 40, 200]) for b in devices if b is not a} for a in devices}
    plain = usage("n", gpus)
    return replace(plain, node=replace(plain.node, by_slots=draw(st.booleans()), pair_scores=scores))


CLUSTER = snapshot(node("plain", slots=False), node("slots", slots=True))


def read_or_refused(asked: Pod) -> GpuRequest | str | None:
    try:
        return read_request(asked, RequestSettings())
    except RequestError as refusal:
        return str(refusal)


HUGE = st.sampled_from(["0", "1", "2", "7", "255", "256", "257", "1e999", "9" * 64, "1Ei", "-1", "1n", "x", ""])
AMOUNTS = st.dictionaries(
    st.sampled_from(["gpu", "gpumem", "gpumem-percentage", "gpucores", "priority"]).map("nvidia.com/{}".format), HUGE
)
SMALL = st.fixed_dictionaries(
    {"nvidia.com/gpu": st.sampled_from(["1", "2", "3", "8", "256"])},
    optional={
        "nvidia.com/gpumem": st.sampled_from(["1", "2", "1000"]),
        "nvidia.com/gpumem-percentage": st.sampled_from(["1", "3", "50"]),
        "nvidia.com/gpucores": st.sampled_from(["0", "1", "100"]),
    },
)


def hostile_containers(most: int) -> st.SearchStrategy[list[Json]]:
    """A few kinds, each of them many times: what hurts is how many there are."""
    some = st.fixed_dictionaries(
        {
            "name": st.text("ab", min_size=1, max_size=3),
            "resources": st.fixed_dictionaries({"limits": SMALL | AMOUNTS}),
        },
        optional={"restartPolicy": st.just("Always")},
    )
    repeated = st.tuples(some, st.integers(1, most)).map(lambda pair: [pair[0]] * pair[1])
    return st.lists(repeated, max_size=4).map(lambda lists: list(chain.from_iterable(lists)))


def words(most: int) -> st.SearchStrategy[str]:
    return st.integers(0, most).map(lambda count: ",".join(f"{number:x}" for number in range(count)))


ANNOTATIONS = st.dictionaries(
    st.sampled_from([keys.USE_GPU_TYPE, keys.NO_USE_GPU_TYPE, keys.USE_GPU_UUID, keys.NO_USE_GPU_UUID]),
    words(20_000),
) | st.dictionaries(
    st.sampled_from([keys.GPU_POLICY, keys.NODE_POLICY, keys.SCORING_WEIGHTS, keys.VGPU_MODE, keys.NUMA_BIND]),
    words(2_000) | st.sampled_from(["topology-aware", "true", "binpack", f"slot={'9' * 5000},core=1,memory=1"]),
)


@st.composite
def hostile_pods(draw: st.DrawFn, most: int = 300) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "annotations": draw(ANNOTATIONS)},
        "spec": {
            "containers": draw(hostile_containers(most)) or [{"name": "a"}],
            "initContainers": draw(hostile_containers(most)),
        },
    }


@st.composite
def placeable(draw: st.DrawFn) -> GpuRequest:
    """Such that it is not over with the first container."""
    counts = st.lists(st.sampled_from([1, 1, 2, 3, 4, 8]), min_size=1, max_size=8)
    apps = [container(f"a{n}", gpu=count, gpumem=100 + n) for n, count in enumerate(draw(counts))]
    inits = [container(f"i{n}", gpu=count, gpumem=500 + n) for n, count in enumerate(draw(st.just([]) | counts))]
    policy = draw(st.sampled_from(["topology-aware", "binpack", "numa,binpack,spread", "mutex"]))
    annotations = {keys.GPU_POLICY: policy, keys.NUMA_BIND: draw(st.sampled_from(["true", "false"]))}
    return request(pod(*apps, inits=inits, annotations=annotations))


def init_bomb(count: int) -> Json:
    asking = {"name": "i", "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}}}
    spec = {"initContainers": [asking] * count, "containers": [{"name": "main"}]}
    return {"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec}


@given(hostile_pods())
@example(init_bomb(300))
@example(init_bomb(16))
def test_a_pod_is_placed_with_bounded_effort_or_refused_with_a_short_sentence(hostile: Json) -> None:
    """Also one that comes past the webhook."""
    wanted = read_or_refused(decode_object(Pod, json.dumps(hostile).encode()))
    if isinstance(wanted, str):
        assert len(wanted) < LONGEST_SENTENCE
        return
    if wanted is None:
        return
    for on in CLUSTER.nodes.values():
        place(wanted, on, None, effort := Effort())
        assert effort.made < MOST_EFFORT_PLACING


@given(hostile_pods())
@example(init_bomb(300))
def test_what_the_webhook_admits_can_be_placed_and_what_is_too_much_is_denied(hostile: Json) -> None:
    try:
        review = decode_review(envelope(hostile))
    except AdmissionError as refusal:
        assert "a pod with more than 256 is not read" in str(refusal)  # noqa: PT017 - often it is none
        return
    verdict = admit(review, AdmissionSettings(), Quota(gpus=10**9, memory_mib=10**15))
    assert len(verdict.message) < LONGEST_SENTENCE
    if verdict.reason == Why.GPUS:
        assert not asks_too_much(review.pod)


@pytest.mark.parametrize("amount", ["0e999999999", "0E-999999999", f"0.{'0' * 60}", "0" * 100_000])
def test_quota_classes_are_found_without_working_out_amounts(amount: str) -> None:
    resources = {"requests": {"cpu": amount, "memory": amount}, "limits": {"cpu": amount, "memory": amount}}
    asking = msgspec.convert({"spec": {"containers": [{"name": "c", "resources": resources}] * 256}}, Pod)
    assert quota_class(asking).best_effort


def too_many(asked: Pod, how: RequestSettings | None = None) -> str:
    with pytest.raises(TooMany) as refused:
        read_request(asked, how or RequestSettings())
    return str(refused.value)


def test_more_containers_or_gpus_than_one_pod_may_ask_for_are_refused_by_name() -> None:
    apps = [container(f"a{n}", gpu=1) for n in range(9)]
    inits = [container(f"i{n}", gpu=1) for n in range(8)]
    assert too_many(pod(*apps, inits=inits)) == (
        "container a8: nvidia.com/gpu: more than 16 containers of the pod ask for GPUs; split the pod"
    )
    assert len(request(pod(*apps[1:], inits=inits)).needs) == 16
    assert too_many(pod(*apps[:2]), RequestSettings(most_gpu_containers=1)).startswith("container a1: ")
    assert too_many(pod(container("c", gpu="1e30"))).startswith(
        "container c: nvidia.com/gpu: 1000000000000000000000000000000 GPUs are more than any node has; "
    )
    assert too_many(pod(container("c", gpu=9)), RequestSettings(most_gpus=8)).startswith(
        "container c: nvidia.com/gpu: 9 GPUs "
    )


def test_containers_without_gpus_count_only_beside_some_that_have_them() -> None:
    helpers = [container("h") for _ in range(MOST_CONTAINERS)]
    assert read_request(pod(*helpers), RequestSettings()) is None
    assert too_many(pod(container("c", gpu=1), *helpers)) == (
        "spec: 257 containers; a pod that asks for GPUs has at most 256"
    )


@pytest.mark.parametrize("key", [keys.USE_GPU_TYPE, keys.NO_USE_GPU_UUID, keys.GPU_POLICY, keys.VGPU_MODE])
def test_an_annotation_too_long_to_be_read_is_refused_by_name(key: str) -> None:
    longest = LONGEST_LIST if "gpu" in key.rpartition("use-")[2] and "use" in key else 512
    asking: Container = container("c", gpu=1)
    assert too_many(pod(asking, annotations={key: "x" * (longest + 1)})) == (
        f"{key}: has {longest + 1} characters; write at most {longest}"
    )
    assert request(pod(asking, annotations={key: "x" * longest}))


def test_nodes_in_the_same_state_are_judged_once() -> None:
    names = [f"n{number}" for number in range(400)]
    alike, different = Ledger(), Ledger()
    alike.replace_nodes([node_of(name, [device(gpu) for gpu in range(8)]) for name in names])
    sized = [[device(gpu, memory_mib=40_000 + number) for gpu in range(8)] for number in range(400)]
    different.replace_nodes([node_of(name, gpus) for name, gpus in zip(names, sized, strict=True)])
    wanted = request(pod(container(gpu=1, gpumem=1_000_000)))
    pauses = {}
    for kind, ledger in (("alike", alike), ("different", different)):
        index = NodeIndex(ledger, step_effort=100, least_most_effort=10**6)
        pauses[kind] = len(list(index.prepare(wanted, names)))
        assert index.fits_nowhere(wanted, names)
    assert pauses["alike"] * 3 < pauses["different"]


def test_of_a_pod_that_fits_nowhere_an_answer_judges_some_nodes_and_the_next_one_goes_on() -> None:
    cluster, names = different_nodes()
    ledger = cluster.ledger
    wanted = costly(49_000)
    index = NodeIndex(ledger, least_most_effort=0)
    decision = decide(wanted, ledger.snapshot(), names)
    assert decision.node is None
    left, answers = len(names), 0
    while left:
        for _ in index.prepare(wanted, names):
            pass
        failed = index.choose(wanted, names, prepared=True).failed
        still = sum(reason == Reason.NOT_LOOKED_AT for reason in failed.values())
        assert still < left
        left, answers = still, answers + 1
    assert failed == {name: misfit.brief for name, misfit in decision.misfits.items()}
    assert answers > 5
    assert index.fits_nowhere(wanted, names)


def test_what_an_answer_leaves_unknown_is_no_reason_to_evict() -> None:
    cluster, names = different_nodes()
    ledger = cluster.ledger
    index = NodeIndex(ledger, least_most_effort=0)
    assert not index.fits_nowhere(costly(49_000), names)


def nearly_full() -> tuple[Ledger, list[str]]:
    """A costly pod of 30 000 MiB fits on the last of these nodes only."""
    cluster, names = different_nodes()
    ledger = cluster.ledger
    for name in names[:-1]:
        held = (DeviceShare(uuid=DeviceUUID(f"{name}-G1"), memory_mib=25_000, cores=0),)
        ledger.reserve(f"{name}+", pod(container(), name=f"{name}+"), name, (held,), until=inf)
    return ledger, names


def test_more_costly_shapes_in_turn_than_are_remembered_are_all_placed_after_so_many_looks() -> None:
    """Each fits on one node only, and what an answer finds out is forgotten before its pod is asked about again."""
    ledger, names = nearly_full()
    index = NodeIndex(ledger, least_most_effort=0)
    waiting = {number: costly(30_000 + number) for number in range(MOST_SHAPES + 8)}
    rounds, placing = 0, Effort()
    place(waiting[0], ledger.snapshot().nodes[names[0]], None, placing)
    polls_for_each = len(names) * (EFFORT_OF_A_NODE + placing.made) // EFFORT + 1
    while waiting:
        rounds += 1
        assert rounds <= polls_for_each + 1, len(waiting)
        for number, wanted in list(waiting.items()):
            for _ in index.prepare(wanted, names):
                pass
            if index.choose(wanted, names, prepared=True).node == names[-1]:
                del waiting[number]
            else:
                index.poll(wanted, EFFORT)
    assert rounds > 1


def test_room_that_was_found_for_a_pod_is_taken_though_other_costly_pods_had_what_is_known_of_it_forgotten() -> None:
    ledger, names = nearly_full()
    index = NodeIndex(ledger, least_most_effort=0)
    wanted = costly(30_000)
    others = [costly(49_000 + number) for number in range(MOST_SHAPES)]

    def answer() -> str | None:
        for each in (*others, wanted):
            for _ in index.prepare(each, names):
                pass
            chosen = index.choose(each, names, prepared=True)
        return chosen.node

    assert decide(wanted, ledger.snapshot(), names).node == names[-1]
    assert {answer() for _ in range(3)} == {None}
    while index.poll(wanted, 200) is None:
        pass
    assert answer() == names[-1]


def test_pods_of_many_shapes_that_wait_take_memory_for_a_few_searches_and_each_search_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each has a place for every node while it is under way."""
    few, effort = 2, 10 * EFFORT
    monkeypatch.setattr("scheduler_ext.decide.index.polls.MOST_UNDER_WAY", few)
    ledger, names = nearly_full()
    index = NodeIndex(ledger, least_most_effort=0)
    left, rounds = [costly(49_000 + number) for number in range(2 * few)], 0
    alone, polls = NodeIndex(nearly_full()[0], least_most_effort=0), 1
    while alone.poll(left[0], effort) is None:
        polls += 1
    assert polls > 1
    while left:
        left = [each for each in left if index.poll(each, effort) is None]
        assert sizes([("index", index)], ["scheduler_ext"])["_RoomSearch.left"] <= (few + 1) * (len(names) + 1)
        rounds += 1
        assert rounds <= 3 * polls, "as if there were no place for some"


def test_searches_for_pods_that_are_gone_make_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_ext.decide.index.polls.MOST_UNDER_WAY", 2)
    monkeypatch.setattr("scheduler_ext.decide.index.polls.MOST_SHAPES", 6)
    ledger, _ = nearly_full()
    index = NodeIndex(ledger, least_most_effort=0)
    wanted = costly(49_000)
    for number in range(2):
        assert index.poll(costly(48_000 + number), 1) is None
    for _ in range(200):
        if index.poll(wanted, 10 * EFFORT) is not None:
            return
    pytest.fail("there was never a place for it")
