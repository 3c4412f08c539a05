"""What speaks against a release, what it writes, and that one version is everywhere."""

import hashlib
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from daemonset import helm, oci_chart, release, render, versions
from proto import __version__

CHANGELOG = f"""# Changelog

## [Unreleased]

Later.

## [{__version__}] - 2030-01-02

### Added

- A thing.

## [0.0.1] - 2029-01-01

[Unreleased]: docs/upgrade.md
"""


def test_every_place_has_the_version_of_the_programs() -> None:
    assert list(versions.others(__version__)) == []


def test_a_new_version_is_written_to_every_place(tmp_path: Path) -> None:
    for place in versions.PLACES:
        target = tmp_path / place.path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(versions.ROOT / place.path, target)
    assert len(list(versions.others("7.8.9", tmp_path))) == len(versions.PLACES)
    versions.write("7.8.9", tmp_path)
    assert list(versions.others("7.8.9", tmp_path)) == []


def test_nothing_speaks_against_a_clean_tree_with_notes() -> None:
    assert list(release.problems(__version__, CHANGELOG, "")) == []
    assert release.section(CHANGELOG, __version__) == "### Added\n\n- A thing."


@pytest.mark.parametrize(
    ("number", "changelog", "status", "said"),
    [
        ("1.0", CHANGELOG, "", "1.0 is no version"),
        ("v1.0.0", CHANGELOG, "", "v1.0.0 is no version"),
        (__version__, CHANGELOG, " M README.md", "not committed"),
        (__version__, "# Changelog\n", "", f"no section `## [{__version__}]"),
        ("0.0.1", CHANGELOG, "", "CHANGELOG.md has no section `## [0.0.1]"),
        ("9.9.9", CHANGELOG, "", "run `make version VERSION=9.9.9`"),
    ],
)
def test_what_speaks_against_a_release_is_said_with_the_remedy(
    number: str, changelog: str, status: str, said: str
) -> None:
    assert any(said.lower() in problem.lower() for problem in release.problems(number, changelog, status))


def test_checksums_are_those_that_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"2")
    (tmp_path / release.SUMS).write_text(release.checksums(tmp_path))
    subprocess.run(["sha256sum", "--check", "--strict", release.SUMS], cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.usefixtures("chart")
def test_the_chart_is_a_layout_whose_blobs_are_named_by_their_content(tmp_path: Path) -> None:
    command = [str(helm.find()), "package", str(render.CHART), "--destination", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    package = tmp_path / f"topogpu-{__version__}.tgz"
    digest = oci_chart.pack(package, tmp_path / "chart.tar")
    with tarfile.open(tmp_path / "chart.tar") as layout:
        files = {one.name: layout.extractfile(one).read() for one in layout}  # type: ignore[union-attr]
    blobs = {name.rpartition("/")[2]: blob for name, blob in files.items() if name.startswith("blobs/")}
    assert all(hashlib.sha256(blob).hexdigest() == name for name, blob in blobs.items())
    (named,) = json.loads(files["index.json"])["manifests"]
    assert named["digest"] == digest
    manifest = json.loads(blobs[digest.removeprefix("sha256:")])
    assert blobs[manifest["layers"][0]["digest"].removeprefix("sha256:")] == package.read_bytes()
    config = json.loads(blobs[manifest["config"]["digest"].removeprefix("sha256:")])
    assert (config["name"], config["version"]) == ("topogpu", __version__)
