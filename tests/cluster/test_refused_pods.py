"""A pod that a plugin of the real kube-scheduler refuses once GPUs are reserved for it holds none of them."""

import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.binaries import Binaries, NoBinaries
from tests.cluster.control_plane import ControlPlane
from tests.cluster.go_programs import PLUGIN, REFUSING, WHERE
from tests.cluster.peers import real
from tests.cluster.scheduling import Cluster, JsonObject, gpu_node, gpu_pod, running
from tests.polling import until

pytestmark = pytest.mark.cluster
MERGE_PATCH = "application/merge-patch+json"
PROFILE = {
    "schedulerName": "topogpu-scheduler",
    "plugins": {"multiPoint": {"enabled": [{"name": PLUGIN}]}},
}


@pytest.fixture(scope="module")
def plane(kubernetes: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    try:
        binaries = replace(kubernetes, scheduler=REFUSING.find(os.environ.get("KUBERNETES_RELEASE", "")))
    except NoBinaries as reason:
        pytest.skip(str(reason))
    with ControlPlane(binaries, tmp_path_factory.mktemp("control-plane-with-refusing")) as found:
        yield found


@asynccontextmanager
async def one_node(plane: ControlPlane, folder: Path) -> AsyncIterator[Cluster]:
    """Of eight GPUs. kube-scheduler tries a pod again at every event that this plugin might care for, so at many."""
    options, node = ("--reservation-lease", "8s"), gpu_node("a")
    async with real(plane) as peer, running(plane, peer, folder, node, options=options, profiles=[PROFILE]) as on:
        yield on


def asked_about(on: Cluster, name: str) -> list[JsonObject]:
    """The answers about the pod, in their order."""
    return [answer for question, answer in on.recorder.of("filter") if question["Pod"]["metadata"]["name"] == name]


async def next_is_bound(on: Cluster, after: str) -> None:
    began = time.monotonic()
    await on.add(gpu_pod("next", 8, gpucores=100))
    await on.bound("next")
    order = [question["Pod"]["metadata"]["name"] for question, _ in on.recorder.of("filter")]
    print(f"{after} the next pod was bound within {time.monotonic() - began:.1f} s; asked about: {order}")

    async def bind_is_recorded() -> bool:
        """The pod has its node before the recorder has seen the answer."""
        return bool(on.recorder.of("bind"))

    await until(bind_is_recorded)
    assert {question["PodName"] for question, _ in on.recorder.of("bind")} == {"next"}


@pytest.mark.parametrize("point", ["Reserve", "PreBind"])
async def test_its_gpus_go_to_the_next_pod(plane: ControlPlane, tmp_path: Path, point: str) -> None:
    async with one_node(plane, tmp_path) as on:
        await on.add(gpu_pod("refused", 8, gpucores=100, annotations={WHERE: point}))
        condition = await on.refused("refused")
        assert "refused on demand" in condition["message"]
        await next_is_bound(on, f"after a failed {point}")


async def test_one_that_is_refused_again_in_the_same_words_holds_them_for_a_shorter_lease(
    plane: ControlPlane, tmp_path: Path
) -> None:
    """Its status says nothing new, so nothing but time tells."""
    async with one_node(plane, tmp_path) as on:
        await on.add(gpu_pod("refused", 8, gpucores=100, annotations={WHERE: "Reserve"}))
        await on.refused("refused")
        path = f"/api/v1/namespaces/{on.namespace}/pods/refused"
        status, answer = await on.peer.send("PATCH", path, {"metadata": {"labels": {"try": "again"}}}, MERGE_PATCH)
        assert status == 200, answer

        async def tried_again() -> bool:
            return len(asked_about(on, "refused")) > 1

        await until(tried_again)
        await next_is_bound(on, "after two failed Reserves")
