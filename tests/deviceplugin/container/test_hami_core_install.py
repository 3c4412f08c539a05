import fcntl
import hashlib
import importlib
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from deviceplugin.cli import main
from deviceplugin.container.edits import HamiCore
from deviceplugin.container.hami_core import find_hami_core
from deviceplugin.container.hami_core_install import (
    HEADER_BYTES,
    CannotInstall,
    Installation,
    install_hami_core,
    library_problem,
)

REAL = Path(importlib.import_module("msgspec._core").__file__ or "").read_bytes()
"""A shared object of this machine."""
MACHINE = os.uname().machine
OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "libvgpu.so").write_bytes(REAL)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "local"


def install(source: Path, root: Path, keep: int = 2) -> Installation:
    return install_hami_core(source, root, machine=MACHINE, keep=keep)


def build(source: Path, version: str) -> str:
    """Another build of the library; the name it is installed under."""
    content = REAL + version.encode()
    (source / "libvgpu.so").write_bytes(content)
    return f"libvgpu.so.{hashlib.sha256(content).hexdigest()[:16]}"


def inodes(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in folder.iterdir()}


def test_a_first_installation_is_found_by_the_daemon(source: Path, root: Path) -> None:
    name = build(source, "1")
    done = install(source, root)
    folder = root / "vgpu"
    assert done == Installation(
        library=folder / name,
        changed=(name, "ld.so.preload", "libvgpu.so"),
        removed=(),
    )
    assert os.readlink(folder / "libvgpu.so") == name
    assert (folder / name).read_bytes() == REAL + b"1"
    assert (folder / "ld.so.preload").read_text() == f"{folder}/libvgpu.so\n"
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert modes == {
        "containers": 0o700,
        name: 0o644,
        "libvgpu.so": 0o644,
        "ld.so.preload": 0o644,
    }
    hami_core = find_hami_core(str(root))
    assert isinstance(hami_core, HamiCore)
    assert hami_core.library == f"{folder}/{name}"


def test_a_second_run_touches_nothing(source: Path, root: Path) -> None:
    install(source, root)
    before = inodes(root / "vgpu")
    assert install(source, root).changed == ()
    assert inodes(root / "vgpu") == before


def test_a_running_container_keeps_the_library_it_has_mapped(source: Path, root: Path) -> None:
    first = install(source, root).library
    with open(first, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        inode = os.fstat(file.fileno()).st_ino
        for version in "234":
            build(source, version)
            install(source, root, keep=0)
        assert not first.exists()
        assert os.fstat(file.fileno()).st_ino == inode
        assert mapped[:] == REAL


def test_hamis_file_in_use_is_replaced_by_a_link_not_written_to(source: Path, root: Path) -> None:
    plain = root / "vgpu/libvgpu.so"
    plain.parent.mkdir(parents=True)
    plain.write_bytes(b"HAMi's build")
    (plain.parent / "ld.so.preload").write_bytes(b"/usr/local/vgpu/libvgpu.so")
    with plain.open("rb") as library, (plain.parent / "ld.so.preload").open("rb") as preload:
        install(source, root)
        assert library.read() == b"HAMi's build"
        assert preload.read() == b"/usr/local/vgpu/libvgpu.so"
    assert plain.read_bytes() == REAL


def test_two_earlier_libraries_stay_and_only_ours_are_collected(source: Path, root: Path) -> None:
    names = []
    for second, version in enumerate("1234"):
        names.append(build(source, version))
        removed = install(source, root).removed
        os.utime(root / "vgpu" / names[-1], (second, second))
    (root / "vgpu/libvgpu.so.v2.10.0").write_bytes(b"HAMi's")
    assert removed == (names[0],)
    assert {path.name for path in (root / "vgpu").glob("libvgpu.so.*")} == {*names[1:], "libvgpu.so.v2.10.0"}
    build(source, "1")
    assert install(source, root).removed == (names[1],)
    assert (root / "vgpu/libvgpu.so.v2.10.0").exists()


def test_going_back_to_an_earlier_library_only_switches_the_link(source: Path, root: Path) -> None:
    first = build(source, "1")
    install(source, root)
    build(source, "2")
    install(source, root)
    build(source, "1")
    assert install(source, root).changed == ("libvgpu.so",)
    assert os.readlink(root / "vgpu/libvgpu.so") == first


def test_a_damaged_library_is_put_right(source: Path, root: Path) -> None:
    installed = install(source, root).library
    installed.write_bytes(REAL[:100])
    assert install(source, root).changed == (installed.name,)
    assert installed.read_bytes() == REAL


def test_what_a_crash_left_is_overwritten(source: Path, root: Path) -> None:
    folder = root / "vgpu"
    folder.mkdir(parents=True)
    name = build(source, "1")
    (folder / f".{name}.new").write_bytes(b"half")
    (folder / ".libvgpu.so.new").symlink_to("nowhere")
    install(source, root)
    assert (folder / "libvgpu.so").read_bytes() == REAL + b"1"
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_the_image_of_hami_names_its_only_library_by_version(source: Path, root: Path) -> None:
    (source / "libvgpu.so").rename(source / "libvgpu.so.v2.10.0")
    assert install(source, root).library.read_bytes() == REAL
    (source / "libvgpu.so.v2.9.0").write_bytes(REAL)
    with pytest.raises(CannotInstall, match=r"several libraries: libvgpu.so.v2.10.0, libvgpu.so.v2.9.0"):
        install(source, root)


@pytest.mark.parametrize(
    ("content", "machine", "problem"),
    [
        (REAL, MACHINE, ""),
        (b"", MACHINE, "is not an ELF file"),
        (b"#!/bin/sh\n" * 20, MACHINE, "is not an ELF file"),
        (REAL[:-1000], MACHINE, "is cut off: its section table is beyond its end"),
        (REAL, OTHER[MACHINE], f"was built for another machine than this one, {OTHER[MACHINE]}"),
        (REAL[:16] + b"\x02\x00" + REAL[18:], MACHINE, "is not a shared object"),
        (REAL[:4] + b"\x01" + REAL[5:], MACHINE, f"was built for another machine than this one, {MACHINE}"),
        (REAL, "riscv64", "cannot be checked: HAMi-core exists for x86_64 and aarch64, and this machine is riscv64"),
    ],
)
def test_only_a_shared_object_for_this_machine_is_a_library(content: bytes, machine: str, problem: str) -> None:
    assert library_problem(content[:HEADER_BYTES], len(content), machine) == problem


def test_a_bad_source_leaves_the_installation_as_it_is(source: Path, root: Path) -> None:
    install(source, root)
    before = inodes(root / "vgpu")
    (source / "libvgpu.so").write_bytes(REAL[:-1000])
    with pytest.raises(CannotInstall, match=f"{source}/libvgpu.so is cut off"):
        install(source, root)
    (source / "libvgpu.so").unlink()
    with pytest.raises(CannotInstall, match=f"{source} holds no libvgpu.so"):
        install(source, root)
    assert inodes(root / "vgpu") == before


def test_empty_folders_in_the_place_of_files_make_way(source: Path, root: Path) -> None:
    """A container that was started too early made them."""
    for name in ("libvgpu.so", "ld.so.preload"):
        (root / "vgpu" / name).mkdir(parents=True)
    installation = install_hami_core(source, root, machine=MACHINE)
    assert (root / "vgpu/libvgpu.so").readlink() == Path(installation.library.name)
    assert (root / "vgpu/ld.so.preload").read_text() == f"{root}/vgpu/libvgpu.so\n"


def test_a_folder_with_something_in_it_in_the_place_of_a_file_is_named(source: Path, root: Path) -> None:
    (root / "vgpu/ld.so.preload/kept").mkdir(parents=True)
    with pytest.raises(CannotInstall) as refusal:
        install_hami_core(source, root, machine=MACHINE)
    assert str(refusal.value) == (
        f"{root}/vgpu/ld.so.preload is a folder and cannot be removed: Directory not empty. "
        "Move it away and run this again; a file belongs there."
    )


def test_a_target_that_cannot_be_written_is_named(source: Path, root: Path) -> None:
    root.mkdir()
    (root / "vgpu").write_text("a file")
    with pytest.raises(CannotInstall, match=f"Cannot install HAMi-core in {root}/vgpu: .*: (File exists|Not a dir)"):
        install(source, root)


def test_a_second_installer_waits_for_the_first(source: Path, root: Path) -> None:
    install(source, root)
    other = os.open(root / "vgpu", os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with ThreadPoolExecutor() as threads:
        second = threads.submit(install, source, root)
        with pytest.raises(TimeoutError):
            second.result(0.1)
        os.close(other)
        assert second.result(60).changed == ()


def test_the_command_says_what_it_did(source: Path, root: Path) -> None:
    name = build(source, "1")
    words = ["install-hami-core", "--from", str(source), "--hook-path", str(root), "--keep", "0"]
    answers = [CliRunner().invoke(main, words)]
    answers.append(CliRunner().invoke(main, words))
    other = build(source, "2")
    answers.append(CliRunner().invoke(main, words))
    assert [answer.output for answer in answers] == [
        f"{root}/vgpu/{name} is installed.\n",
        f"{root}/vgpu/{name} is already installed.\n",
        f"{root}/vgpu/{other} is installed.\nRemoved {name}.\n",
    ]
    (source / "libvgpu.so").write_text("no library")
    refused = CliRunner().invoke(main, words)
    assert (refused.exit_code, refused.output.splitlines()) == (
        1,
        [f"Error: {source}/libvgpu.so is not an ELF file; name the folder that holds HAMi-core's libvgpu.so."],
    )


def test_a_relative_hook_path_is_refused(source: Path) -> None:
    answer = CliRunner().invoke(main, ["install-hami-core", "--from", str(source), "--hook-path", "local"])
    assert answer.exit_code == 2
    assert "containers need an absolute path" in answer.output
