"""`topogpu-sim up`: kubectl works against it, GPUs break and mend, and Ctrl-C leaves nothing."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from urllib.request import urlopen

import psutil
import pytest

from simulation.cluster import ClusterSettings, SimulationFailed, simulated_cluster
from tests.examples import FOLDER as EXAMPLES

_LONGEST_SECONDS = 90.0
pytestmark = pytest.mark.needs_compiler
needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not in PATH")


class Up:
    """A running `topogpu-sim up` that has its temporary folder to itself."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        scripts = str(Path(sys.executable).parent)
        self.env = {
            **os.environ,
            "TMPDIR": str(folder),
            "UP_UNDER_TEST": str(folder),
            "NO_COLOR": "1",
            "HOME": str(folder),
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
            "PATH": f"{scripts}:{os.environ['PATH']}",
        }
        self.said = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "simulation", "up", *arguments],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if line.startswith("Ctrl-C"):
                break
        else:
            raise AssertionError(self.process.communicate()[1])
        found = re.search(r"export KUBECONFIG=(\S+)", self.said)
        assert found is not None
        self.env["KUBECONFIG"] = found[1]

    @property
    def directory(self) -> Path:
        return Path(self.env["KUBECONFIG"]).parent

    def run(self, *command: str) -> tuple[int, str, str]:
        done = subprocess.run(
            command, env=self.env, capture_output=True, text=True, timeout=_LONGEST_SECONDS, check=False
        )
        return done.returncode, done.stdout, done.stderr

    def says(self, *command: str) -> str:
        status, output, errors = self.run(*command)
        assert status == 0, errors
        return output

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _LONGEST_SECONDS
        while not condition():
            assert time.monotonic() < deadline, what
            assert self.process.poll() is None, self.process.communicate()[1]
            time.sleep(0.5)

    def programs(self) -> list[psutil.Process]:
        """Without what the programs themselves start for a moment."""
        return psutil.Process(self.process.pid).children()

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self, number: int = signal.SIGINT) -> tuple[int, str]:
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=_LONGEST_SECONDS)
        return self.process.returncode, errors

    def left_behind(self) -> list[str]:
        """Files, but for kubectl's own, and processes that carry our mark in their environment."""
        files = [name for name in os.listdir(self.folder) if name != ".kube"]
        return [*files, *(str(process) for process in psutil.process_iter() if self._is_ours(process))]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get("UP_UNDER_TEST") == str(self.folder)
        except psutil.Error:
            return False


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="tg", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def up(folder: Path) -> Iterator[Up]:
    running = Up(folder, "--machine", "1x-t4-vm", "--machine", "dgx1v-8x-v100-32g", "--machine", "cpu-only")
    yield running
    if running.process.poll() is None:
        running.stop()


@pytest.fixture(scope="module")
def shared() -> Iterator[Up]:
    """One for the tests that leave it running."""
    folder = Path(tempfile.mkdtemp(prefix="tg", dir="/tmp"))
    running = Up(folder, "--machine", "1x-t4-vm", "--machine", "dgx1v-8x-v100-32g", "--machine", "cpu-only")
    yield running
    running.stop()
    shutil.rmtree(folder)


@needs_kubectl
def test_kubectl_and_the_plugin_work_against_it_and_nothing_is_left(up: Up) -> None:
    nodes = up.says("kubectl", "get", "nodes", "--no-headers")
    assert [line.split()[:2] for line in nodes.splitlines()] == [[f"node-{n}", "Ready"] for n in (1, 2, 3)]
    watch = subprocess.Popen(
        ["kubectl", "get", "pods", "-w", "--no-headers"], env=up.env, stdout=subprocess.PIPE, text=True
    )
    assert "pod/sample created" in up.says("kubectl", "apply", "-f", str(up.directory / "pod.yaml"))
    up.until(lambda: "Running" in up.says("kubectl", "get", "pod", "sample"), "the pod runs")
    assert "pod/sample unchanged" in up.says("kubectl", "apply", "-f", str(up.directory / "pod.yaml"))
    described = up.says("kubectl", "describe", "pod", "sample")
    assert "Successfully assigned default/sample to node-" in described
    assert "nvidia.com/gpu" in up.says("kubectl", "describe", "node", "node-2")
    for refused in (["logs", "sample"], ["exec", "sample", "--", "true"]):
        status, _, errors = up.run("kubectl", *refused)
        assert status != 0
        assert "this cluster is simulated: its containers run nothing, so pods have no " in errors
    assert "default/sample" in up.says("kubectl", "topogpu", "top")
    assert "pod default/sample is on node node-" in up.says("kubectl", "topogpu", "why", "sample")
    (page,) = re.findall(r"The status page, for a browser: (http://\S+/)", up.said)
    with urlopen(page, timeout=_LONGEST_SECONDS) as answer:
        assert (answer.status, b"<html" in answer.read()) == (200, True)
    assert "room for 8 pods of this shape, on 1 node" in up.says("kubectl", "topogpu", "fit", "--memory", "20000")
    assert 'pod "sample" deleted' in up.says("kubectl", "delete", "pod", "sample")
    up.until(lambda: "sample" not in up.says("kubectl", "get", "pods"), "the pod is gone")
    watch.terminate()
    seen = watch.communicate()[0]
    assert "Running" in seen
    assert len(seen.splitlines()) > 1, "the watch shows what changed after its list"
    status, errors = up.stop()
    assert (status, errors.splitlines()[-1]) == (0, "Everything is stopped and removed.")
    assert up.left_behind() == []


@needs_kubectl
def test_kubectl_creates_scales_and_rolls_out_what_controllers_run(shared: Up) -> None:
    shared.says("kubectl", "create", "namespace", "team")
    shared.says("kubectl", "create", "quota", "gpus", "-n", "team", "--hard=pods=3,requests.nvidia.com/gpu=4")
    assert "requests.nvidia.com/gpu: " in shared.says("kubectl", "get", "quota", "gpus", "-n", "team", "-o", "yaml")
    server_side = ("kubectl", "apply", "--server-side", "-f", str(EXAMPLES / "job.yaml"))
    assert shared.says(*server_side) == shared.says(*server_side) == "job.batch/batch serverside-applied\n"
    shared.says("kubectl", "create", "deployment", "web", "--image=web:1", "--replicas=2")
    shared.says("kubectl", "rollout", "status", "deployment/web", "--timeout=30s")
    shared.says("kubectl", "scale", "deployment", "web", "--replicas=3")
    shared.says("kubectl", "set", "image", "deployment/web", "web=web:2")
    assert "successfully rolled out" in shared.says("kubectl", "rollout", "status", "deployment/web", "--timeout=30s")
    assert shared.says("kubectl", "get", "deployment", "web", "--no-headers").split()[1] == "3/3"
    shared.says("kubectl", "rollout", "undo", "deployment/web")
    shared.says("kubectl", "create", "job", "short", "--image=i", "--", "sleep", "1")
    shared.says("kubectl", "wait", "--for=condition=complete", "job/short", "--timeout=30s")
    ended = shared.says("kubectl", "get", "pods", "-l", "job-name=short", "--no-headers")
    assert ended.split()[1:3] == ["0/1", "Completed"]
    shared.says("kubectl", "delete", "deployment", "web")
    shared.until(lambda: "web-" not in shared.says("kubectl", "get", "pods"), "the pods of the Deployment go with it")
    assert "topogpu" in shared.says("kubectl", "get", "--raw", "/version")


@needs_kubectl
def test_the_plugin_reads_what_daemons_know_of_use(shared: Up) -> None:
    shared.says("kubectl", "wait", "--for=condition=Ready", "pod", "--all", "-n", "topogpu-system", "--timeout=30s")
    used = shared.says("kubectl", "topogpu", "top", "--used", "--level", "nodes")
    assert "cannot be read" not in used
    assert "node-2" in used


def test_metrics_of_all_programs_are_served(shared: Up) -> None:
    targets = json.loads((shared.directory / "metrics.json").read_text())
    assert sorted(one["labels"]["job"] for one in targets) == ["topogpu-device-plugin"] * 2 + ["topogpu-scheduler"]
    for one in targets:
        with urlopen(f"http://{one['targets'][0]}/metrics", timeout=_LONGEST_SECONDS) as answer:
            assert b"# HELP" in answer.read()


def test_a_gpu_is_broken_and_mended_while_it_runs(shared: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = (sys.executable, "-m", "simulation")
    plugin = (sys.executable, "-m", "kubectl_topogpu", "top", "node-2", "--level", "nodes", "-o", "csv")
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not in PATH")

    def not_serving() -> str:
        return shared.says(*plugin).splitlines()[1].split(",")[3]

    assert not_serving() == "0"
    shared.says(*simulation, "break", "node-2", "3", "xid79")
    shared.says(*simulation, "break", "node-2", "5", "lost")
    shared.until(lambda: not_serving() == "2", "both GPUs are found broken")
    shared.says(*simulation, "mend", "node-2", "3")
    shared.until(lambda: not_serving() == "1", "the mended GPU serves again, and it alone")
    status, _, errors = shared.run(*simulation, "break", "node-22", "0", "lost")
    assert (status, errors) == (
        1,
        "Error: there is no node node-22; did you mean node-2? Nodes are node-1, node-2, node-3\n",
    )
    monkeypatch.setitem(shared.env, "KUBECONFIG", "/nonexistent/kubeconfig")
    assert shared.run(*simulation, "mend", "node-2")[2].startswith(
        "Error: /nonexistent/kubeconfig is not the kubeconfig of a running simulation; run `topogpu-sim up`"
    )


def test_a_hanging_program_does_not_keep_it_from_stopping(up: Up) -> None:
    for child in up.children():
        child.suspend()
    status, _ = up.stop(signal.SIGHUP)
    assert status == 0
    assert up.left_behind() == []


def test_a_program_that_ends_is_started_again(up: Up) -> None:
    before = up.programs()
    before[-1].kill()
    up.until(lambda: len({*up.programs()} - {*before}) == 1, "it runs again")
    _, errors = up.stop(signal.SIGTERM)
    assert "ended with status -9; it starts again in 1 s" in errors
    assert up.left_behind() == []


def test_what_it_started_ends_with_it_even_when_it_is_killed(up: Up) -> None:
    children = up.children()
    assert len(children) == 3
    up.process.kill()
    up.process.communicate()
    assert psutil.wait_procs(children, timeout=_LONGEST_SECONDS)[1] == []
    shutil.rmtree(up.directory)


def test_a_load_comes_and_goes(folder: Path) -> None:
    up = Up(folder, "--machine", "dgx1v-8x-v100-32g", "--nodes", "2", "--load", "600")
    try:
        assert up.process.stderr is not None
        counted = next(line for line in up.process.stderr if re.match(r"\d+ pods: \d+ running", line))
    finally:
        up.stop()
    assert int(counted.split()[0]) > 1
    assert up.left_behind() == []


async def test_a_full_disk_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5 << 20))
    settings = ClusterSettings(machines=("1x-t4-vm", "1x-t4-vm"))
    with pytest.raises(SimulationFailed, match=r"has 5 MiB free of 6 needed; TMPDIR names another folder"):
        async with simulated_cluster(settings, lambda _: None, lambda: datetime(2030, 1, 1, tzinfo=UTC)):
            pass
