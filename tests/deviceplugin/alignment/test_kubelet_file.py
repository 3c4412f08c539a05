"""Kubelet's configuration file while it changes."""

import logging
from pathlib import Path

import pytest

from deviceplugin.alignment.kubelet_configuration import KubeletAlignment
from deviceplugin.alignment.kubelet_file import KubeletFiles
from proto.annotations.node_numa import TopologyPolicy

HEAD = "kind: KubeletConfiguration\n"
STRICT = KubeletAlignment(TopologyPolicy.RESTRICTED)


def test_a_configuration_counts_until_another_one_can_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "config.yaml"
    file = KubeletFiles(path)
    assert file.read() is None
    path.write_text(HEAD + "topologyManagerPolicy: restricted\n")
    assert file.read() == STRICT
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            path.write_text("")
            assert (file.read(), file.read()) == (STRICT, STRICT)
            path.unlink()
            assert file.read() == STRICT
            path.write_text(HEAD + "topologyManagerPolicy: restricted\n")
            assert file.read() == STRICT
    assert len(caplog.records) == 2
    path.write_text(HEAD)
    assert file.read() == KubeletAlignment()


def test_a_configuration_behind_a_link_is_followed_to_another_file(tmp_path: Path) -> None:
    """As a ConfigMap's files are."""
    first, second, path = tmp_path / "1", tmp_path / "2", tmp_path / "config.yaml"
    first.write_text(HEAD)
    second.write_text(HEAD + "topologyManagerPolicy: restricted\n")
    path.symlink_to(first)
    file = KubeletFiles(path)
    assert file.read() == KubeletAlignment()
    (tmp_path / "new").symlink_to(second)
    (tmp_path / "new").rename(path)
    assert file.read() == STRICT


def test_a_file_that_the_host_has_replaced_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(HEAD)
    with path.open() as mounted, caplog.at_level(logging.WARNING):
        path.unlink()
        file = KubeletFiles(Path(f"/proc/self/fd/{mounted.fileno()}"))
        assert [file.read() for _ in range(2)] == [KubeletAlignment()] * 2
    assert [record.getMessage().split(" ", 1)[1] for record in caplog.records] == [
        "was replaced on the host; restart this pod to read the new one; until then the last that was read counts"
    ]


def test_a_drop_in_folder_counts_before_the_file_and_its_later_files_before_earlier_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, folder = tmp_path / "config.yaml", tmp_path / "kubelet.conf.d"
    path.write_text(HEAD + "topologyManagerPolicy: best-effort\ncpuManagerPolicy: static\n")
    folder.mkdir()
    files = KubeletFiles(path, folder)
    assert files.read() == KubeletAlignment(TopologyPolicy.BEST_EFFORT, cpu_manager_policy="static")
    (folder / "20.conf").write_text(HEAD + "topologyManagerPolicy: restricted\n")
    (folder / "10.conf").write_text(HEAD + "topologyManagerPolicy: none\ncpuManagerPolicy: null\n")
    (folder / "30.yaml").write_text(HEAD + "topologyManagerPolicy: single-numa-node\n")
    assert files.read() == STRICT
    (folder / "20.conf").unlink()
    assert files.read() == KubeletAlignment()
    (folder / "30.conf").write_text("topologyManagerPolicy: restricted\n")
    assert files.read() == KubeletAlignment()
    assert [record.getMessage() for record in caplog.records] == [
        f"{folder} is no KubeletConfiguration; until then the last that was read counts"
    ]
