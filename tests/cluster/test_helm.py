"""Helm installs, upgrades and removes the chart on a real API server."""

import subprocess
from collections.abc import Iterator

import pytest
import yaml

from daemonset import helm, render
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.cluster


@pytest.fixture
def plane(kubernetes: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One of its own: the shipped webhook and policies stop what other tests do."""
    try:
        helm.find()
    except helm.NoHelm as reason:
        pytest.skip(str(reason))
    with ControlPlane(kubernetes, tmp_path_factory.mktemp("helm")) as running:
        yield running


def test_a_release_is_installed_upgraded_and_removed_and_keeps_what_the_extender_wrote(plane: ControlPlane) -> None:
    def run(*words: str) -> str:
        command = [str(helm.find()), "--kubeconfig", plane.kubeconfig(), "--namespace", render.NAMESPACE, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    chart = str(render.CHART)
    assert "STATUS: deployed" in run("install", "topogpu", chart, "--create-namespace")
    the_extender_writes(plane)
    assert "STATUS: deployed" in run("upgrade", "topogpu", chart, "--set", "scheduler.replicas=2")
    assert written(plane) == ("MTIz", ["MTIz"] * len(webhooks(plane)))
    assert plane.kubectl("get", "pdb", "-A", "-o", "name") == "poddisruptionbudget.policy/topogpu-scheduler\n"
    run("uninstall", "topogpu")
    left = plane.kubectl("get", "clusterroles,mutatingwebhookconfigurations", "-A", "-o", "name")
    assert "topogpu" not in left


def the_extender_writes(plane: ControlPlane) -> None:
    """The certificate into the Secret, and whom to trust into the webhook's registration."""
    secret = ["secret", "topogpu-webhook", "--namespace", render.NAMESPACE]
    plane.kubectl("patch", *secret, "--type", "merge", "--patch", '{"data": {"tls.crt": "MTIz"}}')
    trusting = [{"op": "add", "path": f"/webhooks/{n}/clientConfig/caBundle", "value": "MTIz"} for n in range(3)]
    registration = ["mutatingwebhookconfiguration", "topogpu-webhook"]
    plane.kubectl("patch", *registration, "--type", "json", "--patch", yaml.safe_dump(trusting))


def written(plane: ControlPlane) -> tuple[str, list[str]]:
    secret = ["secret", "topogpu-webhook", "--namespace", render.NAMESPACE]
    certificate = plane.kubectl("get", *secret, "--output", "jsonpath={.data.tls\\.crt}")
    return certificate, [webhook["clientConfig"].get("caBundle", "") for webhook in webhooks(plane)]


def webhooks(plane: ControlPlane) -> list[dict[str, dict[str, str]]]:
    text = plane.kubectl("get", "mutatingwebhookconfiguration", "topogpu-webhook", "-o", "yaml")
    found: list[dict[str, dict[str, str]]] = yaml.safe_load(text)["webhooks"]
    return found
