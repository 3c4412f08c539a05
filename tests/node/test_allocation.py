"""A pod's way from kube-scheduler into real containers, by slots and immediately."""

import json
from pathlib import Path

import pytest

from proto.annotations import keys
from proto.annotations.node_register import decode_register
from tests.node.pods import REPLICAS, SEVERAL, Pods, container, decided, pod
from tests.node.real_node import NODE, RealNode

pytestmark = [pytest.mark.node, pytest.mark.needs_compiler]
BOTH = pytest.mark.parametrize("allocation", ["slots", "immediate"])


async def test_the_daemon_chooses_slots_by_itself_and_kubelet_counts_every_replica(pods: Pods) -> None:
    await pods.serve()
    _, node = await pods.peer.send("GET", f"/api/v1/nodes/{NODE}")
    assert node["status"]["capacity"][keys.RESOURCE_COUNT] == str(REPLICAS)
    assert node["metadata"]["annotations"][keys.NODE_ALLOCATION] == "slots"
    registered = decode_register(node["metadata"]["annotations"][keys.NODE_REGISTER])
    assert [device.uuid for device in registered] == [pods.node.uuid(gpu) for gpu in range(8)]


@BOTH
async def test_a_container_gets_exactly_what_its_annotation_says(scheduled: Pods, allocation: str) -> None:
    await scheduled.serve("--allocation", allocation)
    await scheduled.add(pod("share", container(gpumem=3000, gpucores=30)), pod("whole", container(gpus=3)))
    await scheduled.started("share", "whole")
    await scheduled.check("share", "main")
    await scheduled.check("whole", "main")
    (share,) = decided(await scheduled.get("share"), "main")
    assert (share.memory_mib, share.cores) == (3000, 30)
    assert len(decided(await scheduled.get("whole"), "main")) == 3


@BOTH
async def test_each_container_of_a_pod_gets_its_own_and_one_without_gpus_gets_none(
    scheduled: Pods, allocation: str
) -> None:
    await scheduled.serve("--allocation", allocation, *SEVERAL)
    several = (container("a", gpumem=1000), container("b", gpus=2, gpumem=2000), container("none", gpus=0))
    await scheduled.add(pod("several", *several))
    await scheduled.started("several")
    await scheduled.check("several", "a", "b")
    (start,) = await scheduled.starts("several", "none")
    assert start.devices == {}
    assert not [name for name in start.env if name.startswith(("NVIDIA_", "CUDA_"))]


@BOTH
async def test_init_containers_sidecars_and_containers_get_what_was_decided_for_each(
    scheduled: Pods, allocation: str
) -> None:
    await scheduled.serve("--allocation", allocation)
    sidecar = container("sidecar", gpumem=await scheduled.init_memory(500)) | {"restartPolicy": "Always"}
    init = container("init", ends=True, gpumem=await scheduled.init_memory(3000))
    await scheduled.add(pod("staged", container(gpumem=2000), init=(init, sidecar)))
    await scheduled.started("staged")
    await scheduled.check("staged", "init", "sidecar", "main")


@BOTH
async def test_only_an_init_container_may_ask(scheduled: Pods, allocation: str) -> None:
    await scheduled.serve("--allocation", allocation)
    init = container("init", ends=True, gpumem=await scheduled.init_memory(700))
    await scheduled.add(pod("first", container(gpus=0), init=(init,)))
    await scheduled.started("first")
    await scheduled.check("first", "init")
    (start,) = await scheduled.starts("first", "main")
    assert start.devices == {}


@BOTH
async def test_of_forty_pods_at_once_each_gets_exactly_its_own(scheduled: Pods, allocation: str) -> None:
    await scheduled.serve("--allocation", allocation)
    names = [f"pod-{number}" for number in range(40)]
    await scheduled.add(*(pod(name, container(gpumem=1000 + at)) for at, name in enumerate(names)))
    started = await scheduled.started(*names)
    for at, name in enumerate(names):
        await scheduled.check(name, "main")
        assert [share.memory_mib for share in decided(started[name], "main")] == [1000 + at]


@BOTH
async def test_ids_that_pod_after_pod_is_given_never_bring_the_previous_ones_gpus(
    scheduled: Pods, allocation: str
) -> None:
    await scheduled.serve("--allocation", allocation, "--device-split-count", "1", *SEVERAL, replicas=8)
    for turn in range(3):
        names = [f"pod-{turn}-{number}" for number in range(4)]
        await scheduled.add(*(pod(name, container(gpus=2, gpumem=1000 + turn)) for name in names))
        await scheduled.started(*names)
        for name in names:
            await scheduled.check(name, "main")
        await scheduled.remove(*names)


@pytest.fixture
def vgpu(machine: RealNode) -> Path:
    """The folder of HAMi-core, whose place a library without content has."""
    return machine.hook_path / "vgpu"


@BOTH
async def test_hami_core_is_mounted_into_containers_with_a_part_of_a_gpu_alone(
    vgpu: Path, scheduled: Pods, allocation: str
) -> None:
    await scheduled.serve("--allocation", allocation)
    await scheduled.add(pod("limited", container(gpumem=1000)), pod("whole", container(gpus=2)))
    started = await scheduled.started("limited", "whole")
    (limited,), (whole,) = await scheduled.starts("limited"), await scheduled.starts("whole")
    uid = started["limited"]["metadata"]["uid"]
    mounted = {place: words.split(",")[0].split() for place, words in limited.mounts.items()}
    assert mounted["/etc/ld.so.preload"] == [f"{vgpu}/ld.so.preload", "ro"]
    assert mounted[f"{vgpu}/libvgpu.so"] == [str((vgpu / "libvgpu.so").resolve()), "ro"]
    assert mounted[f"{vgpu}"] == [f"{vgpu}/containers/{uid}_main", "rw"]
    assert mounted["/overrideEnv"] == [f"{vgpu}/overrides/{uid}_main/overrideEnv", "ro"]
    assert not {"/etc/ld.so.preload", str(vgpu), "/overrideEnv"} & whole.mounts.keys()


@BOTH
async def test_allocations_and_doctor_find_nothing_wrong_while_pods_run(
    vgpu: Path, scheduled: Pods, allocation: str
) -> None:
    await scheduled.serve("--allocation", allocation)
    await scheduled.add(pod("one", container(gpumem=1000)), pod("two", container("a"), container("b", gpus=2)))
    await scheduled.started("one", "two")
    listed = json.loads(scheduled.node.ask_daemon("allocations", "--allocation", allocation, "--output", "json"))
    assert {(one["pod"], one["container"], one["agrees"]) for one in listed["allocations"]} == {
        ("one", "main", True),
        ("two", "a", True),
        ("two", "b", True),
    }
    found = scheduled.node.ask_daemon("doctor", "--allocation", allocation)
    noted = [line for line in found.splitlines() if line.startswith(("✗", "!"))]
    assert noted == ["! GPUs: They are simulated: none of them is real, and no program can use them."]
    assert found.splitlines()[-1] == "no problems, 1 warning."
