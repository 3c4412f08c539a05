import asyncio
import errno
import os
import tempfile
from functools import partial
from pathlib import Path

import pytest

from deviceplugin.allocation.identity import ProvenSlot
from deviceplugin.allocation.slots import qualified, slot_file, slot_name
from deviceplugin.container.edits import (
    ContainerEdits,
)
from deviceplugin.kubelet import CannotAllocate
from tests.deviceplugin.agent_rig import write
from tests.deviceplugin.allocation.slot_rig import slots
from tests.deviceplugin.gpus import A, B, bound_pod, share

X, Y, Z = f"{A}-0", f"{B}-0", f"{A}-1"
ONE, OTHER, TWO = (share(A),), (share(B, 5000),), (share(A, 1000), share(B, 2000))


async def refused(started: "asyncio.Future[None] | asyncio.Task[None]") -> str:
    with pytest.raises(CannotAllocate) as error:
        await started
    return str(error.value)


async def test_allocate_answers_with_the_slots_name_and_knows_nobody() -> None:
    async with slots() as rig:
        answer = await rig.allocator.allocate([Y, X])
        assert answer == ContainerEdits(
            env={"NVIDIA_VISIBLE_DEVICES": "topogpu-slot-not-applied"}, cdi_devices=(qualified(slot_name([X, Y])),)
        )
        assert rig.specs() == []
        assert rig.server.requests == []
        assert rig.allocator.pre_start_required


async def test_the_spec_of_whoever_is_proven_lies_there_before_the_container_is_created() -> None:
    async with slots() as rig:
        pods = [bound_pod("p", (ONE,)), bound_pod("q", (OTHER,))]
        rig.bring(*pods)
        rig.kubelet.hold(pods[0], "c0", X)
        rig.kubelet.hold(pods[1], "c0", Z)
        await asyncio.gather(rig.allocator.pre_start([X]), rig.allocator.pre_start([Z]))
        assert rig.env(X) == {
            "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
            "CUDA_DEVICE_SM_LIMIT": "30",
            "CUDA_DEVICE_SM_LIMIT_0": "30",
            "NVIDIA_VISIBLE_DEVICES": A,
        }
        assert (rig.env(Z)["NVIDIA_VISIBLE_DEVICES"], rig.env(Z)["CUDA_DEVICE_MEMORY_LIMIT_0"]) == (B, "5000m")
        assert rig.server.requests == []


async def test_a_spec_that_says_the_same_already_is_left_alone() -> None:
    async with slots() as rig:
        pod = bound_pod("p", (ONE,))
        rig.bring(pod)
        rig.kubelet.hold(pod, "c0", X)
        await rig.allocator.pre_start([X])
        file = rig.directory / slot_file(slot_name([X]))
        written = file.stat().st_ino
        await rig.allocator.pre_start([X])
        assert file.stat().st_ino == written


async def test_the_next_pod_with_the_same_ids_gets_its_own_spec() -> None:
    async with slots() as rig:
        first, second = bound_pod("p", (ONE,)), bound_pod("q", (OTHER,))
        rig.bring(first)
        rig.kubelet.hold(first, "c0", X)
        await rig.allocator.pre_start([X])
        rig.kubelet.free()
        rig.bring(second)
        rig.kubelet.hold(second, "c0", X)
        await rig.allocator.pre_start([X])
        assert rig.env(X)["NVIDIA_VISIBLE_DEVICES"] == B


async def test_a_proof_that_comes_late_is_waited_for() -> None:
    async with slots() as rig:
        pod = bound_pod("p", (ONE,))
        starting = asyncio.create_task(rig.allocator.pre_start([X]))
        await asyncio.sleep(0.02)
        rig.kubelet.hold(pod, "c0", X, init=True)
        await asyncio.sleep(0.02)
        rig.bring(pod)
        await starting
        assert rig.env(X)["NVIDIA_VISIBLE_DEVICES"] == A


async def test_without_a_proof_the_call_fails_in_time_and_says_what_was_seen() -> None:
    async with slots(pre_start_seconds=0.1) as rig:
        rig.bring(bound_pod("p", (ONE,)))
        rig.kubelet.listed_now = None
        assert await refused(asyncio.create_task(rig.allocator.pre_start([X]))) == (
            f"kubelet asks for whoever holds exactly the 1 device {X}: pod-resources does not answer (connection "
            "refused); kubelet's checkpoint has none"
        )
        assert rig.specs() == []


async def test_a_pod_that_the_watch_lacks_is_read_once() -> None:
    async with slots() as rig:
        pod = bound_pod("p", (ONE,))
        pod.metadata.uid = rig.store(pod)
        rig.kubelet.hold(pod, "c0", X)
        await rig.allocator.pre_start([X])
        assert rig.env(X)["NVIDIA_VISIBLE_DEVICES"] == A
        assert [(request.verb, request.resource) for request in rig.server.requests if request.verb != "create"] == [
            ("get", "pods")
        ]


async def test_a_pod_that_the_api_server_does_not_have_either_is_asked_for_once_and_refused() -> None:
    async with slots(pre_start_seconds=1.0) as rig:
        rig.kubelet.hold(bound_pod("p", (ONE,)), "c0", X)
        sentence = await refused(asyncio.create_task(rig.allocator.pre_start([X])))
        assert "pod-resources names pod default/p, container c0" in sentence
        assert sum(request.verb == "get" for request in rig.server.requests) == 1


async def test_a_namesake_made_anew_is_read_and_not_the_pod_that_the_watch_still_shows() -> None:
    async with slots() as rig:
        rig.bring(bound_pod("p", (ONE,), phase="Running"))
        fresh = bound_pod("p", (OTHER,))
        fresh.metadata.uid = rig.store(fresh)
        rig.kubelet.hold(fresh, "c0", X)
        await rig.allocator.pre_start([X])
        assert rig.env(X)["NVIDIA_VISIBLE_DEVICES"] == B


async def test_an_init_container_and_its_heir_share_one_spec_with_the_larger_limits() -> None:
    async with slots() as rig:
        pod = bound_pod("p", ((share(A, 9000, 10),), (share(A, 3000, 30),)), init=1)
        rig.bring(pod)
        rig.kubelet.hold(pod, "c0", X, init=True)
        rig.kubelet.hold(pod, "c1", X)
        await rig.allocator.pre_start([X])
        env = rig.env(X)
        assert (env["CUDA_DEVICE_MEMORY_LIMIT_0"], env["CUDA_DEVICE_SM_LIMIT"]) == ("9000m", "30")


async def test_a_folder_that_cannot_be_written_is_named_and_written_as_soon_as_it_can() -> None:
    async with slots() as rig:
        pod = bound_pod("p", (ONE,))
        rig.bring(pod)
        rig.kubelet.hold(pod, "c0", X)
        rig.directory.write_text("a file where the folder should be")
        sentence = await refused(asyncio.create_task(rig.allocator.pre_start([X])))
        assert sentence.startswith(f"pod default/p: {rig.directory}/{slot_file(slot_name([X]))} cannot be written: ")
        rig.directory.unlink()
        await rig.allocator.pre_start([X])
        assert rig.env(X)["NVIDIA_VISIBLE_DEVICES"] == A


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
async def test_a_folder_that_is_full_or_read_only_keeps_what_was_there(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with slots() as rig:
        first, second = bound_pod("p", (ONE,)), bound_pod("q", (OTHER,))
        rig.bring(first, second)
        rig.kubelet.hold(first, "c0", X)
        await rig.allocator.pre_start([X])
        rig.kubelet.free()
        rig.kubelet.hold(second, "c0", X)
        with monkeypatch.context() as disk:
            disk.setattr(os, "replace", partial(refuse_write, number))
            sentence = await refused(asyncio.create_task(rig.allocator.pre_start([X])))
        assert sentence.endswith(f"cannot be written: {os.strerror(number)}.")
        assert rig.specs() == [slot_file(slot_name([X]))]
        await rig.allocator.pre_start([X])
        assert rig.env(X)["NVIDIA_VISIBLE_DEVICES"] == B


def refuse_write(number: int, source: Path, destination: Path) -> None:
    raise OSError(number, os.strerror(number), destination)


async def test_a_pod_deleted_midway_gets_nothing() -> None:
    async with slots() as rig:
        pod, dying = bound_pod("p", (ONE,)), bound_pod("p", (ONE,))
        dying.metadata.deletion_timestamp = "2030-01-01T00:00:00Z"
        rig.kubelet.hold(pod, "c0", X)
        starting = asyncio.create_task(rig.allocator.pre_start([X]))
        await asyncio.sleep(0.02)
        rig.bring(dying)
        assert "but it is being deleted" in await refused(starting)
        assert rig.specs() == []


async def test_without_a_checkpoint_the_pod_is_read_because_the_watch_may_show_its_predecessor() -> None:
    async with slots() as rig:
        rig.bring(bound_pod("p", (ONE,), phase="Running"))
        fresh = bound_pod("p", (OTHER,))
        fresh.metadata.uid = rig.store(fresh)
        rig.kubelet.recorded = None
        rig.kubelet.hold(fresh, "c0", X)
        await rig.allocator.pre_start([X])
        assert rig.env(X)["NVIDIA_VISIBLE_DEVICES"] == B


async def test_a_daemon_killed_between_the_two_calls_is_replaced_by_one_that_knows_as_much() -> None:
    async with slots() as first, slots() as second:
        pod = bound_pod("p", (ONE,))
        (named,) = (await first.allocator.allocate([X])).cdi_devices
        second.bring(pod)
        second.kubelet.hold(pod, "c0", X)
        await second.allocator.pre_start([X])
        assert named == qualified(slot_name([X]))
        assert second.env(X)["NVIDIA_VISIBLE_DEVICES"] == A


async def test_the_containers_folder_is_fresh_at_every_start() -> None:
    with tempfile.TemporaryDirectory() as hook:
        for name in ("libvgpu.so", "ld.so.preload"):
            write(Path(hook, "vgpu", name), "")
        async with slots(hook_path=hook) as rig:
            pod = bound_pod("p", (ONE,))
            rig.bring(pod)
            rig.kubelet.hold(pod, "c0", X)
            await rig.allocator.pre_start([X])
            folder = Path(hook, "vgpu", "containers", "uid-p_c0")
            (folder / "uid-p.cache").write_text("of the container's last life")
            await rig.allocator.pre_start([X])
            assert os.listdir(folder) == []
            assert {mount.container_path for mount in rig.edits(X).mounts} >= {
                "/etc/ld.so.preload",
                f"{hook}/vgpu",
                f"{hook}/vgpu/libvgpu.so",
            }


async def test_after_a_reboot_the_specs_are_written_again_and_no_folder_is_touched() -> None:
    with tempfile.TemporaryDirectory() as hook:
        for name in ("libvgpu.so", "ld.so.preload"):
            write(Path(hook, "vgpu", name), "")
        async with slots(hook_path=hook) as rig:
            pod, gone = bound_pod("p", (ONE,), phase="Running"), bound_pod("gone", (OTHER,))
            rig.kubelet.hold(pod, "c0", X)
            rig.kubelet.hold(gone, "c0", Y)
            rebuilding = asyncio.create_task(rig.allocator.rebuild())
            await asyncio.sleep(0.02)
            assert not rebuilding.done()
            rig.bring(pod)
            await rebuilding
            assert rig.specs() == [slot_file(slot_name([X]))]
            assert rig.env(X)["NVIDIA_VISIBLE_DEVICES"] == A
            assert not Path(hook, "vgpu", "containers").exists()


async def test_specs_that_nobody_holds_any_more_are_removed_after_a_while() -> None:
    async with slots() as rig:
        kept, left = bound_pod("p", (ONE,)), bound_pod("q", (OTHER,))
        rig.bring(kept, left)
        rig.kubelet.hold(kept, "c0", X)
        rig.kubelet.hold(left, "c0", Y)
        await asyncio.gather(rig.allocator.pre_start([X]), rig.allocator.pre_start([Y]))
        write(rig.directory / "nvidia.yaml", "of somebody else")
        rig.kubelet.free()
        rig.kubelet.hold(kept, "c0", X)
        await rig.allocator.collect()
        rig.clock[0] += 179
        await rig.allocator.collect()
        assert len(rig.specs()) == 3
        rig.clock[0] += 1
        await rig.allocator.collect()
        assert rig.specs() == ["nvidia.yaml", slot_file(slot_name([X]))]


@pytest.mark.parametrize("silent", ["pod-resources", "checkpoint"])
async def test_nothing_is_removed_while_a_witness_is_silent(silent: str) -> None:
    async with slots() as rig:
        pod = bound_pod("p", (ONE,))
        rig.bring(pod)
        rig.kubelet.hold(pod, "c0", X)
        await rig.allocator.pre_start([X])
        rig.kubelet.free()
        if silent == "checkpoint":
            rig.kubelet.recorded = None
        else:
            rig.kubelet.listed_now = None
        for _ in range(3):
            await rig.allocator.collect()
            rig.clock[0] += 1000
        assert rig.specs() == [slot_file(slot_name([X]))]


async def test_a_start_during_the_grace_keeps_the_spec() -> None:
    async with slots() as rig:
        pod = bound_pod("p", (ONE,))
        rig.bring(pod)
        rig.kubelet.hold(pod, "c0", X)
        await rig.allocator.pre_start([X])
        rig.kubelet.free()
        await rig.allocator.collect()
        rig.kubelet.hold(pod, "c0", X)
        await rig.allocator.pre_start([X])
        rig.kubelet.free()
        rig.clock[0] += 200
        await rig.allocator.collect()
        assert rig.specs() == [slot_file(slot_name([X]))]


async def test_kubelet_is_pointed_to_the_decided_gpus_only_when_a_single_pod_can_be_asking() -> None:
    async with slots() as rig:
        available = [f"{gpu}-{number}" for gpu in (A, B) for number in range(2)]
        assert await rig.allocator.prefer(available, [], 1) == ()
        rig.bring(bound_pod("p", (OTHER,)))
        assert await rig.allocator.prefer(available, [], 1) == (Y,)
        rig.bring(bound_pod("q", (ONE,)))
        assert await rig.allocator.prefer(available, [], 1) == ()


async def test_a_writer_that_hangs_cannot_replace_what_the_next_holder_was_given() -> None:
    async with slots() as rig:
        first, second = bound_pod("p", (ONE,)), bound_pod("q", (OTHER,))
        rig.bring(first)
        rig.kubelet.hold(first, "c0", X)
        hanging, entered = asyncio.Event(), asyncio.Event()
        loop, install = asyncio.get_running_loop(), rig.allocator._install

        def slow(slot: str, proven: ProvenSlot, *, fresh: bool) -> None:
            if proven.pod is first:
                loop.call_soon_threadsafe(entered.set)
                asyncio.run_coroutine_threadsafe(hanging.wait(), loop).result()
            install(slot, proven, fresh=fresh)

        rig.allocator._install = slow  # type: ignore[method-assign]
        late = asyncio.create_task(rig.allocator.pre_start([X]))
        await entered.wait()
        late.cancel()
        rig.kubelet.free()
        rig.bring(second)
        rig.kubelet.hold(second, "c0", X)
        next_start = asyncio.create_task(rig.allocator.pre_start([X]))
        await asyncio.sleep(0.02)
        assert not next_start.done()
        hanging.set()
        await next_start
        assert rig.env(X)["NVIDIA_VISIBLE_DEVICES"] == B
