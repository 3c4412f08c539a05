import os
from itertools import islice
from pathlib import Path

import pytest

from deviceplugin.cli.uninstalling import remove
from deviceplugin.container.container_folders import KEPT_SECONDS, FolderSweep, remove_folder, removing

UID = "0d4f0000-0000-0000-0000-000000000000"
DEEPER_THAN_THE_STACK = 3000


def fill(folder: Path, *, depth: int = DEEPER_THAN_THE_STACK) -> None:
    """As a container can: no path is that long, but a process can walk down."""
    folder.mkdir(parents=True)
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_CREAT, dir_fd=here))
    os.close(here)


def test_links_files_and_folders_go_and_nothing_they_point_at(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    folder = tmp_path / "folder"
    for name in ("a/b/c", "a/e", "d/b"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").touch()
        (folder / name / "link").symlink_to(precious)
    os.mkfifo(folder / "pipe")
    remove_folder(str(folder))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "precious"]


def test_what_is_no_folder_of_its_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "link").symlink_to("precious")
    with pytest.raises(NotADirectoryError):
        remove_folder(str(tmp_path / "link"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "precious"]


def test_folders_nested_deeper_than_the_stack_stop_nobody(tmp_path: Path) -> None:
    """A container may write in its own folder; the daemon, its restarts and the removal of a node outlast that."""
    containers = tmp_path / "vgpu/containers"
    container = containers / f"{UID}_main"
    fill(container)
    sweep = FolderSweep([str(containers)])
    sweep.sweep((), 0.0)
    sweep.sweep((), KEPT_SECONDS)
    assert list(containers.iterdir()) == []

    fill(container)
    assert remove([str(containers)], str(tmp_path / "vgpu")) == {}
    assert not containers.exists()


def test_a_removal_that_stops_halfway_has_made_progress(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for number in range(100):
        (folder / f"{number // 10}").mkdir(parents=True, exist_ok=True)
        (folder / f"{number // 10}" / f"{number}").touch()
    left = 100
    while folder.exists():
        list(islice(removing(str(folder)), 20))
        before, left = left, sum(path.is_file() for path in tmp_path.rglob("*"))
        assert left < before or not folder.exists()


def test_what_cannot_be_removed_keeps_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in "abc":
        (folder / name).touch()
    unlink = os.unlink

    def immutable(name: str, *, dir_fd: int) -> None:
        if name == "b":
            raise PermissionError(1, "Operation not permitted", name)
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", immutable)
    with pytest.raises(PermissionError):
        remove_folder(str(folder))
    assert [path.name for path in folder.iterdir()] == ["b"]
