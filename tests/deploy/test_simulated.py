"""The steps of docs/simulation.md on kind or minikube, typed from the third on, and the marks of simulated GPUs."""

import re
from collections.abc import Iterator

import pytest

from tests.deploy import tenants
from tests.deploy.cluster import ROOT, Cluster
from tests.deploy.installed import SYSTEM, daemon
from tests.documented_commands import Shown, is_shown, shown_commands

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]


def steps() -> dict[int, list[Shown]]:
    """What the page shows below each number."""
    page = (
        (ROOT / "docs" / "simulation.md")
        .read_text(encoding="utf-8")
        .partition("\n## On kind or minikube\n")[2]
        .partition("\n### ")[0]
    )
    _, *parts = re.split(r"^(\d+)\. ", page, flags=re.MULTILINE)
    return {int(number): list(shown_commands(text)) for number, text in zip(parts[::2], parts[1::2], strict=True)}


def types(cluster: Cluster, step: int) -> None:
    """Every command of the step does what the page says."""
    for shown in steps()[step]:
        said = cluster.shell(shown.command)
        if shown.command.startswith("kubectl get nodes "):
            wait_until_shown(cluster, shown)
        else:
            assert is_shown(shown.output, said), said


def wait_until_shown(cluster: Cluster, shown: Shown) -> None:
    """Longer than the page says: this machine may be busy."""
    cluster.until(lambda: is_shown(shown.output, cluster.shell(shown.command)), shown.command)


@pytest.fixture
def simulating(cluster: Cluster) -> Iterator[Cluster]:
    with cluster.without_nvidia_runtime():
        types(cluster, 3)
        types(cluster, 4)
        yield cluster
        types(cluster, 6)
    cluster.until(lambda: not cluster.items(f"pods {SYSTEM}"), "all pods of ours have ended")
    cluster.kubectl("label node --all topogpu.io/simulated-")


def test_a_pod_gets_two_simulated_gpus_and_everything_says_that_they_are_not_real(simulating: Cluster) -> None:
    types(simulating, 5)
    assert re.search(r"^NVIDIA_VISIBLE_DEVICES=GPU-[^,]+,GPU-[^,]+$", simulating.kubectl("logs train"), re.MULTILINE)
    simulating.apply(tenants.deployment("serve", gpus=2, replicas=1))
    simulating.kubectl("rollout status deployment/serve --timeout 120s")
    [given] = tenants.given(simulating, "serve")
    assert (given.uuids, len(given.uuids), given.files) == (given.decided, 2, 0)
    assert simulating.get("node node-a")["metadata"]["annotations"]["topogpu.io/simulated"] == "true"
    of_the_daemon = f"{SYSTEM} logs {daemon(simulating)} -c"
    assert "none of them real" in simulating.kubectl(f"{of_the_daemon} simulate")
    assert "the GPUs of this node are simulated" in simulating.kubectl(f"{of_the_daemon} device-plugin")
    doctor = f"{SYSTEM} exec {daemon(simulating)} -- python -m deviceplugin doctor --config /etc/topogpu/settings.yaml"
    assert "They are simulated: none of them is real" in " ".join(simulating.kubectl(doctor).split())
    reasons = "get events -A -o jsonpath={.items[*].reason}"
    simulating.until(lambda: "GPUsSimulated" in simulating.kubectl(reasons), "the Node's event")
    simulating.kubectl("delete deployment/serve")
