"""What speaks against a release, what it writes, and that one version is everywhere."""

import io
import os
import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from daemonset import image, release, versions
from daemonset.image_archive import retar
from daemonset.release import Tree
from proto import __version__
from tests.programs import put_program

CHANGELOG = f"""# Changelog

## [Unreleased]

Later.

## [{__version__}] - 2030-01-02

### Added

- A thing.

## [0.0.1] - 2029-01-01

[Unreleased]: docs/install.md
"""


def test_every_place_has_the_version_of_the_programs() -> None:
    assert versions.others(__version__) == []


def test_a_new_version_is_written_to_every_place(tmp_path: Path) -> None:
    for place in versions.PLACES:
        target = tmp_path / place.path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(versions.ROOT / place.path, target)
    assert versions.others("7.8.9", tmp_path) == list(dict.fromkeys(place.path for place in versions.PLACES))
    versions.write("7.8.9", tmp_path)
    assert versions.others("7.8.9", tmp_path) == []


def test_whatever_names_an_image_of_ours_is_a_place() -> None:
    found = subprocess.run(
        ["git", "grep", "--files-with-matches", "-E", r"topogpu[a-z-]*:[0-9]+\.[0-9]"],
        cwd=versions.ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    rendered = re.compile(r"daemonset/(base|components|overlays)/")
    assert {name for name in found if not rendered.match(name)} <= {place.path for place in versions.PLACES}


def test_what_is_unreleased_becomes_the_section_of_the_version() -> None:
    cut = versions.cut(CHANGELOG, "7.8.9", "2031-02-03")
    assert (release.section(cut, "7.8.9"), release.section(cut, __version__)) == ("Later.", "### Added\n\n- A thing.")
    assert "## [Unreleased]\n\n## [7.8.9] - 2031-02-03\n" in cut
    assert versions.cut(cut, "7.8.9", "2031-02-04") == cut


def test_todays_changelog_can_be_cut() -> None:
    changelog = (versions.ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert release.section(versions.cut(changelog, "7.8.9", "2031-02-03"), "7.8.9")


def test_nothing_speaks_against_a_clean_tree_with_notes() -> None:
    older = Tree(changelog=CHANGELOG, tags={"0.0.1": "1234", "9.0.0": "5678"}, earlier=frozenset({"0.0.1"}))
    assert list(release.problems(__version__, older)) == []
    again = Tree(changelog=CHANGELOG, head="1234", tags={__version__: "1234"}, earlier=frozenset({__version__}))
    assert list(release.problems(__version__, again)) == []
    assert release.section(CHANGELOG, __version__) == "### Added\n\n- A thing."


@pytest.mark.parametrize(
    ("number", "tree", "said"),
    [
        ("", Tree(changelog=CHANGELOG), "Nothing is no version"),
        ("1.0", Tree(changelog=CHANGELOG), "1.0 is no version"),
        ("v1.0.0", Tree(changelog=CHANGELOG), "v1.0.0 is no version"),
        (__version__, Tree(changelog=CHANGELOG, status=" M README.md"), "commit them, or put them away"),
        (__version__, Tree(changelog="# Changelog\n"), f"no section `## [{__version__}]"),
        (__version__, Tree(changelog="# Changelog\n"), f"run `make version VERSION={__version__}`, and commit"),
        ("9.9.9", Tree(changelog=CHANGELOG), "9.9.9 is not the version in proto/__init__.py, pyproject.toml, "),
        (
            __version__,
            Tree(changelog=CHANGELOG, head="1234", tags={__version__: "5678"}),
            f"The tag v{__version__} exists, at commit 5678",
        ),
        (
            __version__,
            Tree(changelog=CHANGELOG, earlier=frozenset({"8.0.0", "10.0.0-rc.1"})),
            "v10.0.0-rc.1 was released",
        ),
    ],
)
def test_what_speaks_against_a_release_is_said_with_the_remedy(number: str, tree: Tree, said: str) -> None:
    assert any(said in problem for problem in release.problems(number, tree))


def test_versions_are_sorted_as_semantic_versioning_does() -> None:
    as_it_does = ["0.9.10", "0.10.0-beta.2", "0.10.0-beta.10", "0.10.0-rc.1", "0.10.0", "1.0.0"]
    assert sorted({*as_it_does}, key=versions.order) == as_it_does


def test_programs_that_are_not_there_are_all_named_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HELM", str(tmp_path / "helm"))
    (tmp_path / "git").symlink_to("/bin/false")
    said = " ".join(release.missing("debian", tags=True))
    for each in ("install one", "apt install mmdebstrap", "HELM=", "user.name"):
        assert each in said
    assert "user.name" not in " ".join(release.missing("debian", tags=False))


def test_without_git_nothing_is_released(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(image.CannotBuild, match="no program git here"):
        release.tree()


@pytest.mark.parametrize("before", [None, "whole"])
def test_a_build_that_fails_leaves_what_was_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: str | None
) -> None:
    folder = tmp_path / "release" / __version__
    if before:
        folder.mkdir(parents=True)
        (folder / "file").write_text(before)

    put_program(tmp_path / "bin", "git", 'echo "no commit" >&2; exit 128')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(image.CannotBuild, match="no commit"):
        release.build(__version__, "registry", folder)
    assert [path.name for path in (tmp_path / "release").iterdir()] == ([__version__] if before else [])


def test_the_tag_has_the_whole_section_with_its_headings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for words in ("init -q", "-c user.name=n -c user.email=e commit -q --allow-empty -m first"):
        subprocess.run(["git", *words.split()], cwd=tmp_path, check=True)
    for person in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{person}_NAME", "n")
        monkeypatch.setenv(f"GIT_{person}_EMAIL", "e")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    (tmp_path / "CHANGELOG.md").touch()
    (tmp_path / release.NOTES).write_text("### Added\n\n- A thing.\n")
    release.tag("7.8.9", tmp_path)
    said = subprocess.run(["git", "tag", "-n9", "v7.8.9"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "### Added" in said.stdout
    assert release.tree().tags.keys() == {"7.8.9"} == release.tree().earlier


def test_checksums_are_those_that_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"2")
    (tmp_path / release.SUMS).write_text(release.checksums(tmp_path))
    subprocess.run(["sha256sum", "--check", "--strict", release.SUMS], cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.parametrize("program", ["podman", "docker"])
def test_both_images_and_the_chart_are_pushed_and_the_tag_comes_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str
) -> None:
    for name in (program, "helm", "git"):
        put_program(tmp_path / "bin", name, "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HELM", str(tmp_path / "bin" / "helm"))
    *pushes, chart, tag = [" ".join(words) for words in release.publish("N", "r.example/t", tmp_path)]
    wanted = []
    for name in ("topogpu:N", "topogpu-simulated:N"):
        by = {"podman": [f"podman push {name} docker://r.example/t/{name}"]}
        by["docker"] = [f"docker tag {name} r.example/t/{name}", f"docker push r.example/t/{name}"]
        wanted += by[program]
    assert pushes == wanted
    assert chart == f"{tmp_path}/bin/helm push {tmp_path}/topogpu-N.tgz oci://r.example/t/charts"
    assert tag.endswith("push origin vN")


@pytest.mark.parametrize("kind", ["", ":gz"])
def test_a_tar_file_of_the_same_content_has_the_same_bytes(tmp_path: Path, kind: str) -> None:
    for number, names in enumerate(("ab", "ba")):
        opened: Callable[..., tarfile.TarFile] = tarfile.open
        with opened(tmp_path / f"{number}", f"w{kind}") as made:
            for name in names:
                one = tarfile.TarInfo(name)
                one.size, one.mtime, one.uname = 1, time.time() + number, f"user{number}"
                made.addfile(one, io.BytesIO(name.encode()))
        retar(tmp_path / f"{number}", 1000)
    assert (tmp_path / "0").read_bytes() == (tmp_path / "1").read_bytes()
    with tarfile.open(tmp_path / "0") as made:
        assert [(one.name, one.mtime, made.extractfile(one).read()) for one in made] == [  # type: ignore[union-attr]
            ("a", 1000, b"a"),
            ("b", 1000, b"b"),
        ]
    assert len(list(tmp_path.iterdir())) == 2
