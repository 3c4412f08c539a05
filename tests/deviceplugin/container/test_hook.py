import os
from pathlib import Path

import pytest

from deviceplugin.container.edits import ContainerFacts, Hook
from deviceplugin.container.hook import HookUnusable, find_hook, make_lock_directory, prepare

FACTS = ContainerFacts(pod_uid="0d4f", name="train")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "local"
    (folder / "vgpu").mkdir(parents=True)
    (folder / "vgpu/ld.so.preload").write_text("preload\n")
    return folder


@pytest.fixture
def hook(root: Path) -> Hook:
    (root / "vgpu/libvgpu.so").write_text("library")
    found = find_hook(str(root))
    assert found is not None
    return found


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "vgpulock"


def library(root: Path) -> str | None:
    found = find_hook(str(root))
    return None if found is None else Path(found.library).name


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_a_folder_without_library_or_preload_list_is_no_hook(root: Path) -> None:
    assert find_hook(str(root)) is None
    (root / "vgpu/libvgpu.so").write_text("library")
    assert find_hook(str(root)) == Hook(
        root=str(root), library=f"{root}/vgpu/libvgpu.so", preload=f"{root}/vgpu/ld.so.preload"
    )
    (root / "vgpu/ld.so.preload").unlink()
    assert find_hook(str(root)) is None


def test_the_versioned_file_that_hami_installed_last_comes_before_the_plain_one(root: Path) -> None:
    for second, name in enumerate(("libvgpu.so", "libvgpu.so.v2.9.0", "libvgpu.so.v2.10.0")):
        (root / "vgpu" / name).write_text(name)
        os.utime(root / "vgpu" / name, (second, second))
    assert library(root) == "libvgpu.so.v2.10.0"


def test_our_link_is_resolved_so_that_a_container_keeps_its_version(root: Path) -> None:
    (root / "vgpu/libvgpu.so.v2.10.0").write_text("HAMi's")
    (root / "vgpu/libvgpu.so.0123456789abcdef").write_text("ours")
    (root / "vgpu/libvgpu.so").symlink_to("libvgpu.so.0123456789abcdef")
    assert library(root) == "libvgpu.so.0123456789abcdef"


def test_a_link_that_leads_nowhere_is_no_library(root: Path) -> None:
    (root / "vgpu/libvgpu.so").symlink_to("libvgpu.so.0123456789abcdef")
    assert library(root) is None


def test_a_licence_is_found_beside_the_library(root: Path, hook: Hook) -> None:
    assert hook.license == ""
    (root / "vgpu/license").write_text("licence")
    found = find_hook(str(root))
    assert found is not None
    assert found.license == f"{root}/vgpu/license"


def test_a_container_gets_a_fresh_folder_open_to_its_user(root: Path, hook: Hook, lock: Path) -> None:
    region = root / "vgpu/containers/0d4f_train"
    prepare(hook, FACTS, lock_directory=str(lock))
    (region / "0d4f.cache").write_text("of a container that never started")
    neighbour = root / "vgpu/containers/77aa_serve/77aa.cache"
    neighbour.parent.mkdir()
    neighbour.write_text("running")
    prepare(hook, FACTS, lock_directory=str(lock))
    assert list(region.iterdir()) == []
    assert neighbour.read_text() == "running"
    assert (mode(region), mode(lock)) == (0o777, 0o777)


def test_the_lock_of_running_containers_survives_an_allocation(hook: Hook, lock: Path) -> None:
    prepare(hook, FACTS, lock_directory=str(lock))
    (lock / "lock").write_text("held")
    prepare(hook, FACTS, lock_directory=str(lock))
    assert (lock / "lock").read_text() == "held"


def test_a_lock_folder_that_the_runtime_made_for_root_is_opened(lock: Path) -> None:
    lock.mkdir(mode=0o755)
    make_lock_directory(str(lock))
    assert mode(lock) == 0o777


def test_a_link_in_place_of_the_containers_folder_is_refused(root: Path, hook: Hook, lock: Path) -> None:
    precious = root / "precious"
    precious.mkdir(mode=0o700)
    (precious / "file").write_text("kept")
    region = root / "vgpu/containers/0d4f_train"
    region.parent.mkdir()
    region.symlink_to(precious)
    with pytest.raises(HookUnusable, match=f"{region} is a symbolic link"):
        prepare(hook, FACTS, lock_directory=str(lock))
    assert (precious / "file").read_text() == "kept"
    assert mode(precious) == 0o700


def test_a_link_in_place_of_the_lock_folder_is_not_followed(root: Path, hook: Hook, lock: Path) -> None:
    precious = root / "precious"
    precious.mkdir(mode=0o700)
    lock.symlink_to(precious)
    with pytest.raises(HookUnusable, match=f"cannot make {lock} for HAMi-core"):
        prepare(hook, FACTS, lock_directory=str(lock))
    assert mode(precious) == 0o700


def test_a_folder_that_cannot_be_made_is_told_not_ignored(root: Path, hook: Hook, lock: Path) -> None:
    (root / "vgpu/containers").write_text("a file")
    with pytest.raises(HookUnusable, match=r"cannot make .*/containers/0d4f_train for HAMi-core: Not a directory"):
        prepare(hook, FACTS, lock_directory=str(lock))


def test_an_intruders_file_in_place_of_the_folder_is_told(root: Path, hook: Hook, lock: Path) -> None:
    region = root / "vgpu/containers/0d4f_train"
    region.parent.mkdir()
    region.write_text("a file")
    with pytest.raises(HookUnusable, match=r"cannot make .*/0d4f_train for HAMi-core: Not a directory"):
        prepare(hook, FACTS, lock_directory=str(lock))
