"""Which pods have processes, as the folders of the host's control groups show it."""

from pathlib import Path

import pytest

from deviceplugin.pod_cgroups import PodCgroups

UIDS = tuple(f"{number:08x}-1111-2222-3333-444444444444" for number in range(4))
A, B, C, D = UIDS


def version_2(folder: Path, *, populated: bool) -> None:
    folder.mkdir(parents=True)
    (folder / "cgroup.events").write_text(f"populated {int(populated)}\nfrozen 0\n")


def version_1(folder: Path, processes: str) -> None:
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text(processes)


def dashless(uid: str) -> str:
    return uid.replace("-", "_")


def test_the_systemd_driver_with_version_2(tmp_path: Path) -> None:
    kubepods = tmp_path / "kubepods.slice"
    version_2(kubepods / f"kubepods-pod{dashless(A)}.slice", populated=True)
    version_2(kubepods / "kubepods-burstable.slice" / f"kubepods-burstable-pod{dashless(B)}.slice", populated=True)
    version_2(kubepods / "kubepods-besteffort.slice" / f"kubepods-besteffort-pod{dashless(C)}.slice", populated=False)
    version_2(tmp_path / "system.slice" / f"kubepods-pod{dashless(D)}.slice", populated=True)
    assert PodCgroups(tmp_path).populated({B}) == frozenset({A, B})


@pytest.mark.parametrize("above", ["", "kubelet"])
def test_the_cgroupfs_driver_with_version_1(tmp_path: Path, above: str) -> None:
    for hierarchy in ("pids", "memory"):
        kubepods = tmp_path / hierarchy / above / "kubepods"
        version_1(kubepods / f"pod{A}", "")
        version_1(kubepods / f"pod{A}" / "0" / "deeper", "4711\n")
        version_1(kubepods / "besteffort" / f"pod{B}", "")
        version_1(kubepods / "besteffort" / f"pod{B}" / "0", "")
    assert PodCgroups(tmp_path).populated(UIDS) == frozenset({A})


def test_nothing_is_known_until_a_pod_of_this_node_is_found_and_then_only_its_kubelets_count(tmp_path: Path) -> None:
    cgroups = PodCgroups(tmp_path)
    assert cgroups.populated({A}) is None
    version_2(tmp_path / "other" / "kubepods" / f"pod{B}", populated=True)
    assert cgroups.populated({A}) is None
    ours = tmp_path / "kubepods" / f"pod{A}"
    version_2(ours, populated=True)
    assert cgroups.populated({A}) == frozenset({A})
    (ours / "cgroup.events").write_text("populated 0\n")
    assert cgroups.populated({A}) == frozenset()


def test_a_pod_with_more_folders_than_are_looked_at_is_taken_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deviceplugin.pod_cgroups._MOST_FOLDERS", 5)
    for number in range(6):
        version_1(tmp_path / "pids" / "kubepods" / f"pod{A}" / str(number), "")
    assert PodCgroups(tmp_path).populated({A}) == frozenset({A})
