"""What a daemon that starts while the API server is away knows of its life before."""

import asyncio
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deviceplugin.records.memory import Memory, decode_memory, encode_memory, memory_of, why_foreign
from deviceplugin.records.memory_file import MemoryFile
from deviceplugin.slim_pods import slim
from proto.annotations.keys import DEVICES_ALLOCATED, RESOURCE_COUNT
from proto.annotations.node_allocation import AllocationMode
from proto.kubernetes.objects import Container, ContainerStatus, EnvVar, Node, NodeInfo, NodeStatus, ObjectMeta, Pod
from simulation.apiserver.faults import Fault
from simulation.kubelet.device_manager import PreStartRefused
from tests.deviceplugin.daemon_rig import DaemonRig, daemon
from tests.deviceplugin.gpus import NODE, A, B, bound_pod, share
from tests.polling import until

BOOT = "b007"
BY_SLOTS = "containerd://2.4.2"


def running(name: str) -> Pod:
    pod = bound_pod(name, ((share(A),),), phase="Running")
    pod.metadata.annotations["example.com/note"] = "secret"
    pod.spec.containers = [
        Container(name="c0", image="secret/image", command=["--token=x"], env=[EnvVar(name="KEY", value="secret")])
    ]
    pod.status.container_statuses = [ContainerStatus(name="c0", container_id="containerd://1")]
    return pod


def memory(*pods: Pod, mode: AllocationMode = AllocationMode.SLOTS) -> Memory:
    told = NodeInfo(kubelet_version="v1.37.1", container_runtime_version=BY_SLOTS)
    node = Node(metadata=ObjectMeta(name=NODE), status=NodeStatus(node_info=told))
    for pod in pods:
        slim(pod, RESOURCE_COUNT, ())
    return memory_of(node, BOOT, mode, [A, B], pods)


def test_it_reads_what_it_wrote_and_keeps_no_secret_of_a_pod() -> None:
    kept = memory(running("p"), bound_pod("ended", ((share(A),),), phase="Succeeded"))
    assert decode_memory(encode_memory(kept)) == kept
    assert [pod.metadata.uid for pod in kept.pods] == ["uid-p"]
    has = kept.pods[0].metadata.annotations
    assert has[DEVICES_ALLOCATED] == running("p").metadata.annotations[DEVICES_ALLOCATED]
    assert b"secret" not in encode_memory(kept)
    assert b"token" not in encode_memory(kept)


def test_pods_that_were_served_immediately_are_not_kept() -> None:
    assert memory(running("p"), mode=AllocationMode.IMMEDIATE).pods == ()


def test_it_speaks_only_of_this_node_since_this_boot_with_gpus_of_it() -> None:
    kept = memory(running("p"))
    assert why_foreign(kept, NODE, BOOT, [A]) == ""
    assert why_foreign(kept, "other", BOOT, [A]) == f"is of node {NODE}"
    assert why_foreign(kept, NODE, "later", [A]) == "is of an earlier boot"
    assert why_foreign(msgspec.structs.replace(kept, boot=""), NODE, "", [A]) == "is of an earlier boot"
    assert why_foreign(memory(), NODE, BOOT, []) == "names none of the GPUs that the driver shows"
    moved = running("moved")
    moved.spec.node_name = "other"
    assert why_foreign(memory(moved), NODE, BOOT, [A]) == "has pods of another node (moved)"


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    file = MemoryFile(str(tmp_path))
    assert file.read() is None
    assert file.write(memory(running("p")))
    assert file.read() == memory(running("p"))
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    assert [path.name for path in file.path.parent.iterdir()] == [file.path.name]


def another_form(path: Path) -> None:
    path.write_bytes(encode_memory(msgspec.structs.replace(memory(), form=99)))


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def linked_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))
    path.parent.symlink_to("elsewhere")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def huge(path: Path) -> None:
    os.truncate(path, (16 << 20) + 1)


SPOILED: list[tuple[Callable[[Path], Any], str]] = [
    (lambda path: path.write_bytes(b"\xff\x00garbage"), "cannot be read"),
    (lambda path: path.write_bytes(b"{}"), "cannot be read"),
    (half, "cannot be read"),
    (another_form, "has form 99, this release reads 1"),
    (lambda path: path.chmod(0o666), "others may write"),
    (lambda path: path.parent.chmod(0o777), "lies in a folder that others may write"),
    (link, "cannot be read: Too many levels of symbolic links"),
    (linked_folder, "cannot be read: "),
    (pipe, "is no regular file"),
    (huge, "has 16777217 bytes"),
]


@pytest.mark.parametrize(("spoil", "problem"), SPOILED)
def test_what_only_this_daemon_can_have_written_is_used(
    tmp_path: Path, spoil: Callable[[Path], Any], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = MemoryFile(str(tmp_path))
    file.write(memory())
    spoil(file.path)
    assert file.read() is None
    assert problem in caplog.text
    assert caplog.text.strip().endswith("it is not used")


def test_a_folder_that_cannot_be_written_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    file = MemoryFile(str(tmp_path / "file"))
    assert [file.write(memory()) for _ in range(3)] == [False] * 3
    assert caplog.text.count("cannot be written") == 1


def test_two_daemons_may_write_it_at_the_same_time(tmp_path: Path) -> None:
    def written(number: int) -> set[bool]:
        return {MemoryFile(str(tmp_path)).write(memory(running(f"p{number}"))) for _ in range(100)}

    with ThreadPoolExecutor() as daemons:
        assert list(daemons.map(written, range(2))) == [{True}] * 2


def remembered(node: DaemonRig) -> set[str]:
    """The names of the pods in the file."""
    file = MemoryFile(str(node.cdi))
    found = file.read() if file.path.exists() else None
    return set() if found is None else {pod.metadata.name for pod in found.pods}


async def restarted_without_api(node: DaemonRig) -> None:
    node.server.inject(Fault(drop="before"))
    await node.kill()
    await until(lambda: node.capacity() == (40, 0))
    await node.start()


async def test_after_a_restart_during_an_outage_gpus_stay_registered_and_running_pods_start_again() -> None:
    async with daemon(runtime_version=BY_SLOTS) as node:
        uids = {name: node.bind(name, gpu) for gpu, name in enumerate(("first", "second"))}
        await node.runs(*uids)
        await until(lambda: remembered(node) == set(uids))
        await restarted_without_api(node)
        await until(lambda: node.capacity() == (40, 40))
        for gpu, uid in enumerate(uids.values()):
            made = await node.kubelet.restart_container(uid, "c0")
            assert made.env["NVIDIA_VISIBLE_DEVICES"] == node.uuid(gpu)
        assert not node.problems()
        node.server.faults.clear()
        late = node.bind("late", 2)
        await node.runs("late")
        assert node.visible(late) == node.uuid(2)
        await until(lambda: remembered(node) == {*uids, "late"})


async def test_a_pod_that_is_not_remembered_is_refused_until_the_api_server_is_back() -> None:
    async with daemon(runtime_version=BY_SLOTS) as node:
        uid = node.bind("train", 1)
        await node.runs("train")
        await until(lambda: remembered(node) == {"train"})
        file = MemoryFile(str(node.cdi))
        before = file.read()
        assert before is not None
        await node.kill()
        file.write(msgspec.structs.replace(before, pods=()))
        await restarted_without_api(node)
        await until(lambda: node.capacity() == (40, 40))
        starting = asyncio.create_task(node.kubelet.restart_container(uid, "c0"))
        with pytest.raises(
            PreStartRefused, match=r"the API server has not shown that pod on this node .*cannot be rea"
        ):
            await starting
        node.server.faults.clear()
        await until(lambda: node.said("the API server answers again"))
        made = await node.kubelet.restart_container(uid, "c0")
        assert made.env["NVIDIA_VISIBLE_DEVICES"] == node.uuid(1)


async def test_what_another_time_left_serves_nothing() -> None:
    """What else makes it useless is in `why_foreign`."""
    async with daemon(runtime_version=BY_SLOTS) as node:
        await until(MemoryFile(str(node.cdi)).path.exists)
        file = MemoryFile(str(node.cdi))
        before = file.read()
        assert before is not None
        await node.kill()
        file.write(msgspec.structs.replace(before, boot="earlier"))
        await restarted_without_api(node)
        await until(lambda: node.said("is of an earlier boot; it is not used"))
        assert node.capacity() == (40, 0)
        node.server.faults.clear()
        await until(lambda: node.capacity() == (40, 40))


async def test_an_immediate_node_stays_registered_and_refuses_whoever_it_cannot_know() -> None:
    async with daemon() as node:
        node.bind("train", 1)
        await node.runs("train")
        await until(MemoryFile(str(node.cdi)).path.exists)
        await restarted_without_api(node)
        await until(lambda: node.capacity() == (40, 40))
        node.server.faults.clear()
        node.bind("late", 2)
        await node.runs("late")
