"""What a pod keeps that has begun, when its node offers less."""

from dataclasses import replace

import pytest

from deviceplugin.inventory import Inventory
from deviceplugin.plugin_calls import CannotAllocate
from deviceplugin.slots.promises import Promises
from proto.annotations.keys import BIND_PHASE, DEVICES_ALLOCATED, MEMORY_RESIZE, NODE_REGISTER
from proto.annotations.pod_devices import encode_pod_devices
from proto.devices import PodShares
from proto.kubernetes.objects import ContainerStatus, Pod
from tests.deviceplugin.agent_rig import running as running_agent
from tests.deviceplugin.gpus import NODE, PAIR, A, B, bound_pod, share
from tests.deviceplugin.slots.slot_rig import SlotRig, slots
from tests.polling import until

X, Y = f"{A}-0", f"{A}-1"
HALF = (share(A, 20480, 50),)
LOWERED = Inventory(devices=(replace(PAIR[0], replicas=1, memory_mib=20480, cores=50),), kept=PAIR)


def running(name: str, shares: PodShares, init: int = 0) -> Pod:
    pod = bound_pod(name, shares, phase="Running", init=init)
    pod.status.container_statuses = [ContainerStatus(name=f"c{init}", container_id=f"containerd://{name}")]
    return pod


async def refused(rig: SlotRig, *ids: str) -> str:
    with pytest.raises(CannotAllocate) as error:
        await rig.allocator.pre_start(ids)
    return str(error.value)


def test_a_promise_follows_memory_that_was_changed_as_wished_and_no_other_change() -> None:
    promises, resized = Promises(), running("p", ((share(A, 30_000, 50),),))
    promises.note({"uid-p": running("p", (HALF,))})
    promises.note({"uid-p": resized})
    assert not promises.is_kept(resized)
    resized.metadata.annotations[MEMORY_RESIZE] = '{"wish":"30000","state":"done"}'
    promises.note({"uid-p": resized})
    assert promises.is_kept(resized)
    moved = running("p", ((share(B, 30_000, 50),),))
    moved.metadata.annotations[MEMORY_RESIZE] = resized.metadata.annotations[MEMORY_RESIZE]
    promises.note({"uid-p": moved})
    assert not promises.is_kept(moved)


def test_a_promise_is_what_was_decided_when_a_container_was_first_served_or_seen() -> None:
    promises, pod, other = Promises(), bound_pod("p", (HALF,)), running("q", (HALF,))
    promises.note({"uid-p": pod, "uid-q": other})
    assert (promises.is_kept(pod), promises.is_kept(other)) == (False, True)
    promises.begin(pod)
    more = bound_pod("p", ((share(A, 40960, 100),),))
    promises.note({"uid-p": more})
    assert [promises.is_kept(each) for each in (pod, more, other)] == [True, False, False]
    assert ("uid-p" in promises, "uid-q" in promises) == (True, False)


def test_an_ended_pod_keeps_nothing() -> None:
    promises, pod = Promises(), running("p", (HALF,))
    pod.status.phase = "Failed"
    promises.note({"uid-p": pod})
    assert not promises.is_kept(pod)


async def test_a_half_that_is_now_all_that_is_offered_is_still_held_by_the_library() -> None:
    async with slots() as rig:
        rig.gpus.inventory = LOWERED
        pods = running("p", (HALF,)), running("q", (HALF,))
        rig.bring(*pods)
        for pod, identifier in zip(pods, (X, Y), strict=True):
            rig.kubelet.hold(pod, "c0", identifier)
            await rig.allocator.pre_start([identifier])
            assert rig.env(identifier)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "20480m"
            assert "/etc/ld.so.preload" in {mount.container_path for mount in rig.edits(identifier).mounts}


async def test_a_newcomer_gets_nothing_beside_what_is_beyond_the_offer() -> None:
    async with slots(pre_start_seconds=0.05) as rig:
        rig.gpus.inventory = LOWERED
        rig.bring(running("p", (HALF,)), running("q", (HALF,)), bound_pod("late", ((share(A, 1, 0),),)))
        rig.kubelet.hold(rig.own.pods["uid-late"], "c0", X)
        assert "40961 MiB, 100 % for 3 were decided" in await refused(rig, X)


async def test_a_pod_whose_annotation_grew_after_it_began_is_judged_as_a_newcomer() -> None:
    async with slots(pre_start_seconds=0.05) as rig:
        pods = running("p", (HALF,)), running("q", (HALF,))
        rig.bring(*pods)
        rig.kubelet.hold(pods[0], "c0", X)
        await rig.allocator.pre_start([X])
        grown = running("p", (HALF,))
        grown.metadata.annotations[DEVICES_ALLOCATED] = encode_pod_devices(((share(A, 40960, 100),),))
        rig.bring(grown)
        assert "61440 MiB, 150 % for 2 were decided" in await refused(rig, X)


async def test_no_promise_exceeds_what_the_driver_has() -> None:
    async with slots() as rig:
        rig.gpus.inventory = LOWERED
        pod = running("p", ((share(A, 40961, 0),),))
        rig.bring(pod)
        rig.kubelet.hold(pod, "c0", X)
        assert f"40961 MiB were decided of {A}, which has 20480" in await refused(rig, X)


async def test_a_gpu_that_is_not_shared_any_more_is_still_given_to_a_pod_that_has_begun_and_no_other() -> None:
    async with slots(pre_start_seconds=0.05) as rig:
        rig.gpus.inventory = LOWERED
        begun, late = running("p", ((share(B),), (share(B),)), init=1), bound_pod("late", ((share(B),),))
        rig.bring(begun, late)
        rig.kubelet.hold(begun, "c0", X, init=True)
        rig.kubelet.hold(begun, "c1", X)
        await rig.allocator.pre_start([X])
        assert {rig.env(X, container=name)["NVIDIA_VISIBLE_DEVICES"] for name in ("c0", "c1")} == {B}
        rig.kubelet.hold(late, "c0", Y)
        assert f"{B} is not a GPU of this node" in await refused(rig, Y)


async def test_the_second_container_of_a_pod_gets_by_immediate_allocation_what_was_promised_before_its_first() -> None:
    async with running_agent(patience_seconds=0.5) as rig:
        rig.bind("p", (HALF, (share(B),)))
        await rig.allocate(X)
        before = rig.annotations("nodes", NODE)[NODE_REGISTER]
        rig.gpus[0] = LOWERED
        await until(lambda: rig.annotations("nodes", NODE)[NODE_REGISTER] != before)
        assert (await rig.allocate(Y))["NVIDIA_VISIBLE_DEVICES"] == B
        await until(lambda: rig.annotations("pods", "p")[BIND_PHASE] == "success")
        rig.bind("late", ((share(A, 1, 0),),))
        assert "20481 MiB" in await rig.refused(Y)


async def test_a_lost_gpu_is_not_given_to_a_pod_that_has_begun_either() -> None:
    async with slots() as rig:
        lost = replace(PAIR[0], healthy=False)
        rig.gpus.inventory = replace(LOWERED, devices=(lost,), kept=(lost,))
        pod = running("p", (HALF,))
        rig.bring(pod)
        rig.kubelet.hold(pod, "c0", X)
        assert f"{A} is unhealthy" in await refused(rig, X)
