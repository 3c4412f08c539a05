"""The Dockerfile, read by BuildKit's own parser. `make image-check` builds it, twice."""

import os
import platform
import re
from pathlib import Path

import pytest

from daemonset import image, render
from daemonset.image import DOCKERFILE, ImageBuilder
from tests.programs import put_program

ROOT = render.HERE.parent
dockerfile = pytest.importorskip(
    "dockerfile", reason="the parser of Dockerfiles has no wheel for this machine", exc_type=ImportError
)
STEPS = dockerfile.parse_file(str(DOCKERFILE))


def last_stage() -> dict[str, tuple[str, ...]]:
    """Instruction and arguments; of several the last."""
    start = max(number for number, step in enumerate(STEPS) if step.cmd.upper() == "FROM")
    return {step.cmd.upper(): step.value for step in STEPS[start:]}


def arguments(instruction: str) -> list[tuple[str, ...]]:
    return [step.value for step in STEPS if step.cmd.upper() == instruction]


def test_the_base_images_are_pinned_and_the_same_by_default() -> None:
    given = dict(value[0].split("=", 1) for value in arguments("ARG") if "=" in value[0])
    assert re.fullmatch(r"docker\.io/library/python:\d+\.\d+\.\d+-slim-\w+", given["PYTHON_IMAGE"])
    assert given["BUILD_IMAGE"] == given["PYTHON_IMAGE"]
    stages = [value[0] for value in arguments("FROM")]
    assert stages == ["${BUILD_IMAGE}", "${PYTHON_IMAGE}"]


def test_the_programs_run_as_nobody_from_what_the_first_stage_made() -> None:
    stage = last_stage()
    assert stage["USER"] == ("65532:65532",)
    assert stage["COPY"] == ("/opt/topogpu", "/opt/topogpu")
    assert stage["ENTRYPOINT"] == ("python", "-m")
    assert "RUN" not in stage


def test_whatever_is_installed_is_named_by_its_hash() -> None:
    installs = [value[0] for value in arguments("RUN") if " install " in value[0]]
    assert all("--require-hashes" in one or "--no-index" in one for one in installs)
    assert len(installs) == 3


@pytest.mark.parametrize("name", ["requirements.lock", "build-requirements.lock"])
def test_every_requirement_in_a_lock_file_has_one_version_and_hashes(name: str) -> None:
    text = (render.HERE / name).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    assert lines
    assert [line for line in lines if not re.match(r"[a-z0-9._-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", line)] == []


def test_the_locked_versions_are_ones_that_the_programs_take() -> None:
    requirement = re.compile(r'^  "([a-z-]+)>=([\d.]+)",$', re.MULTILINE)
    project = (ROOT / "pyproject.toml").read_text()
    runtime = project[project.index("\ndependencies = [") : project.index("[project.optional-dependencies]")]
    wanted = {name: number(version) for name, version in requirement.findall(runtime)}
    locked = dict(
        re.findall(r"^([a-z0-9._-]+)==([\d.]+)", (render.HERE / "requirements.lock").read_text(), re.MULTILINE)
    )
    assert wanted
    assert [name for name, least in wanted.items() if number(locked.get(name, "0")) < least] == []


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_every_file_that_is_copied_is_sent_to_the_build() -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [source for step in STEPS if step.cmd.upper() == "COPY" and not step.flags for source in step.value[:-1]]
    assert {source for source in copied if not any(Path(source).match(pattern) for pattern in sent)} == set()
    assert all((ROOT / source).exists() for source in copied)


def test_the_image_holds_no_simulation() -> None:
    assert [value for value in arguments("COPY") if "simulation" in value] == []


@pytest.mark.parametrize(("hours_old", "made"), [(None, 1), (1, 0), (25, 1)])
def test_a_base_is_made_again_after_a_day_so_that_it_gets_what_debian_has_mended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hours_old: int | None, made: int
) -> None:
    archive, called = tmp_path / "debian-run-arm64.tar", tmp_path / "called"
    if hours_old is not None:
        archive.touch()
        os.utime(archive, times=(archive.stat().st_mtime - hours_old * 3600,) * 2)

    put_program(tmp_path / "bin", "podman", f'echo podman "$@" >> {called}')
    put_program(tmp_path / "bin", "mmdebstrap", f'echo mmdebstrap >> {called}; for last; do :; done; : > "$last"')
    monkeypatch.setattr(image, "OUT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert image.debian_base(ImageBuilder("podman"), "run", "arm64") == "localhost/topogpu-base-run-arm64:bookworm"
    *before, last = called.read_text().splitlines()
    assert before == ["mmdebstrap"] * made
    assert last.startswith("podman import --platform=linux/arm64 ")


def test_an_image_for_another_processor_needs_an_emulator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(image, "EMULATORS", tmp_path)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    image.can_run("")
    image.can_run("amd64")
    with pytest.raises(image.CannotBuild, match="No emulator for arm64"):
        image.can_run("arm64")
    (tmp_path / "qemu-aarch64").touch()
    image.can_run("arm64")
