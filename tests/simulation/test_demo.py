import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

_LONGEST_SECONDS = 110
IMPATIENCE_SECONDS = 0.1
"""From one Ctrl-C to the next: while it is being cleaned up."""


@dataclass
class Demo:
    """`topogpu-sim demo` as a process that has its temporary folder and cache to itself."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        own = {"TMPDIR": str(self.folder), "DEMO_UNDER_TEST": str(self.folder), "NO_COLOR": "1"}
        return subprocess.Popen(
            [sys.executable, "-m", "simulation", "demo", *arguments],
            env={**os.environ, **own, **self.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start_until(self, said: str) -> subprocess.Popen[str]:
        """Comes back with the first line that begins so."""
        process = self.start("--json", "--nodes", "3")
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith(said):
                return process
        raise AssertionError(f"it ended without saying {said!r}")

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        output, errors = process.communicate(timeout=_LONGEST_SECONDS)
        return process.returncode, output, errors

    def left_behind(self) -> list[str]:
        """Files, and processes that carry our mark in their environment."""
        return [
            *os.listdir(self.folder),
            *(str(process) for process in psutil.process_iter() if self._is_ours(process)),
        ]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get("DEMO_UNDER_TEST") == str(self.folder)
        except psutil.Error:
            return False


@pytest.fixture
def demo() -> Iterator[Demo]:
    folder = Path(tempfile.mkdtemp(prefix="tg", dir="/tmp"))
    yield Demo(folder)
    shutil.rmtree(folder)


@pytest.fixture
def empty_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tg", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def assert_verified(result: dict[str, Any]) -> None:
    assert result["verification"] == {"passed": True, "violations": []}
    waiting = {pod["name"]: pod for pod in result["pods"] if pod["phase"] != "Running"}
    assert set(waiting) == {"too-big"}
    assert waiting["too-big"]["reason"].startswith("0/6 nodes are available")
    assert set(waiting["too-big"]["refusals"]) == {f"node-{number}" for number in range(1, 7)}
    for refusal in waiting["too-big"]["refusals"].values():
        assert "CardInsufficientMemory (needs 200000 MiB; largest GPU of the node has " in refusal


@pytest.mark.needs_compiler
def test_the_whole_path_is_verified_and_nothing_is_left_behind(demo: Demo) -> None:
    status, output, _ = demo.run("--json")
    result = json.loads(output)
    assert_verified(result)
    assert status == 0
    assert len(result["pods"]) == 25
    nodes = {pod["name"]: pod["node"] for pod in result["pods"]}
    assert {nodes["across-nodes-1"], nodes["across-nodes-2"]} == {"node-5", "node-6"}
    chosen = {pod["name"]: pod["choice"] for pod in result["pods"]}
    assert chosen["train-4-topology"] == "best-linked node, NV18 among all 4"
    assert chosen["on-rtx4090"].endswith("only RTX 4090")
    assert demo.left_behind() == []


@pytest.mark.skipif(find_spec("ziglang") is not None, reason="ziglang is installed, which compiles")
def test_without_a_compiler_it_says_what_to_install(demo: Demo, empty_folder: Path) -> None:
    demo.env = {"PATH": str(empty_folder), "XDG_CACHE_HOME": str(empty_folder / "cache")}
    status, output, errors = demo.run("--json")
    assert (status, output) == (1, "")
    why = "no C compiler (cc, gcc or clang) is found; install gcc, or the Python package ziglang"
    assert errors.splitlines()[-1] == f"Error: cannot build the fake NVML library: {why}"
    assert demo.left_behind() == []


@pytest.mark.needs_compiler
def test_a_cache_that_cannot_be_written_leaves_no_folder_behind(demo: Demo) -> None:
    demo.env = {"XDG_CACHE_HOME": "/proc/none"}
    status, output, _ = demo.run("--json", "--nodes", "1", "--pods", "1")
    assert status == 0
    assert json.loads(output)["verification"]["passed"]
    assert demo.left_behind() == []


@pytest.mark.needs_compiler
@pytest.mark.parametrize("said", ["API server at ", "node-3: "])
def test_an_interrupt_during_start_up_stops_and_removes_everything(demo: Demo, said: str) -> None:
    process = demo.start_until(said)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=_LONGEST_SECONDS)
    assert process.returncode == 130, errors
    assert output == ""
    assert errors.splitlines()[-1].startswith("Interrupted; ")
    assert demo.left_behind() == []


@pytest.mark.needs_compiler
def test_a_second_interrupt_does_not_cut_the_cleaning_short(demo: Demo) -> None:
    process = demo.start_until("extender at ")
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(IMPATIENCE_SECONDS)
    _, errors = process.communicate(timeout=_LONGEST_SECONDS)
    assert process.returncode == 130
    assert "everything is stopped and removed" in errors
    assert demo.left_behind() == []


@pytest.mark.needs_compiler
def test_a_taken_port_is_named_with_what_to_do(demo: Demo) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, output, errors = demo.run("--api-port", str(port))
    assert status == 1
    assert output == ""
    said = f"port {port} is taken by another program; give another one with --api-port, or 0 for any free one"
    assert errors.splitlines()[-1] == f"Error: {said}"
    assert demo.left_behind() == []


@pytest.mark.needs_compiler
def test_kept_files_are_kept_and_named(demo: Demo) -> None:
    status, output, _ = demo.run("--nodes", "1", "--pods", "1", "--keep")
    (kept,) = demo.folder.iterdir()
    assert status == 0
    assert f"kept in {kept}" in output
    assert {"kubeconfig", "extender.log", "daemon-node-1.log", "node-1"} <= {path.name for path in kept.iterdir()}
