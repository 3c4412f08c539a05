import os
from pathlib import Path

import pytest

from deviceplugin.container.edits import ContainerFacts, Hook
from deviceplugin.container.hook import HookUnusable, find_hook, prepare

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


def test_a_container_gets_fresh_folders_of_its_own_open_to_its_user(root: Path, hook: Hook) -> None:
    region, lock = root / "vgpu/containers/0d4f_train", root / "vgpu/locks/0d4f_train"
    prepare(hook, FACTS)
    (region / "0d4f.cache").write_text("of a container that never started")
    (lock / "lock").write_text("held")
    for parent, file in (("containers", "77aa.cache"), ("locks", "lock")):
        neighbour = root / f"vgpu/{parent}/77aa_serve/{file}"
        neighbour.parent.mkdir()
        neighbour.write_text("running")
    prepare(hook, FACTS)
    assert (list(region.iterdir()), list(lock.iterdir())) == ([], [])
    assert (mode(region), mode(lock)) == (0o777, 0o777)
    assert (root / "vgpu/containers/77aa_serve/77aa.cache").read_text() == "running"
    assert (root / "vgpu/locks/77aa_serve/lock").read_text() == "running"


def test_whatever_is_in_place_of_a_folder_is_put_aside_and_not_followed(root: Path, hook: Hook) -> None:
    precious = root / "precious"
    precious.mkdir(mode=0o700)
    (precious / "file").write_text("kept")
    (root / "vgpu/containers").mkdir()
    (root / "vgpu/containers/0d4f_train").symlink_to(precious)
    (root / "vgpu/locks").mkdir()
    (root / "vgpu/locks/0d4f_train").write_text("a file")
    prepare(hook, FACTS)
    for parent in ("containers", "locks"):
        folder = root / "vgpu" / parent / "0d4f_train"
        assert (folder.is_symlink(), mode(folder), list(folder.iterdir())) == (False, 0o777, [])
    assert ((precious / "file").read_text(), mode(precious)) == ("kept", 0o700)


def test_the_owner_of_a_folder_does_not_matter(root: Path, hook: Hook) -> None:
    prepare(hook, FACTS)
    for parent in ("containers", "locks"):
        os.chmod(root / "vgpu" / parent / "0d4f_train", 0)
        if os.geteuid() == 0:
            os.chown(root / "vgpu" / parent / "0d4f_train", 1234, 1234)
    prepare(hook, FACTS)
    assert {(mode(path), path.owner()) for path in root.glob("vgpu/*/0d4f_train")} == {(0o777, root.owner())}


def test_a_folder_that_cannot_be_made_is_told_not_ignored(root: Path, hook: Hook) -> None:
    (root / "vgpu/containers").write_text("a file")
    with pytest.raises(HookUnusable, match=r"cannot make .*/containers/0d4f_train for HAMi-core: (File exists|Not a)"):
        prepare(hook, FACTS)
