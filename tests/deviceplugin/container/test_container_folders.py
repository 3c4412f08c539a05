"""The folders that containers write to, after tenants have written what they like."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from deviceplugin.container.container_folders import KEPT_SECONDS, FolderQuota, FolderSweep, make_fresh

UID = "0d4f0000-0000-0000-0000-000000000000"
OTHER = "77aa0000-0000-0000-0000-000000000000"
QUOTA = FolderQuota(files=8, mib=4)
MIB = 1 << 20


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    folder = tmp_path / "containers"
    folder.mkdir()
    return folder


@pytest.fixture
def sweep(parent: Path) -> FolderSweep:
    return FolderSweep([str(parent)], QUOTA)


def folder_of(parent: Path, uid: str) -> Path:
    folder = parent / f"{uid}_main"
    make_fresh(str(folder))
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_parent_is_closed_when_a_folder_is_made_and_by_each_sweep(parent: Path, sweep: FolderSweep) -> None:
    for close in (lambda: folder_of(parent, UID), lambda: sweep.sweep(None, 0.0)):
        parent.chmod(0o755)
        close()
        assert parent.stat().st_mode & 0o7777 == 0o700
    assert (parent / f"{UID}_main").stat().st_mode & 0o7777 == 0o777


def test_folders_of_pods_long_gone_are_removed_and_nothing_they_point_at(
    parent: Path, sweep: FolderSweep, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    folder_of(parent, UID)
    gone = folder_of(parent, OTHER)
    (gone / "out").symlink_to(precious)
    (parent / "kept").mkdir()
    sweep.sweep({UID}, 0.0)
    sweep.sweep({UID}, KEPT_SECONDS - 1)
    assert gone.exists()
    sweep.sweep({UID}, KEPT_SECONDS)
    assert names(parent) == [f"{UID}_main", "kept"]
    assert (precious / "file").exists()


def test_a_pod_that_is_known_again_is_kept_for_the_whole_time(parent: Path, sweep: FolderSweep) -> None:
    folder = folder_of(parent, UID)
    sweep.sweep((), 0.0)
    sweep.sweep({UID}, 100.0)
    sweep.sweep((), KEPT_SECONDS)
    assert folder.exists()
    sweep.sweep((), 2 * KEPT_SECONDS)
    assert not folder.exists()


def test_what_was_put_aside_is_removed_a_bounded_number_of_entries_at_a_time(
    parent: Path, sweep: FolderSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deviceplugin.container.container_folders._MOST_STEPS", 10)
    folder = folder_of(parent, UID)
    for number in range(25):
        (folder / str(number)).touch()
    folder_of(parent, UID)
    left = []
    while len(names(parent)) > 1:
        sweep.sweep({UID}, 0.0)
        left.append(sum(path.is_file() for path in parent.rglob("*")))
    assert left == [15, 5, 0]


def test_within_its_quota_a_container_is_left_alone(parent: Path, sweep: FolderSweep) -> None:
    folder = folder_of(parent, UID)
    for number in range(7):
        (folder / str(number)).touch()
    (folder / f"{UID}.cache").write_bytes(bytes(3 * MIB))
    sweep.sweep({UID}, 0.0)
    assert len(names(folder)) == 8
    assert (folder / f"{UID}.cache").stat().st_size == 3 * MIB


def pipes(folder: Path) -> None:
    for _ in range(100):
        os.mkfifo(folder / uuid4().hex)


def links(folder: Path) -> None:
    for _ in range(100):
        (folder / uuid4().hex).symlink_to("/etc/passwd")


@pytest.mark.parametrize(
    "attack",
    [
        lambda folder: [(folder / f"{number}").touch() for number in range(1000)],
        lambda folder: [(folder / f"{number}").write_bytes(bytes(MIB)) for number in range(20)],
        lambda folder: (folder / "a/b/c/d").mkdir(parents=True, exist_ok=True),
        lambda folder: [(folder / f"{number}.cache").write_bytes(bytes(MIB)) for number in range(20)],
        pipes,
        links,
    ],
    ids=["files", "bytes", "folders", "regions", "pipes", "links"],
)
def test_what_is_beyond_the_quota_is_removed_and_told_once(
    attack: Callable[[Path], object], parent: Path, sweep: FolderSweep, caplog: pytest.LogCaptureFixture
) -> None:
    folder = folder_of(parent, UID)
    (folder / "libvgpu.so").touch()  # a mount: removed on the host it would go in the container
    (folder / f"{UID}.cache").write_bytes(bytes(MIB))
    attack(folder)
    sweep.sweep({UID}, 0.0)
    left = [path for path in folder.iterdir() if path.name != "libvgpu.so"]
    assert len(left) <= QUOTA.files
    assert sum(path.lstat().st_blocks for path in left) * 512 <= QUOTA.mib * MIB
    assert not [path for path in left if path.is_dir()]
    assert {"libvgpu.so", f"{UID}.cache"} <= set(names(folder))
    attack(folder)
    sweep.sweep({UID}, 10.0)
    assert caplog.text.count("held more than its container may leave there") == 1


def test_a_region_that_grows_is_cut_and_stays(parent: Path, sweep: FolderSweep) -> None:
    region = folder_of(parent, UID) / f"{UID}.cache"
    region.write_bytes(bytes(20 * MIB))
    sweep.sweep({UID}, 0.0)
    assert region.stat().st_size == QUOTA.mib * MIB


def test_a_link_in_place_of_the_region_is_not_cut(parent: Path, sweep: FolderSweep, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(bytes(20 * MIB))
    folder = folder_of(parent, UID)
    (folder / f"{UID}.cache").symlink_to(precious)
    for number in range(20):
        (folder / str(number)).touch()
    sweep.sweep({UID}, 0.0)
    assert precious.stat().st_size == 20 * MIB
    assert len(names(folder)) <= QUOTA.files


def test_a_link_in_place_of_a_folder_leads_nowhere(parent: Path, sweep: FolderSweep, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    for number in range(20):
        (precious / str(number)).touch()
    (parent / f"{UID}_main").symlink_to(precious)
    sweep.sweep({UID}, 0.0)
    sweep.sweep((), 0.0)
    sweep.sweep((), KEPT_SECONDS)
    assert len(names(precious)) == 20
    assert names(parent) == []


def test_a_container_of_a_pod_that_is_gone_is_held_to_the_quota_as_long_as_its_folder_is_there(
    parent: Path, sweep: FolderSweep
) -> None:
    folder = folder_of(parent, UID)
    for number in range(20):
        (folder / str(number)).touch()
    sweep.sweep((), 0.0)
    assert len(names(folder)) == QUOTA.files


def test_while_the_pods_are_not_known_quotas_hold_and_only_what_was_put_aside_goes(
    parent: Path, sweep: FolderSweep
) -> None:
    folder_of(parent, OTHER)
    folder = folder_of(parent, OTHER)
    for number in range(20):
        (folder / str(number)).touch()
    sweep.sweep((), 0.0)
    sweep.sweep(None, 2 * KEPT_SECONDS)
    assert names(parent) == [f"{OTHER}_main"]
    assert len(names(folder)) == QUOTA.files


@pytest.mark.parametrize("is_folder", [False, True], ids=["file", "folder"])
def test_the_name_of_the_library_hides_nothing_from_the_quota(
    parent: Path, sweep: FolderSweep, *, is_folder: bool
) -> None:
    """In the folder of locks nothing is mounted over it."""
    library = folder_of(parent, UID) / "libvgpu.so"
    if is_folder:
        library.mkdir()
        (library / "large").write_bytes(bytes(20 * MIB))
    else:
        library.write_bytes(bytes(20 * MIB))
    sweep.sweep({UID}, 0.0)
    assert names(library.parent) == []


_RENAMES = """
import os, sys
os.chdir(sys.argv[1])
while True:
    for number in range(4):
        os.rename(f"a{number}", f"b{number}")
        os.rename(f"b{number}", f"a{number}")
"""


def test_entries_that_come_and_go_while_it_is_looked_at_hide_no_others(parent: Path) -> None:
    folder = folder_of(parent, UID)
    for number in range(4):
        (folder / f"a{number}").touch()
    with subprocess.Popen([sys.executable, "-c", _RENAMES, str(folder)]) as tenant:
        try:
            for _ in range(30):
                for number in range(100):
                    (folder / str(number)).mkdir(exist_ok=True)
                FolderSweep([str(parent)], QUOTA).sweep({UID}, 0.0)
                assert not [name for name in names(folder) if name.isdecimal()]
        finally:
            tenant.kill()
