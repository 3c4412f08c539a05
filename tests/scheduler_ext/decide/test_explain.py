"""What people read about a decision: each reason with its numbers."""

import dataclasses

import pytest

from proto.annotations import keys
from proto.devices import DeviceUUID
from proto.kubernetes.objects import Container, Pod
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Quota, Snapshot
from scheduler_ext.decide.decision import decide
from scheduler_ext.decide.explain import NodeLine, explain, popular_sentence
from scheduler_ext.decide.misfit import Amounts, GpuRefusal, Misfit, Unit
from scheduler_ext.decide.reasons import Reason
from scheduler_ext.decide.score import NodeScore
from scheduler_ext.workload import Popular, class_of
from tests.builders import container, pod
from tests.scheduler_ext.gpus import device, request, snapshot, usage


def lines(cluster: Snapshot, wanted: Pod) -> tuple[NodeLine, ...]:
    asked = request(wanted)
    return explain(asked, decide(asked, cluster, sorted(cluster.nodes)))


OTHER, MODEL = "GPU 3: not one of the GPUs asked for: ", "GPU 3: another model than asked for: "


def why(
    gpu: GpuUsage, wanted: Container, quota: Quota | None = None, annotations: dict[str, str] | None = None
) -> tuple[str, str]:
    """Word and sentence of the only GPU of the only node."""
    cluster = snapshot(usage("n", [gpu]))
    if quota is not None:
        cluster = dataclasses.replace(cluster, quotas={"default": (quota,)})
    (line,) = lines(cluster, pod(wanted, annotations=annotations))
    (told,) = line.gpus
    return told.refusal.reason, told.sentence


SMALL = container(gpu=1, gpumem=1000)
GPU = device(3)


@pytest.mark.parametrize(
    ("gpu", "wanted", "word", "sentence"),
    [
        (
            GpuUsage(GPU, 1, 28672),
            container(gpu=1, gpumem=30000),
            "CardInsufficientMemory",
            "GPU 3: needs 30 000 MiB, 12 288 free of 40 960",
        ),
        (
            GpuUsage(GPU, 1, 0, 60),
            container(gpu=1, gpumem=1, gpucores=50),
            "CardInsufficientCore",
            "GPU 3: needs 50 % of cores, 40 free of 100",
        ),
        (GpuUsage(GPU, 1, 50000), SMALL, "CardInsufficientMemory", "GPU 3: needs 1 000 MiB, 0 free of 40 960"),
        (GpuUsage(GPU, 12), SMALL, "CardTimeSlicingExhausted", "GPU 3: all 10 replicas are taken"),
        (GpuUsage(GPU, 10), SMALL, "CardTimeSlicingExhausted", "GPU 3: all 10 replicas are taken"),
        (
            GpuUsage(GPU, 2),
            container(gpu=1, gpumem=1, gpucores=100),
            "ExclusiveDeviceAllocateConflict",
            "GPU 3: the pod needs a GPU for itself, this one has 2 containers",
        ),
        (GpuUsage(GPU, 1, 0, 100), SMALL, "CardComputeUnitsExhausted", "GPU 3: all 100 % of the cores are reserved"),
        (GpuUsage(dataclasses.replace(GPU, healthy=False)), SMALL, "CardNotHealth", "GPU 3: unhealthy"),
    ],
)
def test_a_gpu_is_refused_with_the_numbers(gpu: GpuUsage, wanted: Container, word: str, sentence: str) -> None:
    assert why(gpu, wanted) == (word, sentence)


@pytest.mark.parametrize(
    ("annotation", "text", "word", "sentence"),
    [
        (
            keys.GPU_POLICY,
            "mutex",
            "ExclusiveDeviceAllocateConflict",
            "GPU 3: the pod needs a GPU for itself, this one has 1 container",
        ),
        (
            keys.USE_GPU_UUID,
            "G1,G2",
            "CardUuidMismatch",
            f"{OTHER}the pod's nvidia.com/use-gpuuuid does not name it",
        ),
        (
            keys.NO_USE_GPU_UUID,
            "G3",
            "CardUuidMismatch",
            f"{OTHER}the pod's nvidia.com/nouse-gpuuuid names it",
        ),
        (
            keys.USE_GPU_TYPE,
            "H100,A30",
            "CardTypeMismatch",
            f"{MODEL}it is a NVIDIA A100-SXM4-40GB, the pod's nvidia.com/use-gputype allows h100, a30",
        ),
        (
            keys.NO_USE_GPU_TYPE,
            "A100,V100",
            "CardTypeMismatch",
            f"{MODEL}it is a NVIDIA A100-SXM4-40GB, the pod's nvidia.com/nouse-gputype refuses a100",
        ),
        (
            keys.VGPU_MODE,
            "mps",
            "CardTypeMismatch",
            f"{MODEL}it is in mode hami-core, the pod's nvidia.com/vgpu-mode is 'mps'",
        ),
    ],
)
def test_a_gpu_the_author_of_the_pod_rules_out_is_told_by_the_annotation(
    annotation: str, text: str, word: str, sentence: str
) -> None:
    assert why(GpuUsage(GPU, 1), SMALL, annotations={annotation: text}) == (word, sentence)


@pytest.mark.parametrize(
    ("quota", "sentence"),
    [
        (Quota(memory_mib=900), "GPU 3: needs 1 000 MiB, the namespace's quota has 900 left of 900"),
        (Quota(memory_mib=9000, gpus=0), "GPU 3: needs 1 GPUs, the namespace's quota has 0 left of 0"),
        (Quota(memory_mib=9000, cores=5), "GPU 3: needs 10 % of cores, the namespace's quota has 5 left of 5"),
    ],
)
def test_a_quota_is_told_by_what_is_left_of_it(quota: Quota, sentence: str) -> None:
    wanted = container(gpu=1, gpumem=1000, gpucores=10)
    assert why(GpuUsage(GPU), wanted, quota) == ("ResourceQuotaNotFit", sentence)


def test_a_cordoned_gpu_is_told_by_the_annotation_of_the_node() -> None:
    node = RegisteredNode(name="n", devices=(GPU,), cordoned=frozenset({GPU.uuid}))
    (line,) = lines(Snapshot(nodes={"n": NodeUsage(node=node, gpus=(GpuUsage(GPU),))}), pod(SMALL))
    assert [gpu.sentence for gpu in line.gpus] == ["GPU 3: cordoned: the node's hami.io/device-cordon names it"]


def test_gpus_that_would_do_but_are_too_few_are_told_apart() -> None:
    gpus = [GpuUsage(device(n, numa=n // 2), *((10, 0, 0) if n == 0 else (0, 0, 0))) for n in range(4)]
    wanted = pod(container("train", gpu=3, gpumem=1000), annotations={keys.NUMA_BIND: "true"})
    (line,) = lines(snapshot(usage("n", gpus)), wanted)
    assert line.sentence == "container train asks for 3 GPUs with 1 000 MiB each"
    assert {gpu.refusal.uuid: gpu.sentence for gpu in line.gpus} == {
        "G3": "GPU 3: fits, but its NUMA node has fewer than 3 that fit",
        "G2": "GPU 2: fits, but its NUMA node has fewer than 3 that fit",
        "G1": "GPU 1: fits, but fewer than 3 GPUs do",
        "G0": "GPU 0: all 10 replicas are taken",
    }


def test_the_chosen_node_comes_first_with_the_terms_of_its_score_and_misfits_come_last() -> None:
    cluster = snapshot(
        usage("a", [GpuUsage(device(0))]),
        usage("b", [GpuUsage(device(0), 5, 10240, 20)]),
        usage("c", [GpuUsage(device(0), 1, 40960, 0)]),
    )
    told = lines(cluster, pod(SMALL))
    assert [(line.node, line.chosen, line.reason, line.sentence) for line in told] == [
        ("b", True, "", "in use: replicas 50 %, cores 20 %, memory 25 %; score 9.50"),
        ("a", False, "", "in use: replicas 0 %, cores 0 %, memory 0 %; score 0.00"),
        ("c", False, "1/1 CardInsufficientMemory", "container c asks for 1 GPU with 1 000 MiB"),
    ]


def test_the_links_of_the_gpus_go_before_the_score_where_they_choose_the_node() -> None:
    def pair(name: str, link: int, slots: int) -> NodeUsage:
        cards = [GpuUsage(device(n), slots) for n in range(2)]
        g0, g1 = (card.device.uuid for card in cards)
        return usage(name, cards, {g0: {g1: link}, g1: {g0: link}})

    wanted = pod(container(gpu=2, gpumem=1000), annotations={keys.GPU_POLICY: "topology-aware"})
    told = lines(snapshot(pair("a", 20, 5), pair("b", 1200, 0)), wanted)
    assert [(line.node, line.chosen, line.connection, line.sentence) for line in told] == [
        ("b", True, 1200, "in use: replicas 0 %, cores 0 %, memory 0 %; score 0.00; links 1 200, compared first"),
        ("a", False, 20, "in use: replicas 50 %, cores 0 %, memory 0 %; score 5.00; links 20, compared first"),
    ]


def test_a_node_with_too_few_gpus_and_an_unknown_one_are_explained_without_gpus() -> None:
    asked = request(pod(container(gpu=2)))
    cluster = snapshot(usage("n", [GpuUsage(GPU)]))
    few, unknown = explain(asked, decide(asked, cluster, ["n", "nowhere"]))
    assert few == NodeLine(
        node="n",
        reason="NodeInsufficientDevice",
        sentence="container c asks for 2 GPUs with its whole memory each; the node has 1 GPU",
    )
    assert unknown == NodeLine(node="nowhere", reason="node unregistered", sentence="offers no GPU")


def test_a_refusal_is_a_value_with_what_is_needed_free_and_there() -> None:
    asked = request(pod(container(gpu=1, gpumem=30000)))
    misfit = decide(asked, snapshot(usage("n", [GpuUsage(GPU, 1, 28672)])), ["n"]).misfits["n"]
    assert isinstance(misfit, Misfit)
    amounts = Amounts(needed=30000, used=28672, total=40960, unit=Unit.MIB)
    assert misfit.refusals == (
        GpuRefusal(
            uuid=DeviceUUID("G3"),
            index=3,
            type="NVIDIA A100-SXM4-40GB",
            mode="hami-core",
            reason=Reason.MEMORY,
            amounts=amounts,
        ),
    )


def test_the_nodes_that_do_not_fit_are_named_also_when_one_does() -> None:
    cluster = snapshot(usage("a", [GpuUsage(device(0), 10)]), usage("b", [GpuUsage(device(0))]))
    decision = decide(request(pod(SMALL)), cluster, ["a", "b", "nowhere"])
    assert decision.node == "b"
    assert decision.fits == {"b": NodeScore(total=0.0, replicas=0.0, cores=0.0, memory=0.0)}
    assert decision.failed == {"a": "1/1 CardTimeSlicingExhausted", "nowhere": "node unregistered"}


@pytest.mark.parametrize(
    ("annotations", "wishes"),
    [
        ({}, ""),
        ({keys.USE_GPU_TYPE: "A100,H100"}, " of type a100 or h100"),
        ({keys.NO_USE_GPU_TYPE: "T4"}, " not of type t4"),
        ({keys.VGPU_MODE: "mig"}, " in mode mig"),
        ({keys.GPU_POLICY: "mutex"}, " that no container uses"),
        ({keys.GPU_POLICY: "topology-aware"}, " with good links"),
    ],
)
def test_classes_of_pods_that_differ_are_told_apart(annotations: dict[str, str], wishes: str) -> None:
    wanted = request(pod(container(gpu=2, gpumem=1000), annotations=annotations))
    told = popular_sentence(Popular(pods=class_of(wanted), share=0.5))
    assert told == f"50.0 % of pods ask for 2 GPUs{wishes}, with 1 000 MiB, beside 0 CPUs and 0 MiB"
