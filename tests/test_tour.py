"""The tour, typed as it is shown: every command in its order, until it prints what the page says."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.binaries import NoBinaries, find
from tests.documented_commands import Shown, is_shown, shown_commands, tour

ROOT = Path(__file__).parent.parent
LONGEST_SECONDS = 60.0
pytestmark = pytest.mark.needs_compiler
_VARYING = (
    (re.compile(r"http://127\.0\.0\.1:\d+"), "URL"),
    (re.compile(r"/\S+/kubeconfig"), "KUBECONFIG"),
    (re.compile(r"\b(\d+m)?\d+s\b"), "AGE"),
    (re.compile(r" +"), " "),
)
"""What differs from run to run: addresses, folders, ages, and the width of columns that hold ages."""


def plain(text: str) -> str:
    for pattern, word in _VARYING:
        text = pattern.sub(word, text)
    return text


@pytest.fixture
def kubectl() -> str:
    """The folder of a kubectl."""
    if found := shutil.which("kubectl"):
        return str(Path(found).parent)
    try:
        return str(Path(find("").path("kubectl")).parent)
    except NoBinaries:
        pytest.skip("kubectl is not in PATH, nor built by `make test-cluster`")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Its name is short: unix sockets have a longest path. The tour's commands name what is in the repository."""
    with tempfile.TemporaryDirectory(prefix="tg", dir="/tmp") as made:
        (Path(made) / "examples").symlink_to(ROOT / "examples")
        yield Path(made)


def environment(folder: Path, kubectl: str) -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), kubectl, os.environ["PATH"]])
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    own = {"HOME": str(folder), "TMPDIR": str(folder), "XDG_CACHE_HOME": cache, "COLUMNS": "200", "NO_COLOR": "1"}
    return {**os.environ, **own, "PATH": path, "PYTHONUNBUFFERED": "1"}


def printed(shown: Shown, folder: Path, env: dict[str, str]) -> str:
    """What the command prints, once that is what is shown: a cluster takes its time."""
    deadline = time.monotonic() + LONGEST_SECONDS
    wanted = tuple(plain(line).rstrip() for line in shown.output)
    while True:
        command = ["bash", "-o", "pipefail", "-ec", shown.command]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        if done.returncode == 0 and is_shown(wanted, plain(said)):
            return said
        changes = re.search(r"\b(apply|delete|break|mend)\b", shown.command)
        assert not changes, f"{shown.command}:\n{said}"
        assert time.monotonic() < deadline, f"{shown.command}:\n{said}"
        time.sleep(0.2)


def test_every_step_of_the_tour_prints_what_the_page_shows(folder: Path, kubectl: str) -> None:
    page = (ROOT / "docs/simulation.md").read_text(encoding="utf-8")
    steps = [step for step in shown_commands(tour(page)) if not step.command.startswith(("export ", "make demo"))]
    up, *others = steps
    assert up.command.startswith("topogpu-sim up ")
    env = environment(folder, kubectl)
    start = ["bash", "-ec", f"exec {up.command} 2>&1"]
    with subprocess.Popen(start, cwd=folder, env=env, stdout=subprocess.PIPE, text=True) as cluster:
        try:
            assert cluster.stdout is not None
            said = ""
            for line in cluster.stdout:
                said += line
                if line.startswith("Ctrl-C"):
                    break
            assert is_shown(tuple(map(plain, up.output)), plain(said)), said
            found = re.search(r"export KUBECONFIG=(\S+)", said)
            assert found is not None
            for step in others:
                printed(step, folder, {**env, "KUBECONFIG": found[1]})
        finally:
            cluster.send_signal(signal.SIGINT)
            cluster.communicate()
    left = {path.name for path in folder.iterdir()}
    assert left - {".kube"} == {"examples", "state.json"}, "only kubectl's cache is left, and what the reader made"
