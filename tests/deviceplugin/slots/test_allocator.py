import asyncio
import base64
import errno
import os
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import pytest

from deviceplugin.container.cdi import slot_in
from deviceplugin.container.cdi_files import CannotWriteSpec
from deviceplugin.container.edits import ContainerEdits, Mount
from deviceplugin.inventory import Inventory
from deviceplugin.plugin_calls import CannotAllocate, allocate_response
from deviceplugin.slots.files import Spec
from deviceplugin.slots.slot import SPEC_FILE, Start, named
from proto.environment import FEATURES
from proto.kubernetes.objects import ContainerStatus
from simulation.hami_core import install_placeholder
from simulation.kubelet.container import CdiError
from tests.deviceplugin.agent_rig import write
from tests.deviceplugin.gpus import A, B, a100, bound_pod, share
from tests.deviceplugin.slots.slot_rig import slots
from tests.polling import LONGEST_SECONDS, until

X, Y, Z = f"{A}-0", f"{B}-0", f"{A}-1"
ONE, OTHER, TWO = (share(A),), (share(B, 5000),), (share(A, 1000), share(B, 2000))


async def refused(started: "asyncio.Future[None] | asyncio.Task[None]") -> str:
    with pytest.raises(CannotAllocate) as error:
        await started
    return str(error.value)


async def test_allocate_answers_with_a_name_of_its_own_and_knows_nobody() -> None:
    async with slots() as rig:
        first, second = [await rig.allocator.allocate([Y, X]) for _ in range(2)]
        names = [slot_in(answer.cdi_devices) for answer in (first, second)]
        assert [first, second] == [named(name) for name in names]
        assert len(set(names)) == 2
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
        hami_core = f"{rig.directory.parent}/hook/vgpu"
        assert rig.env(X) == {
            "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"{hami_core}/uid-p.cache",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_DEVICE_SM_LIMIT": "30",
            "CUDA_DEVICE_SM_LIMIT_0": "30",
            "CUDA_DISABLE_CONTROL": "false",
            "CUDA_REDIRECT": f"{hami_core}/libvgpu.so",
            "GPU_CORE_UTILIZATION_POLICY": "default",
            "NVIDIA_VISIBLE_DEVICES": A,
            **FEATURES,
        }
        assert (rig.env(Z)["NVIDIA_VISIBLE_DEVICES"], rig.env(Z)["CUDA_DEVICE_MEMORY_LIMIT_0"]) == (B, "5000m")
        assert rig.server.requests == []


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
        assert rig.defined() == ["slot1", "slot2"]


async def test_slots_that_are_asked_for_at_once_share_a_write() -> None:
    async with slots() as rig:
        pods = [bound_pod(f"p{n}", ((share((A, B)[n % 2], 100 + n, 1),),)) for n in range(6)]
        rig.bring(*pods)
        for n, pod in enumerate(pods):
            rig.kubelet.hold(pod, "c0", f"{A}-{n}")
        await asyncio.gather(*(rig.allocator.pre_start([f"{A}-{n}"]) for n in range(6)))
        assert len(rig.defined()) == 6
        assert rig.files.writes < 6
        assert [rig.env(f"{A}-{n}")["CUDA_DEVICE_MEMORY_LIMIT_0"] for n in range(6)] == [
            f"{100 + n}m" for n in range(6)
        ]


async def test_a_proof_that_comes_late_is_waited_for() -> None:
    async with slots() as rig:
        pod = bound_pod("p", (ONE,))
        starting = asyncio.create_task(rig.allocator.pre_start([X]))
        await until(lambda: rig.kubelet.asked > 0)
        rig.kubelet.hold(pod, "c0", X, init=True)
        asked = rig.kubelet.asked
        await until(lambda: rig.kubelet.asked > asked)
        rig.bring(pod)
        await starting
        assert rig.env(X)["NVIDIA_VISIBLE_DEVICES"] == A


async def test_without_a_proof_the_call_fails_in_time_and_says_what_was_seen() -> None:
    async with slots(pre_start_seconds=0.1) as rig:
        rig.bring(bound_pod("p", (ONE,)))
        rig.kubelet.listed_now = None
        assert await refused(asyncio.create_task(rig.allocator.pre_start([X]))) == (
            f"kubelet asks for the container with exactly the 1 device {X}: pod-resources does not answer (connection "
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


async def test_an_init_container_and_its_heir_have_a_slot_each_with_their_own_gpus_and_limits() -> None:
    async with slots() as rig:
        pod = bound_pod("p", ((share(A, 9000, 10),), (share(B, 3000, 30),)), init=1)
        rig.bring(pod)
        rig.kubelet.hold(pod, "c0", X, init=True)
        rig.kubelet.hold(pod, "c1", X)
        await rig.allocator.pre_start([X])
        seen = [rig.env(X, container=name) for name in ("c0", "c1")]
        assert [(env["NVIDIA_VISIBLE_DEVICES"], env["CUDA_DEVICE_MEMORY_LIMIT_0"]) for env in seen] == [
            (A, "9000m"),
            (B, "3000m"),
        ]


async def test_the_runtime_gives_the_reason_why_an_init_container_cannot_start_again() -> None:
    async with slots() as rig:
        lost = Inventory(devices=(a100(A, 0, healthy=False), a100(B, 1)), problems={A: "GPU is lost"})
        rig.gpus.inventory = lost
        pod = bound_pod("p", (ONE, OTHER), init=1, phase="Running")
        rig.bring(pod)
        rig.kubelet.hold(pod, "c0", X, init=True)
        rig.kubelet.hold(pod, "c1", X)
        await rig.allocator.pre_start([X])
        with pytest.raises(CdiError, match=f'"/pod default/p, container c0: {A} is unhealthy: GPU is lost"'):
            rig.created("c0", X)
        assert rig.created("c1", X).env["NVIDIA_VISIBLE_DEVICES"] == B


async def test_a_container_that_was_served_without_a_slot_needs_none() -> None:
    async with slots() as rig:
        pod = bound_pod("p", (ONE,))
        rig.bring(pod)
        rig.kubelet.hold(pod, "c0", X)
        rig.kubelet.recorded = [msgspec.structs.replace(one, answer="") for one in rig.kubelet.recorded or ()]
        await rig.allocator.pre_start([X])
        assert rig.defined() == []


async def test_a_folder_that_cannot_be_written_is_named_and_written_as_soon_as_it_can() -> None:
    async with slots() as rig:
        pod = bound_pod("p", (ONE,))
        rig.bring(pod)
        rig.kubelet.hold(pod, "c0", X)
        rig.directory.write_text("a file where the folder should be")
        sentence = await refused(asyncio.create_task(rig.allocator.pre_start([X])))
        assert sentence.startswith(f"pod default/p: {rig.directory}/{SPEC_FILE} cannot be written: ")
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
        rig.kubelet.hold(second, "c0", Y)
        with monkeypatch.context() as disk:
            disk.setattr(os, "replace", partial(refuse_write, number))
            sentence = await refused(asyncio.create_task(rig.allocator.pre_start([Y])))
        assert sentence.endswith(f"cannot be written: {os.strerror(number)}.")
        assert (rig.specs(), rig.defined()) == ([SPEC_FILE], ["slot1"])
        await rig.allocator.pre_start([Y])
        assert rig.env(Y)["NVIDIA_VISIBLE_DEVICES"] == B


def refuse_write(number: int, source: Path, destination: Path) -> None:
    raise OSError(number, os.strerror(number), destination)


async def test_a_spec_that_cannot_be_written_is_not_in_the_way_of_other_containers() -> None:
    async with slots() as rig:
        odd = Mount(container_path="/lib/a", host_path=os.fsdecode(b"/lib/\xff"), read_only=True)
        spec = rig.files.spec("odd", ContainerEdits(env={}, mounts=(odd,)))
        start = Start(pod_uid="uid-p", container="c0", known_id="", since=rig.clock[0])
        with pytest.raises(CannotWriteSpec, match=r"cannot be written: the name '/lib/.udcff' is not text"):
            await rig.allocator.specs.put({"odd": spec}, {"odd": start})
        pod = bound_pod("p", (ONE,))
        rig.bring(pod)
        rig.kubelet.hold(pod, "c0", X)
        await rig.allocator.pre_start([X])
        assert rig.defined() == ["slot1"]


async def test_an_answer_of_another_daemon_needs_the_files_that_it_names() -> None:
    """HAMi's, or ours when it allocated immediately: kubelet uses it as long as the pod lives."""
    async with slots() as rig:
        hami_core = rig.directory.parent / "hook/vgpu"
        library, preload = (hami_core / "libvgpu.so").resolve(), hami_core / "ld.so.preload"
        mounts = {hami_core / "libvgpu.so": library, Path("/etc/ld.so.preload"): preload}
        answer = ContainerEdits(
            env={"NVIDIA_VISIBLE_DEVICES": A},
            mounts=tuple(
                Mount(container_path=str(place), host_path=str(file), read_only=True) for place, file in mounts.items()
            ),
        )
        pod = bound_pod("p", (ONE,))
        rig.bring(pod)
        rig.kubelet.hold(pod, "c0", X)
        text = base64.b64encode(allocate_response(answer).SerializeToString()).decode()
        rig.kubelet.recorded = [msgspec.structs.replace(each, answer=text) for each in rig.kubelet.recorded or ()]
        await rig.allocator.pre_start([X])
        library.rename(library.with_name("elsewhere"))
        sentence = await refused(asyncio.create_task(rig.allocator.pre_start([X])))
        assert f"because {library} cannot be read: No such file or directory; install HAMi-core again" in sentence


async def test_what_all_slots_have_in_common_is_that_of_the_last_start() -> None:
    """A file of the driver may have gone since the others began, and no container starts with it."""

    def common() -> list[dict[str, object]]:
        mounts: list[dict[str, object]] = msgspec.json.decode((rig.directory / SPEC_FILE).read_bytes())[
            "containerEdits"
        ]["mounts"]
        return mounts

    def spec(slot: str, *names: str) -> Spec:
        mounts = tuple(Mount(container_path=name, host_path=name, read_only=True) for name in names)
        return rig.files.spec(slot, ContainerEdits(env={"OWN": slot}, driver_mounts=mounts))

    async with slots() as rig:
        start = Start(pod_uid="uid-p", container="c0", known_id="", since=rig.clock[0])
        specs = rig.allocator.specs
        await specs.put({"one": spec("one", "/lib/a", "/run/socket")}, {"one": start})
        await specs.put({"two": spec("two", "/lib/a", "/run/socket")}, {"two": start})
        await specs.put({"one": spec("one", "/lib/a")}, {"one": start})
        assert [mount["hostPath"] for mount in common()] == ["/lib/a"]
        assert rig.defined() == ["one", "two"]


async def test_a_pod_deleted_midway_gets_nothing() -> None:
    async with slots() as rig:
        pod, dying = bound_pod("p", (ONE,)), bound_pod("p", (ONE,))
        dying.metadata.deletion_timestamp = "2030-01-01T00:00:00Z"
        rig.kubelet.hold(pod, "c0", X)
        starting = asyncio.create_task(rig.allocator.pre_start([X]))
        await until(lambda: rig.kubelet.asked > 0)
        rig.bring(dying)
        assert "but it is being deleted" in await refused(starting)
        assert rig.specs() == []


async def test_without_a_checkpoint_the_pod_is_read_because_the_watch_may_show_its_predecessor() -> None:
    async with slots() as rig:
        rig.bring(bound_pod("p", (ONE,), phase="Running"))
        fresh = bound_pod("p", (OTHER,))
        fresh.metadata.uid = rig.store(fresh)
        rig.kubelet.recorded = None
        slot = slot_in((await rig.allocator.allocate([X])).cdi_devices)
        rig.kubelet.hold(fresh, "c0", X)
        await rig.allocator.pre_start([X])
        assert f"NVIDIA_VISIBLE_DEVICES={B}" in rig.edits_of(slot).env


async def test_without_a_checkpoint_a_slot_that_another_process_named_is_refused() -> None:
    async with slots(pre_start_seconds=0.1) as rig:
        pod = bound_pod("p", (ONE,))
        pod.metadata.uid = rig.store(pod)
        rig.kubelet.recorded = None
        rig.kubelet.hold(pod, "c0", X)
        sentence = await refused(asyncio.create_task(rig.allocator.pre_start([X])))
        assert sentence.endswith("holds them; kubelet's checkpoint, which names its slot, cannot be read")
        assert rig.defined() == []


async def test_a_daemon_killed_between_the_two_calls_is_replaced_by_one_that_knows_as_much() -> None:
    async with slots() as first, slots() as second:
        pod = bound_pod("p", (ONE,))
        slot = slot_in((await first.allocator.allocate([X])).cdi_devices)
        second.bring(pod)
        second.kubelet.hold(pod, "c0", X, slot=slot)
        await second.allocator.pre_start([X])
        assert f"NVIDIA_VISIBLE_DEVICES={A}" in second.edits_of(slot).env


async def test_the_containers_folder_is_fresh_at_every_start() -> None:
    with tempfile.TemporaryDirectory() as hami_core:
        install_placeholder(Path(hami_core))
        async with slots(hook_path=hami_core) as rig:
            pod = bound_pod("p", (ONE,))
            rig.bring(pod)
            rig.kubelet.hold(pod, "c0", X)
            await rig.allocator.pre_start([X])
            folder = Path(hami_core, "vgpu", "containers", "uid-p_c0")
            (folder / "uid-p.cache").write_text("of the container's last life")
            await rig.allocator.pre_start([X])
            assert os.listdir(folder) == []
            assert {mount.container_path for mount in rig.edits(X).mounts} >= {
                "/etc/ld.so.preload",
                f"{hami_core}/vgpu",
                f"{hami_core}/vgpu/libvgpu.so",
            }


async def test_the_spec_that_an_earlier_life_left_goes_before_anything_is_written() -> None:
    async with slots() as rig:
        for name in ("nvidia.yaml", SPEC_FILE):
            write(rig.directory / name, "{}")
        running = asyncio.create_task(rig.allocator.run())
        await until(lambda: rig.specs() == ["nvidia.yaml"])
        running.cancel()
        pod = bound_pod("p", (ONE,))
        rig.bring(pod)
        rig.kubelet.hold(pod, "c0", X)
        await rig.allocator.pre_start([X])
        assert rig.specs() == ["nvidia.yaml", SPEC_FILE]


async def test_a_spec_goes_when_its_container_has_been_created_and_with_the_last_the_file() -> None:
    async with slots() as rig:
        made, slow = bound_pod("p", (ONE,)), bound_pod("q", (OTHER,))
        rig.bring(made, slow)
        rig.kubelet.hold(made, "c0", X)
        rig.kubelet.hold(slow, "c0", Y)
        await asyncio.gather(rig.allocator.pre_start([X]), rig.allocator.pre_start([Y]))
        write(rig.directory / "nvidia.yaml", "of somebody else")
        created = bound_pod("p", (ONE,), phase="Running")
        created.status.container_statuses = [ContainerStatus(name="c0", container_id="containerd://1")]
        rig.bring(created)
        rig.clock[0] += 2
        await rig.allocator.specs.collect()
        assert rig.defined() == ["slot2"]
        rig.clock[0] += 148
        await rig.allocator.specs.collect()
        assert rig.specs() == ["nvidia.yaml"]


async def test_a_container_that_starts_again_has_its_spec_again_under_the_same_name() -> None:
    async with slots() as rig:
        pod = bound_pod("p", (ONE,))
        rig.bring(pod)
        rig.kubelet.hold(pod, "c0", X)
        for _ in range(2):
            await rig.allocator.pre_start([X])
            assert rig.defined() == ["slot1"]
            rig.clock[0] += 200
            await rig.allocator.specs.collect()
            assert rig.defined() == []


async def test_kubelet_is_pointed_to_the_gpus_decided_for_the_pod_whose_turn_it_is() -> None:
    async with slots() as rig:
        available = [f"{gpu}-{number}" for gpu in (A, B) for number in range(2)]
        first, second = bound_pod("q", (OTHER,)), bound_pod("p", (ONE,))
        rig.bring(first, second)
        assert await rig.allocator.prefer(available, [], 1) == (Y,)
        rig.kubelet.hold(first, "c0", Y)
        assert await rig.allocator.prefer(available, [], 1) == (X,)
        rig.kubelet.hold(second, "c0", X)
        assert await rig.allocator.prefer(available, [], 1) == ()


async def test_a_pod_that_kubelet_has_heard_of_first_is_waited_for() -> None:
    async with slots() as rig:
        preferring = asyncio.create_task(rig.allocator.prefer([X, Y], [], 1))
        await asyncio.sleep(0)
        rig.bring(bound_pod("q", (OTHER,)))
        assert await preferring == (Y,)


async def test_a_thread_that_hangs_cannot_empty_the_folder_of_a_container_started_meanwhile() -> None:
    async with slots() as rig:
        pod = bound_pod("p", (ONE,))
        rig.bring(pod)
        rig.kubelet.hold(pod, "c0", X)
        hanging, entered = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def slow() -> None:
            if not hanging.is_set():
                loop.call_soon_threadsafe(entered.set)
                asyncio.run_coroutine_threadsafe(hanging.wait(), loop).result()

        rig.files.before_spec = slow
        late = asyncio.create_task(rig.allocator.pre_start([X]))
        await entered.wait()
        late.cancel()
        next_start = asyncio.create_task(rig.allocator.pre_start([X]))
        # For as long as a whole start takes where nothing hangs.
        async with slots() as other:
            other.bring(pod)
            other.kubelet.hold(pod, "c0", X)
            await other.allocator.pre_start([X])
        assert not next_start.done()
        hanging.set()
        await next_start
        assert rig.env(X)["NVIDIA_VISIBLE_DEVICES"] == A


async def test_a_disk_that_hangs_leaves_threads_to_all_others() -> None:
    async with slots() as rig:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(5))
        ids = [f"{gpu}-{number}" for gpu in (A, B) for number in range(3)]
        pods = [bound_pod(f"p{each}", ((share(A if each.startswith(A) else B, 100, 1),),)) for each in ids]
        rig.bring(*pods)
        for pod, each in zip(pods, ids, strict=True):
            rig.kubelet.hold(pod, "c0", each)
        hangs, entered = threading.Event(), list[int]()

        def slow() -> None:
            entered.append(1)
            hangs.wait()

        rig.files.before_spec = slow
        starts = [asyncio.create_task(rig.allocator.pre_start([each])) for each in ids]
        try:
            await until(lambda: len(entered) >= 3)
            async with asyncio.timeout(LONGEST_SECONDS):
                assert await asyncio.to_thread(lambda: "name resolved") == "name resolved"
        finally:
            hangs.set()
        await asyncio.gather(*starts)
