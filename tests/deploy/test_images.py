"""How the images of a whole cluster are kept, and what a failed build of them is."""

import os
from pathlib import Path

import pytest

from tests.cluster.binaries import BuildFailed
from tests.deploy import images


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("DEPLOY_IMAGES", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "topogpu" / "image"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources of release 0.0.9, on a machine that can build images."""
    if os.geteuid():
        pytest.skip("only root builds images")
    for program in ("buildah", "mmdebstrap"):
        (tmp_path / program).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    tree = tmp_path / "tree"
    for package in ("daemonset", "proto"):
        (tree / package).mkdir(parents=True)
        (tree / package / "__init__.py").write_text('__version__ = "0.0.9"')
    (tree / "build" / "image").mkdir(parents=True)
    return tree


def test_a_build_that_fails_is_not_taken_for_a_machine_that_cannot_build(cache: Path, tree: Path) -> None:
    (tree / "daemonset" / "image.py").write_text("raise SystemExit(1)")
    with pytest.raises(BuildFailed, match="could not be built"):
        images.build_from(tree, "0123", images.PRODUCT)
    assert not cache.exists()


def test_the_image_of_another_version_is_kept_too(cache: Path, tree: Path) -> None:
    (tree / "daemonset" / "image.py").write_text("open('build/image/topogpu-0.0.9.tar', 'w').write('built')")
    images.build_from(tree, "0123", images.PRODUCT)
    assert (cache / "0123" / "topogpu.tar").read_text() == "built"


def test_of_the_images_of_other_sources_the_newest_are_kept(cache: Path) -> None:
    for age in range(4):
        (cache / f"older-{age}").mkdir(parents=True)
        os.utime(cache / f"older-{age}", (1000 - age, 1000 - age))
    images.forget_oldest()
    assert sorted(path.name for path in cache.iterdir()) == ["older-0", "older-1"]
