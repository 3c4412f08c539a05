import itertools
import os
from pathlib import Path

import pytest

from deviceplugin.region_files import RegionFiles, RegionReader
from tests.deviceplugin.regions import Slot, v1

UID = "2f7b1a5e-93c4-4d0e-8a61-0c5d9e7f1b23"
OTHER = "00000000-93c4-4d0e-8a61-0c5d9e7f1b23"
GPU = "GPU-aaaaaaaa-0000-0000-0000-000000000000"


def make(containers: Path, folder: str, content: bytes | bytearray = b"") -> Path:
    (containers / folder).mkdir()
    file = containers / folder / f"{UID}.cache"
    file.write_bytes(content)
    return file


def test_every_containers_region_is_read_by_itself(tmp_path: Path) -> None:
    make(tmp_path, f"{UID}_main", v1([GPU], [Slot(memory={0: (1, 2, 3, 0, 6)})]))
    (tmp_path / f"{UID}_main" / "libvgpu.so").touch()
    make(tmp_path, f"{UID}_old", v1([GPU], [], minor=1))
    make(tmp_path, f"{UID}_broken", b"?")
    (tmp_path / f"{UID}_starting").mkdir()
    make(tmp_path, "lost+found", b"?")
    found = RegionReader(str(tmp_path)).read()
    assert {container: region.version for (_, container), region in found.regions.items()} == {
        "main": "1.2",
        "old": "1.1",
    }
    assert found.regions[UID, "main"].devices[0].total_bytes == 6
    assert list(found.problems) == [(UID, "broken")]
    assert "1 bytes are not the size of a shared region" in found.problems[UID, "broken"]


def test_what_a_killed_process_had_is_not_counted(tmp_path: Path) -> None:
    slots = [Slot(memory={0: (0, 0, size, 0, size)}, host_pid=pid) for size, pid in ((1, 7), (10, 8))]
    make(tmp_path, f"{UID}_main", v1([GPU], slots))
    ended: set[int] = set()
    reader = RegionReader(str(tmp_path), has_ended=lambda pid: pid in ended)
    assert reader.read().regions[UID, "main"].devices[0].total_bytes == 11
    ended.add(8)
    assert reader.read().regions[UID, "main"].devices[0].total_bytes == 1


def test_no_folder_yet_is_no_region(tmp_path: Path) -> None:
    assert RegionReader(str(tmp_path / "none")).read() == RegionFiles()


def test_links_pipes_and_folders_in_place_of_a_region_are_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(v1([GPU], []))
    containers = tmp_path / "containers"
    containers.mkdir()
    for name in ("link", "pipe", "folder", "two"):
        (containers / f"{UID}_{name}").mkdir()
    (containers / f"{UID}_link" / "x.cache").symlink_to(secret)
    os.mkfifo(containers / f"{UID}_pipe" / "x.cache")
    (containers / f"{UID}_folder" / "x.cache").mkdir()
    (containers / f"{UID}_two" / "x.cache").touch()
    (containers / f"{UID}_two" / "y.cache").touch()
    (containers / f"{UID}_whole").symlink_to(tmp_path)
    found = RegionReader(str(containers)).read()
    assert found.regions == {}
    assert {container for _, container in found.problems} == {"link", "pipe", "folder", "two", "whole"}
    assert found.problems[UID, "pipe"] == "the region is no regular file"


def test_folders_beyond_the_limit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deviceplugin.region_files._MOST_FOLDERS", 2)
    for name in ("a", "b", "c"):
        make(tmp_path, f"{UID}_{name}", v1([GPU], []))
    found = RegionReader(str(tmp_path)).read()
    assert (len(found.regions), found.left_out) == (2, 1)


def test_a_look_that_takes_too_long_ends_and_the_next_goes_on(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        make(tmp_path, f"{UID}_{name}", v1([GPU], []))
    ticks = itertools.count(step=0.15)
    reader = RegionReader(str(tmp_path), clock=lambda: next(ticks))
    looks = [reader.read() for _ in range(3)]
    assert [(len(look.regions), look.left_out) for look in looks] == [(1, 2), (2, 1), (3, 0)]
    for name in ("a", "b", "c"):
        make_broken(tmp_path, name)
    broken = [{container for _, container in reader.read().problems} for _ in range(3)]
    assert broken == [{"a"}, {"a", "b"}, {"a", "b", "c"}]
    (tmp_path / f"{UID}_a" / f"{UID}.cache").unlink()
    (tmp_path / f"{UID}_a").rmdir()
    assert {container for _, container in reader.read().problems} == {"b", "c"}


def make_broken(containers: Path, container: str) -> None:
    (containers / f"{UID}_{container}" / f"{UID}.cache").write_bytes(b"?")
