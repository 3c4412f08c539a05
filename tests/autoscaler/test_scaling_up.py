"""The real cluster-autoscaler finds how many nodes parts of GPUs need: it counts resources and calls no extender."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from proto.annotations.keys import RESOURCE_MEMORY_PERCENTAGE
from scheduler_ext.admission.admit import admit
from scheduler_ext.admission.containers import AdmissionSettings
from tests.autoscaler.groups import Group, Scaled, gpu_amounts, running_node, scaling
from tests.autoscaler.program import find
from tests.cluster.binaries import NoBinaries
from tests.cluster.control_plane import ControlPlane
from tests.cluster.peers import real
from tests.cluster.scheduling import Cluster, JsonObject, gpu_pod
from tests.polling import until
from tests.scheduler_ext.admission.pods import patched, review

pytestmark = pytest.mark.autoscaler

GPU_MIB = 40960
HALF_MIB = GPU_MIB // 2
WARM = Group(name="warm", described={})
"""Its provider knows nothing of GPUs: the autoscaler copies a node that is there."""
COLD = Group(name="cold", described=gpu_amounts())


@pytest.fixture(scope="session")
def program() -> Path:
    try:
        return find()
    except NoBinaries as reason:
        pytest.skip(str(reason))


Scaling = Callable[..., AbstractAsyncContextManager[Scaled]]


@pytest.fixture
async def scaled_by(program: Path, plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Scaling]:
    async with real(plane) as peer:
        yield partial(scaling, program, plane, peer, tmp_path)


async def add(cluster: Cluster, count: int, pod: JsonObject) -> list[str]:
    names = [f"p{number}" for number in range(count)]
    for name in names:
        await cluster.add(pod | {"metadata": {"name": name}})
    return names


def summed(pod: JsonObject) -> JsonObject:
    """Returns the pod as the webhook leaves it with `gpuSums.enabled`."""
    settings = AdmissionSettings(gpu_sums=True)
    return patched(pod, admit(review(pod), settings, gpu_memory=lambda _: GPU_MIB))


def percent(share: int) -> JsonObject:
    pod = gpu_pod("p", 1)
    pod["spec"]["containers"][0]["resources"]["limits"][RESOURCE_MEMORY_PERCENTAGE] = str(share)
    return pod


async def test_a_warm_group_grows_by_as_many_nodes_as_halves_of_gpus_need(
    scaled_by: Scaling,
) -> None:
    async with scaled_by(WARM, nodes=[running_node(WARM, "warm-0")]) as scaled:
        names = await add(scaled.cluster, 40, gpu_pod("p", 1, gpumem=HALF_MIB))
        await scaled.cluster.bound(*names)
        await scaled.idle()
        assert len(await scaled.nodes(WARM)) == 3


@pytest.mark.parametrize(
    ("count", "pod"),
    [
        pytest.param(24, gpu_pod("p", 1, gpumem=HALF_MIB), id="halves-of-memory"),
        pytest.param(24, gpu_pod("p", 1, gpumem=1000, gpucores=50), id="halves-of-cores"),
        pytest.param(24, percent(50), id="percentages"),
        pytest.param(9, summed(gpu_pod("p", 1)), id="whole-gpus-with-sums"),
        pytest.param(9, summed(gpu_pod("p", 2, gpumem=HALF_MIB)), id="halves-of-two-gpus-with-sums"),
        pytest.param(2, summed(gpu_pod("p", 8)), id="all-gpus-of-a-node-with-sums"),
    ],
)
async def test_a_cold_group_that_describes_its_gpus_grows_by_as_many_nodes(
    scaled_by: Scaling, count: int, pod: JsonObject
) -> None:
    async with scaled_by(COLD) as scaled:
        names = await add(scaled.cluster, count, pod)
        await scaled.cluster.bound(*names)
        await scaled.idle()
        assert len(await scaled.nodes(COLD)) == 2


async def test_a_cold_group_that_names_the_count_alone_stays_empty_and_the_event_names_the_resource(
    scaled_by: Scaling,
) -> None:
    counted = Group(name="counted", described={"nvidia.com/gpu": "8"})
    async with scaled_by(counted) as scaled:
        await add(scaled.cluster, 1, gpu_pod("p", 1, gpumem=HALF_MIB))

        async def refused() -> bool:
            return any("Insufficient nvidia.com/gpumem" in each for each in await scaled.events("NotTriggerScaleUp"))

        await until(refused)
        assert await scaled.nodes(counted) == []


@pytest.mark.parametrize(
    "pod", [gpu_pod("p", 1), gpu_pod("p", 1, gpumem=24000)], ids=["whole-gpus-without-sums", "a-rest-on-each-gpu"]
)
async def test_a_pod_waits_whose_gpus_fit_by_their_sum_alone(scaled_by: Scaling, pod: JsonObject) -> None:
    """Either way a GPU holds one pod. The autoscaler sees 80 replicas, or 13 times 24 000 MiB in eight GPUs."""
    async with scaled_by(COLD) as scaled:
        await add(scaled.cluster, 9, pod)

        async def eight_run() -> bool:
            pods = await scaled.cluster.pods()
            return sum(bool(each["spec"].get("nodeName")) for each in pods.values()) == 8

        await until(eight_run)
        await scaled.idle()
        assert len(await scaled.nodes(COLD)) == 1
