"""The loop over regions that real processes have mapped, and that tenants attack."""

import asyncio
import os
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Event

import pytest

from deviceplugin.apiserver import OwnNode
from deviceplugin.changes import Changes
from deviceplugin.feedback import FeedbackLoop
from deviceplugin.feedback import tasks_of as tasks_of_pod
from deviceplugin.settings import Feedback
from deviceplugin.usage.feedback import GpuTasks, Who
from proto.kubernetes.client import ApiServer
from proto.kubernetes.objects import Pod
from tests.deviceplugin.agent_rig import running
from tests.deviceplugin.gpus import NODE, A, bound_pod, share
from tests.deviceplugin.regions import V1_BYTES, v1
from tests.polling import until

PRIORITY = "nvidia.com/priority"
NOW = 1_000_000.0
SWITCHES = 2_008_900

TENANT = """
import mmap, struct, sys
path, at = sys.argv[1], int(sys.argv[2])
with open(path, "r+b") as file:
    region = mmap.mmap(file.fileno(), 0)
print("mapped", flush=True)
for line in sys.stdin:
    if line.startswith("launch"):
        region[at + 4 : at + 8] = struct.pack("<i", 2)
    print(*struct.unpack_from("<ii", region, at), flush=True)
"""
"""What HAMi-core does with its region, in a process of its own: it maps it, and sets `recent_kernel` at a launch."""


def tasks_of(pods: Iterable[Pod], resource_priority: str) -> Mapping[Who, GpuTasks]:
    return {who: each for pod in pods for who, each in tasks_of_pod(pod, resource_priority).items()}


class Tenant:
    def __init__(self, file: Path) -> None:
        words = [sys.executable, "-c", TENANT, str(file), str(SWITCHES)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._line() == "mapped"

    def sees(self, *, launching: bool = False) -> tuple[int, int]:
        """`utilization_switch` and `recent_kernel`."""
        assert self._process.stdin is not None
        self._process.stdin.write("launch\n" if launching else "look\n")
        self._process.stdin.flush()
        switch, recent = map(int, self._line().split())
        return switch, recent

    def end(self) -> None:
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture
def containers(tmp_path: Path) -> Path:
    folder = tmp_path / "vgpu/containers"
    folder.mkdir(parents=True)
    return folder


def asking(name: str, priority: str | None) -> Pod:
    pod = bound_pod(name, ((share(A),),), phase="Running")
    pod.metadata.uid = f"{name}f7b1a5e-93c4-4d0e-8a61-0c5d9e7f1b23"
    if priority is not None:
        pod.spec.containers[0].resources.limits[PRIORITY] = priority
    return pod


HIGH, LOW = asking("a", "0"), asking("b", None)


def region(containers: Path, pod: Pod, content: bytes | bytearray) -> Path:
    folder = containers / f"{pod.metadata.uid}_c0"
    folder.mkdir()
    (folder / f"{pod.metadata.uid}.cache").write_bytes(content)
    return folder / f"{pod.metadata.uid}.cache"


class NoApiServer(ApiServer):
    def __init__(self) -> None:
        """Nothing is asked of it."""


def loop(root: Path, feedback: Feedback) -> FeedbackLoop:
    own = OwnNode(NoApiServer(), NODE, Changes(), seen=lambda _: None)
    return FeedbackLoop(own, str(root), feedback, PRIORITY, now=lambda: NOW, announce=lambda *_: None)


@pytest.fixture
def tenants(containers: Path) -> Iterator[dict[str, Tenant]]:
    made = {"high": Tenant(region(containers, HIGH, v1([A], []))), "low": Tenant(region(containers, LOW, v1([A], [])))}
    yield made
    for each in made.values():
        each.end()


def test_a_process_waits_while_another_computes_and_goes_on_after_it(
    tmp_path: Path, tenants: dict[str, Tenant]
) -> None:
    high, low = tenants["high"], tenants["low"]
    going, tasks = loop(tmp_path, Feedback.PRIORITY), tasks_of((HIGH, LOW), PRIORITY)
    high.sees(launching=True)
    going.go(tasks)
    assert (high.sees(), low.sees()) == ((1, 1), (1, -1))
    assert going.waiting == {(LOW.metadata.uid, "c0")}
    high.sees(launching=True)
    going.go(tasks)
    assert low.sees() == (1, -1)
    going.go(tasks)
    going.go(tasks)
    assert (high.sees(), low.sees(), going.waiting) == ((1, 0), (1, 0), frozenset())


async def test_a_disk_that_hangs_keeps_no_daemon_from_ending(tmp_path: Path) -> None:
    gate = Event()

    class Hangs(FeedbackLoop):
        def end(self, tasks: Mapping[Who, GpuTasks]) -> None:
            gate.wait()

    own = OwnNode(NoApiServer(), NODE, Changes(), seen=lambda _: None)
    going = Hangs(
        *(own, str(tmp_path), Feedback.PRIORITY, PRIORITY), now=lambda: NOW, announce=lambda *_: None, end_seconds=0.01
    )
    running = asyncio.create_task(going.run())
    await asyncio.sleep(0)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.wait_for(running, 30)
    assert not gate.is_set()
    gate.set()


def test_no_process_waits_for_a_daemon_that_ends(tmp_path: Path, tenants: dict[str, Tenant]) -> None:
    going, tasks = loop(tmp_path, Feedback.PRIORITY), tasks_of((HIGH, LOW), PRIORITY)
    tenants["high"].sees(launching=True)
    going.go(tasks)
    going.end(tasks)
    assert tenants["low"].sees() == (1, 0)
    tenants["high"].sees(launching=True)
    going.go(tasks)
    assert tenants["low"].sees() == (1, 0), "a round that was about to begin"


@pytest.mark.parametrize("feedback", [Feedback.OFF, Feedback.PRIORITY])
def test_what_a_daemon_that_was_killed_or_hamis_monitor_told_stands_no_longer(
    tmp_path: Path, containers: Path, feedback: Feedback
) -> None:
    content = v1([A], [])
    struct.pack_into("<ii", content, SWITCHES, 0, -1)
    tenant = Tenant(region(containers, LOW, content))
    loop(tmp_path, feedback).go(tasks_of([LOW], PRIORITY))
    assert tenant.sees() == (1, 0)
    tenant.end()


def test_priorities_and_gpus_are_the_pods_and_not_what_the_file_says(
    tmp_path: Path, containers: Path, tenants: dict[str, Tenant]
) -> None:
    claims = v1(["GPU-of-another"], [])
    struct.pack_into("<i", claims, 2_008_908, 0)
    liar = asking("c", "5")
    tenant = Tenant(region(containers, liar, claims))
    tenants["high"].sees(launching=True)
    loop(tmp_path, Feedback.PRIORITY).go(tasks_of((HIGH, LOW, liar), PRIORITY))
    assert tenant.sees() == (1, -1)
    tenant.end()


def attack(kind: str, file: Path, secret: Path) -> None:
    """A process that can write the folder can do that; `secret` is not in it."""
    file.unlink()
    match kind:
        case "link":
            file.symlink_to(secret)
        case "other name":
            os.link(secret, file)
        case "pipe":
            os.mkfifo(file)
        case "folder":
            file.mkdir()
        case "folder is a link":
            file.parent.rmdir()
            file.parent.symlink_to(secret.parent)
        case "empty":
            file.write_bytes(b"")
        case "huge":
            with file.open("wb") as sparse:
                sparse.truncate(1 << 40)
        case "no switches":
            content = v1([A], [])
            struct.pack_into("<ii", content, SWITCHES, 77, -9)
            file.write_bytes(content)
        case "two":
            file.with_name("x.cache").write_bytes(v1([A], []))
            file.with_name("y.cache").write_bytes(v1([A], []))


KINDS = ("link", "other name", "pipe", "folder", "folder is a link", "empty", "huge", "no switches", "two")


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_tenant_puts_in_place_of_its_region_is_not_written_to_and_disturbs_no_other(
    tmp_path: Path, containers: Path, tenants: dict[str, Tenant], kind: str
) -> None:
    secret = tmp_path / "of the host" / "secret.cache"
    secret.parent.mkdir()
    secret.write_bytes(v1([A], []))
    before = secret.read_bytes()
    attacker = asking("c", "5")
    attack(kind, region(containers, attacker, b""), secret)
    going, tasks = loop(tmp_path, Feedback.PRIORITY), tasks_of((HIGH, LOW, attacker), PRIORITY)
    tenants["high"].sees(launching=True)
    going.go(tasks)
    assert tenants["low"].sees() == (1, -1)
    going.end(tasks)
    assert tenants["low"].sees() == (1, 0)
    assert secret.read_bytes() == before


def test_a_task_that_was_told_to_wait_while_its_region_could_not_be_read_waits_no_longer_than_that(
    tmp_path: Path, containers: Path, tenants: dict[str, Tenant]
) -> None:
    """Meanwhile the pod it waits for ends, so nothing but the region itself says that it waits."""
    going, low = loop(tmp_path, Feedback.PRIORITY), tenants["low"]
    tenants["high"].sees(launching=True)
    going.go(tasks_of((HIGH, LOW), PRIORITY))
    assert low.sees() == (1, -1)
    other = containers / f"{LOW.metadata.uid}_c0" / "other.cache"
    other.touch()
    going.go(tasks_of((HIGH, LOW), PRIORITY))
    going.go(tasks_of((LOW,), PRIORITY))
    assert low.sees() == (1, -1)
    other.unlink()
    going.go(tasks_of((LOW,), PRIORITY))
    assert low.sees() == (1, 0)


def test_a_write_that_does_not_reach_the_region_is_made_again(
    tmp_path: Path, containers: Path, tenants: dict[str, Tenant]
) -> None:
    going, low = loop(tmp_path, Feedback.PRIORITY), tenants["low"]
    tenants["high"].sees(launching=True)
    going.go(tasks_of((HIGH, LOW), PRIORITY))
    region = next((containers / f"{LOW.metadata.uid}_c0").iterdir())
    link = region.with_name("link")
    os.link(region, link)
    going.go(tasks_of((LOW,), PRIORITY))
    assert low.sees() == (1, -1)
    link.unlink()
    going.go(tasks_of((LOW,), PRIORITY))
    assert low.sees() == (1, 0)


def test_a_tenant_does_not_fill_the_log_with_a_region_that_comes_and_goes(
    tmp_path: Path, containers: Path, tenants: dict[str, Tenant], caplog: pytest.LogCaptureFixture
) -> None:
    going = loop(tmp_path, Feedback.PRIORITY)
    other = containers / f"{LOW.metadata.uid}_c0" / "other.cache"
    for _ in range(5):
        other.touch()
        going.go(tasks_of((HIGH, LOW), PRIORITY))
        other.unlink()
        going.go(tasks_of((HIGH, LOW), PRIORITY))
    assert len(caplog.records) == 1


@pytest.mark.parametrize("feedback", list(Feedback))
@pytest.mark.parametrize("is_link", [True, False])
def test_a_folder_that_cannot_be_opened_ends_no_daemon_and_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, feedback: Feedback, is_link: bool
) -> None:
    folder = tmp_path / "vgpu/containers"
    folder.parent.mkdir()
    if is_link:
        (tmp_path / "disk").mkdir()
        folder.symlink_to(tmp_path / "disk")
    else:
        folder.touch()
    going, tasks = loop(tmp_path, feedback), tasks_of((HIGH, LOW), PRIORITY)
    going.go(tasks)
    going.go(tasks)
    going.end(tasks)
    assert [f"{folder} cannot be" in record.getMessage() for record in caplog.records] == [True]


CUTTING = """
import os, sys
path, whole = sys.argv[1], open(sys.argv[1], "rb").read()
print("begun", flush=True)
while True:
    os.truncate(path, 0)
    with open(path, "r+b") as file:
        file.write(whole)
"""


def test_a_region_that_is_cut_while_it_is_read_and_written_ends_nothing(
    tmp_path: Path, containers: Path, tenants: dict[str, Tenant]
) -> None:
    """Mapped, it would end the daemon by SIGBUS."""
    attacker = asking("c", "5")
    file = region(containers, attacker, v1([A], []))
    going, tasks = loop(tmp_path, Feedback.PRIORITY), tasks_of((HIGH, LOW, attacker), PRIORITY)
    with subprocess.Popen([sys.executable, "-c", CUTTING, str(file)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(300):
            tenants["high"].sees(launching=True)
            going.go(tasks)
            assert tenants["low"].sees() == (1, -1)
        process.kill()
    assert file.stat().st_size <= V1_BYTES


async def test_a_pod_is_told_that_its_priority_means_nothing_where_no_task_is_told_to_wait() -> None:
    limits = {PRIORITY: "0"}
    spec = {"nodeName": NODE, "containers": [{"name": "c0", "image": "i", "resources": {"limits": limits}}]}
    metadata = {"name": "first", "annotations": dict(HIGH.metadata.annotations)}
    async with running() as rig:
        rig.server.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        await until(lambda: "PriorityIgnored" in {event["reason"] for event in rig.server.store.objects("events")})
