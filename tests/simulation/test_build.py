import ctypes
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from simulation.nvml.build import BuildFailed, NoCompiler, build_library

ROOT = Path(__file__).parents[2]
LIBRARY = "libnvidia-ml.so.1"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for /tmp."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.delenv("CC", raising=False)
    return folder


@pytest.fixture
def unwritable(tmp_path: Path) -> Path:
    """Below a file nothing can be made, not even by root."""
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "cache"


def fake_compiler(folder: Path, script: str) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / "cc"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def one_sentence(error: BaseException) -> str:
    text = str(error)
    assert "\n" not in text
    return text


@pytest.mark.needs_compiler
def test_a_library_once_built_needs_no_compiler(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build_library(tmp_path / "cache")
    monkeypatch.setenv("PATH", "")
    assert build_library(tmp_path / "cache") == built
    assert [path.name for path in built.parent.iterdir()] == [LIBRARY]
    assert list(temporary.iterdir()) == []


@pytest.mark.needs_compiler
def test_the_users_cache_is_the_default(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert build_library().is_relative_to(tmp_path / "home" / "topogpu")


@pytest.mark.needs_compiler
@pytest.mark.parametrize("default", [True, False])
def test_a_cache_that_cannot_be_written_gives_way_to_one_temporary_folder(
    default: bool, unwritable: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(unwritable))
    cache = None if default else unwritable
    built = build_library(cache)
    own = temporary / f"topogpu-{os.getuid()}"
    assert built.is_relative_to(own)
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    monkeypatch.setenv("PATH", "")
    assert build_library(cache) == built
    assert list(temporary.iterdir()) == [own]


@pytest.mark.needs_compiler
@pytest.mark.parametrize("trap", ["open to all", "a link", "a file"])
def test_a_temporary_folder_that_others_can_write_is_not_trusted(
    trap: str, tmp_path: Path, unwritable: Path, temporary: Path
) -> None:
    own = temporary / f"topogpu-{os.getuid()}"
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    if trap == "a link":
        own.symlink_to(tmp_path / "elsewhere")
    elif trap == "a file":
        own.write_text("")
    else:
        own.mkdir()
        own.chmod(0o777)
    built = build_library(unwritable)
    assert not built.is_relative_to(own)
    assert built.is_relative_to(temporary)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_without_any_folder_the_build_fails_in_a_sentence(
    unwritable: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(unwritable))
    with pytest.raises(BuildFailed, match="no cache folder can be written") as caught:
        build_library(unwritable)
    one_sentence(caught.value)


def test_no_compiler_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "ziglang", None)  # as where it is not installed
    with pytest.raises(NoCompiler, match=r"no C compiler .* is found; install gcc, or the .* ziglang") as caught:
        build_library(tmp_path / "cache")
    one_sentence(caught.value)
    assert not isinstance(caught.value, BuildFailed)
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_a_compiler_chosen_and_not_found_is_named(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-cc -O2")
    with pytest.raises(NoCompiler, match=r"\$CC names 'no-such-cc', which is not found"):
        build_library(tmp_path / "cache")


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (
            "echo 'a.c: In function f:' >&2; echo 'a.c:3:9: fatal error: pthread.h: not found' >&2;"
            " echo 'a.c:9: error: second' >&2; exit 1",
            "a.c:3:9: fatal error: pthread.h: not found",
        ),
        ("echo 'disk quota exceeded' >&2; exit 4", "disk quota exceeded"),
        ("exit 3", "nothing but exit status 3"),
        (r"printf 'error: \377\376' >&2; exit 1", "error: "),
    ],
    ids=["the first error", "no error line", "silence", "no text"],
)
def test_a_compiler_that_fails_is_quoted_with_its_first_error(
    script: str, says: str, tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = fake_compiler(tmp_path / "bin", script)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(BuildFailed) as caught:
        build_library(tmp_path / "cache")
    text = one_sentence(caught.value)
    assert f"{compiler} answered: {says}" in text
    assert "second" not in text
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_a_compiler_that_cannot_be_run_is_one_sentence(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Path(fake_compiler(tmp_path / "bin", ""))
    compiler.write_bytes(b"\x7fELF nothing of the kind")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(BuildFailed, match=f"with {compiler}") as caught:
        build_library(tmp_path / "cache")
    one_sentence(caught.value)


BUILD = """
import sys
from pathlib import Path
from simulation.nvml.build import build_library
print(build_library(Path(sys.argv[1])))
"""


@pytest.mark.needs_compiler
def test_processes_that_build_at_once_get_the_same_whole_library(tmp_path: Path) -> None:
    builders = [
        subprocess.Popen(
            [sys.executable, "-c", BUILD, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    answers = {builder.communicate(timeout=60)[0].strip() for builder in builders}
    assert [builder.returncode for builder in builders] == [0] * 4
    (answer,) = answers
    assert [path.name for path in Path(answer).parent.iterdir()] == [LIBRARY]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs the system's C compiler")
def test_the_sources_compile_without_a_warning(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "cc -Wall -Wextra -Werror")
    assert build_library(tmp_path / "cache").is_file()


@pytest.mark.needs_compiler
def test_a_wheel_holds_the_library_built_and_no_compiler_is_needed_where_it_is_installed(tmp_path: Path) -> None:
    source, installed = tmp_path / "simulation", tmp_path / "installed"
    shutil.copytree(ROOT / "simulation", source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    build = [sys.executable, "setup.py", "--quiet", "bdist_wheel", "--plat-name", "manylinux_2_17_test"]
    subprocess.run(build, cwd=source, check=True, capture_output=True, timeout=120)
    (wheel,) = source.glob("dist/*.whl")
    assert wheel.name.endswith("-py3-none-manylinux_2_17_test.whl")
    shutil.unpack_archive(wheel, installed, "zip")
    assert not (installed / "simulation" / "setup.py").exists()
    answer = subprocess.run(
        [sys.executable, "-c", "import simulation.nvml.build as build; print(build.build_library())"],
        env={"PATH": "", "PYTHONPATH": str(installed), "HOME": str(tmp_path)},
        cwd=installed,
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout == f"{installed / 'simulation' / 'nvml' / LIBRARY}\n"
    assert ctypes.CDLL(answer.stdout.strip()).nvmlInit_v2


def test_a_wheel_made_without_a_compiler_is_one_for_every_platform(tmp_path: Path) -> None:
    source = tmp_path / "simulation"
    shutil.copytree(ROOT / "simulation", source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    build = [sys.executable, "setup.py", "--quiet", "bdist_wheel"]
    environment = {"PATH": "", "CC": "no-such-compiler", "HOME": str(tmp_path)}
    done = subprocess.run(build, cwd=source, env=environment, check=True, capture_output=True, text=True, timeout=120)
    assert "without the library of the simulated driver: cannot build" in done.stdout
    assert [wheel.name.partition("-py3-")[2] for wheel in source.glob("dist/*.whl")] == ["none-any.whl"]
