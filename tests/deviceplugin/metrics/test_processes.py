import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deviceplugin.metrics.sampling import has_ended, owners_of, use_host_proc
from deviceplugin.usage.cgroups import CgroupOwner

UID = "2f7b1a5e-93c4-4d0e-8a61-0c5d9e7f1b23"
ID = "9c1e" * 16


@pytest.fixture
def proc(tmp_path: Path) -> Iterator[Path]:
    """A /proc of our own, mounted elsewhere; the real one's times and boot are kept."""
    (tmp_path / "stat").write_text(Path("/proc/stat").read_text())
    before = psutil.PROCFS_PATH
    use_host_proc(str(tmp_path))
    yield tmp_path
    use_host_proc(before)


def process(proc: Path, pid: int, cgroup: str, state: str = "S", name: str = "python (x)") -> None:
    folder = proc / str(pid)
    folder.mkdir()
    fields = ["1", "1", "1", "0", "-1", *["0"] * 13, "4711", *["0"] * 30]
    (folder / "stat").write_text(f"{pid} ({name}) {state} {' '.join(fields)}\n")
    (folder / "status").write_text(f"Name:\tpython\nState:\t{state}\nTgid:\t{pid}\nPid:\t{pid}\n")
    (folder / "cgroup").write_text(cgroup)


def test_processes_of_pods_are_found_below_the_hosts_proc(proc: Path) -> None:
    process(proc, 4_000_001, f"0::/kubepods/pod{UID}/{ID}\n")
    process(proc, 4_000_002, "0::/system.slice/x.service\n")
    process(proc, 4_000_003, f"0::/kubepods/pod{UID}/{ID}\n", state="Z")
    assert owners_of([4_000_001, 4_000_002, 4_000_003, 4_000_004]) == {4_000_001: CgroupOwner(UID, ID)}


def test_a_process_has_ended_once_the_host_has_none_or_a_zombie_with_its_pid(proc: Path) -> None:
    process(proc, 4_000_001, "", name="a) Z (b")
    process(proc, 4_000_002, "", state="Z")
    pids = [4_000_001, 4_000_002, 4_000_003]
    assert [has_ended(pid) for pid in pids] == [False, False, False]  # the host's processes are not seen
    (proc / "2").mkdir()
    (proc / "2" / "comm").write_text("kthreadd\n")
    assert [has_ended(pid) for pid in pids] == [False, True, True]


def test_a_pid_that_passed_to_another_process_meanwhile_proves_nothing(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process(proc, 4_000_001, f"0::/kubepods/pod{UID}/{ID}\n")
    monkeypatch.setattr(psutil.Process, "is_running", lambda self: False)
    assert owners_of([4_000_001]) == {}


def test_this_process_can_be_looked_at() -> None:
    assert set(owners_of([os.getpid()])) <= {os.getpid()}
