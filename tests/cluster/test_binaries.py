"""Where the programs of the real control plane are looked for, and what is said where they are not."""

import re
from pathlib import Path

import pytest

from tests.cluster import coscheduling
from tests.cluster.binaries import NAMES, BuildFailed, NoBinaries, build, find, printed, releases
from tests.cluster.go_programs import JOB_CONTROLLER
from tests.node import binaries as node


def programs(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).touch(mode=0o755)
    return folder


@pytest.fixture(autouse=True)
def nothing_at_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The cache."""
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "topogpu" / "cluster"


def test_where_there_is_nothing_it_says_what_to_do() -> None:
    with pytest.raises(NoBinaries) as reason:
        find()
    assert f"has no {', '.join(NAMES)}" in str(reason.value)
    assert "run `make test-cluster` where Go is installed" in str(reason.value)
    assert "or set KUBEBUILDER_ASSETS to a folder that holds them" in str(reason.value)


def test_kubebuilder_assets_goes_before_what_was_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = programs(tmp_path / "assets", *NAMES)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(folder))
    assert find().folder == folder


def test_what_setup_envtest_leaves_lacks_kube_scheduler_and_is_told_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = programs(tmp_path / "assets", "etcd", "kube-apiserver", "kubectl")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(folder))
    with pytest.raises(NoBinaries, match=f"KUBEBUILDER_ASSETS={folder} has no kube-scheduler: "):
        find()


def test_what_was_built_is_found_by_its_release(nothing_at_hand: Path) -> None:
    newest = programs(nothing_at_hand / "v1.37.1", *NAMES)
    assert find().folder == find("v1.37").folder == newest
    with pytest.raises(NoBinaries, match=r"v1\.29\.\d+ has no "):
        find("v1.29")


@pytest.mark.parametrize("release", ["v1.3", "v1.37.1"])
def test_a_release_without_a_module_fails_the_suite_and_is_no_reason_to_skip_it(release: str) -> None:
    assert releases()[0] == "v1.29"
    named = re.escape(f"there is no release {release}: KUBERNETES_RELEASE is one of v1.29, v1.37")
    for wanted in (find, build, node.find, node.build, JOB_CONTROLLER.find):
        with pytest.raises(BuildFailed, match=named):
            wanted(release)
    with pytest.raises(SystemExit, match=named):
        printed(lambda: build(release))


def test_an_unknown_runtime_of_nodes_fails_the_suite() -> None:
    with pytest.raises(BuildFailed, match=r"there is no runtime docker: NODE_RUNTIME is one of .*containerd"):
        node.find("v1.37", "docker")


def test_without_coscheduling_s_kube_scheduler_it_says_how_to_build_it(nothing_at_hand: Path) -> None:
    with pytest.raises(NoBinaries, match=r"run `make test-cluster KUBERNETES_RELEASE=v1\.29` where Go is installed"):
        coscheduling.find()
    folder = programs(nothing_at_hand.parent / "scheduler-plugins" / coscheduling.VERSION, coscheduling.SCHEDULER)
    (folder / coscheduling.DEFINITION).touch()
    assert coscheduling.find() == folder
