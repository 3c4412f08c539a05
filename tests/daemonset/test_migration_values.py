"""The values that a change from HAMi starts with in docs/compatibility.md, under the chart as it is."""

from pathlib import Path

import pytest

from daemonset import render
from tests.daemonset.shipped import container, containers, one, scheduler_configuration
from tests.documented_commands import fences

DOCUMENT = render.HERE.parent / "docs/compatibility.md"


@pytest.mark.usefixtures("chart")
def test_the_first_step_brings_the_scheduler_under_hamis_name_and_no_daemon_yet(tmp_path: Path) -> None:
    (values,) = [
        text for _, text in fences(DOCUMENT.read_text(encoding="utf-8")) if text.startswith("# migration.yaml")
    ]
    (tmp_path / "migration.yaml").write_text(values)
    shipped = render.render("", "--values", str(tmp_path / "migration.yaml"))
    daemon = container(shipped, "topogpu-device-plugin/device-plugin")
    assert daemon.pod["nodeSelector"] == {"kubernetes.io/os": "linux", "topogpu.io/daemon": "on"}
    assert "topogpu-device-plugin/install-hami-core" in {each.name for each in containers(shipped)}
    assert [profile["schedulerName"] for profile in scheduler_configuration(shipped)["profiles"]] == ["hami-scheduler"]
    assert "--scheduler-name=hami-scheduler" in container(shipped, "topogpu-scheduler/extender").spec["args"]
    policy = one(shipped, "ValidatingAdmissionPolicy", "topogpu-node-annotations")
    trusted = " ".join(condition["expression"] for condition in policy["spec"]["matchConditions"])
    assert "'system:serviceaccount:kube-system:hami-device-plugin'" in trusted
