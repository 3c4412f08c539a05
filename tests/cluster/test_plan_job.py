"""The shipped Job on a real control plane: its controller makes a pod for each index, and each pod does its slice."""

import asyncio
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from simulation.plan.merge import read_reports
from tests.cluster.binaries import NoBinaries
from tests.cluster.control_plane import ControlPlane, Program
from tests.cluster.go_programs import JOB_CONTROLLER
from tests.polling import until
from tests.simulation.plan.test_job import INDEX, JOB, job, perform
from tests.simulation.plan.test_plan import STATE

pytestmark = pytest.mark.cluster
FIELD = re.compile(r"metadata\.(?P<map>labels|annotations)\['(?P<key>.+)'\]")
NAMESPACE = "plan"


@contextmanager
def running_controllers(plane: ControlPlane, folder: Path) -> Iterator[None]:
    """The controller of Jobs."""
    try:
        program = JOB_CONTROLLER.find(os.environ.get("KUBERNETES_RELEASE", ""))
    except NoBinaries as reason:
        pytest.skip(str(reason))
    controllers = Program([str(program), plane.kubeconfig()], folder / "jobs.log")
    try:
        yield
    finally:
        controllers.stop()


async def test_the_job_controller_makes_an_indexed_pod_for_each_slice_and_the_slices_make_the_report(
    plane: ControlPlane, tmp_path: Path
) -> None:
    count = job()["spec"]["completions"]
    plane.kubectl("create", "namespace", NAMESPACE)
    with running_controllers(plane, tmp_path):
        plane.kubectl("apply", "--validate=strict", "-n", NAMESPACE, "-f", str(JOB))
        await until(lambda: _true(lambda: len(_pods(plane)) == count))
        pods = _pods(plane)
        volume = tmp_path / "volume"
        volume.mkdir()
        (volume / "state.json").write_bytes(Path(STATE).read_bytes())
        for pod in pods:
            (container,) = pod["spec"]["containers"]
            perform(container, _index(pod, container), volume)
            _succeed(plane, pod["metadata"]["name"])
        await until(lambda: _true(lambda: _is_complete(plane)))
    report = read_reports(str(volume / "slices"))
    assert len(report.outcomes) == report.runs


async def _true(fact: Callable[[], bool]) -> bool:
    return await asyncio.to_thread(fact)


def _index(pod: dict[str, Any], container: dict[str, Any]) -> int:
    """As kubelet reads it: from what the environment variable names, a label or in older releases an annotation."""
    (variable,) = [each for each in container["env"] if f"$({each['name']})" == INDEX]
    found = FIELD.fullmatch(variable["valueFrom"]["fieldRef"]["fieldPath"])
    assert found is not None
    return int(pod["metadata"][found["map"]][found["key"]])


def _pods(plane: ControlPlane) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(plane.kubectl("get", "pods", "-n", NAMESPACE, "-o", "json"))["items"]
    return found


def _succeed(plane: ControlPlane, pod: str) -> None:
    """As kubelet reports a pod whose containers ended well."""
    status = json.dumps({"status": {"phase": "Succeeded"}})
    plane.kubectl("patch", "pod", pod, "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", status)


def _is_complete(plane: ControlPlane) -> bool:
    status = json.loads(plane.kubectl("get", "job", "topogpu-plan", "-n", NAMESPACE, "-o", "json"))["status"]
    return any(each["type"] == "Complete" and each["status"] == "True" for each in status.get("conditions", ()))
