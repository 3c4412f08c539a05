"""`kubectl topogpu` as one file, started by a Python that has nothing installed."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from daemonset import plugin
from proto import __version__
from tests.kubectl_topogpu.test_commands import state_of


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugin")
    assert plugin.main(["--output", str(folder)]) == 0
    return folder / "kubectl-topogpu"


def run(file: Path, home: Path, *arguments: str, flags: str = "-IS") -> subprocess.CompletedProcess[str]:
    """Isolated from what is installed: without site-packages, and with an environment of its own."""
    return subprocess.run(
        [sys.executable, flags, str(file), *arguments],
        env={"HOME": str(home), "PATH": os.defpath},
        input=json.dumps({**state_of("65-full-nodes")}),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def home(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file has unpacked itself in it."""
    folder = tmp_path_factory.mktemp("home")
    assert run(built, folder, "--version").returncode == 0
    return folder


COMMANDS = ["top", "who n1", "why target", "fit", "topo n1", "waste", "frag"]


@pytest.mark.parametrize("command", COMMANDS)
def test_one_file_needs_nothing_but_python(built: Path, home: Path, command: str) -> None:
    for output in ("wide", "json", "yaml", "csv"):
        done = run(built, home, *command.split(), "--state", "-", "-o", output)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout


def test_the_view_for_the_terminal_says_what_to_install_where_textual_is_missing(built: Path, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_text(json.dumps({**state_of("65-full-nodes")}))
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-IS", str(built), "top", "-i", "--state", str(state)],
            env={"HOME": str(tmp_path), "PATH": os.defpath},
            stdout=theirs,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(theirs)
        os.close(ours)
    sentence = "Error: top -i needs textual: python -m pip install 'topogpu[tui]'\n"
    assert (done.returncode, done.stderr) == (1, sentence)


def test_it_unpacks_itself_once(built: Path, tmp_path: Path) -> None:
    run(built, tmp_path, "--help")
    (folder,) = (tmp_path / ".cache" / "kubectl-topogpu").iterdir()
    assert (folder.parent.stat().st_mode & 0o777) == 0o700
    inode = folder.stat().st_ino
    done = run(built, tmp_path, "--version")
    assert done.stdout.strip().endswith(__version__)
    assert [each.stat().st_ino for each in folder.parent.iterdir()] == [inode]


def test_it_is_compiled_once_whatever_the_environment_says(built: Path, tmp_path: Path) -> None:
    run(built, tmp_path, "--help", flags="-BIS")
    assert list(tmp_path.rglob("cli/__pycache__/*.pyc"))


def test_a_home_that_cannot_be_written_is_no_obstacle(built: Path, tmp_path: Path) -> None:
    home = tmp_path / "file"
    home.write_text("not a folder")
    assert run(built, home, "top", "--state", "-").returncode == 0


def test_under_another_name_it_completes(built: Path, tmp_path: Path, home: Path) -> None:
    link = tmp_path / "kubectl_complete-topogpu"
    link.symlink_to(built)
    assert run(link, home, "fit", "--gpu-policy", "b").stdout == "binpack\n:4\n"


def test_the_same_files_make_the_same_bytes() -> None:
    files = {"a.py": b"1", "b/c.py": b"2"}
    assert plugin.program(files) == plugin.program(dict(reversed(files.items())))
    assert plugin.packed(files) == plugin.packed(files)


def test_wheels_of_a_release_are_pinned_with_hashes() -> None:
    pins = plugin.pinned(plugin.LOCK.read_text(), plugin.NEEDS).splitlines()
    names = [line.partition("==")[0] for line in pins if "==" in line]
    assert names == list(plugin.NEEDS)
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", line) for line in pins if "==" not in line)
    with pytest.raises(plugin.BuildError, match="does not pin nothing"):
        plugin.pinned("click==1 \\\n    --hash=sha256:00\n", ["nothing"])


def test_the_manifest_keeps_krews_rules() -> None:
    sums = dict.fromkeys(plugin.PLATFORMS, "0" * 64)
    made = yaml.safe_load(yaml.safe_dump(plugin.manifest(sums, "https://example.com/topogpu/releases/v1")))
    spec = made["spec"]
    assert (made["apiVersion"], made["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert re.fullmatch(r"[a-z0-9-]+", made["metadata"]["name"])
    assert re.fullmatch(r"v\d+\.\d+\.\d+(-[\w.]+)?", spec["version"])
    assert 0 < len(spec["shortDescription"]) <= 50
    assert not {"\r", "\n"} & set(spec["shortDescription"])
    assert spec["homepage"] == "https://example.com/topogpu"
    for platform in spec["platforms"]:
        assert set(platform["selector"]["matchLabels"]) == {"os", "arch"}
        assert platform["uri"].startswith("https://example.com/topogpu/releases/v1/kubectl-topogpu-")
        assert platform["uri"].endswith(".tar.gz")
        assert re.fullmatch(r"[a-f0-9]{64}", platform["sha256"])
        assert platform["bin"] == "kubectl-topogpu"


def test_a_release_needs_an_address(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        plugin.main(["--release"])
    assert "--release needs --url" in capsys.readouterr().err
