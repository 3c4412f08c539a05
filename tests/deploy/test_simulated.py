"""What docs/quick-start.md does from its step 3 on, and every mark that the GPUs are not real."""

from collections.abc import Iterator

import pytest

from tests.deploy import tenants
from tests.deploy.cluster import Cluster
from tests.deploy.installed import CHART, SYSTEM, daemon, helm_uninstalls, rolled_out

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]


@pytest.fixture
def simulating(cluster: Cluster) -> Iterator[Cluster]:
    cluster.kubectl("label node --all topogpu.io/simulated=true")
    cluster.helm(
        f"install topogpu {CHART} --namespace topogpu-system --create-namespace --set simulation.machine=dgx-a100"
    )
    rolled_out(cluster)
    yield cluster
    helm_uninstalls(cluster)
    cluster.kubectl("label node --all topogpu.io/simulated-")


def test_a_pod_gets_two_simulated_gpus_and_everything_says_that_they_are_not_real(simulating: Cluster) -> None:
    simulating.apply(tenants.deployment("train", gpus=2, replicas=1))
    simulating.kubectl("rollout status deployment/train --timeout 120s")
    [given] = tenants.given(simulating, "train")
    assert (given.uuids, len(given.uuids), given.files) == (given.decided, 2, 0)
    assert simulating.get("node node-a")["metadata"]["annotations"]["topogpu.io/simulated"] == "true"
    of_the_daemon = f"{SYSTEM} logs {daemon(simulating)} -c"
    assert "none of them real" in simulating.kubectl(f"{of_the_daemon} simulate")
    assert "the GPUs of this node are simulated" in simulating.kubectl(f"{of_the_daemon} device-plugin")
    doctor = f"{SYSTEM} exec {daemon(simulating)} -- python -m deviceplugin doctor --config /etc/topogpu/settings.yaml"
    assert "They are simulated: none of them is real" in " ".join(simulating.kubectl(doctor).split())
    reasons = "get events -A -o jsonpath={.items[*].reason}"
    simulating.until(lambda: "GPUsSimulated" in simulating.kubectl(reasons), "the Node's event")
    simulating.kubectl("delete deployment/train")
