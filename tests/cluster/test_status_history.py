"""The history of the status page on a real API server, with the rights that the chart gives."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from daemonset import helm, render
from proto.kubernetes.client import ApiServer
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane
from tests.cluster.peers import real
from tests.cluster.shipped import RBAC, SCHEDULER, apply, identity, kubeconfig, remove
from tests.polling import until
from tests.scheduler_ext.status.test_history_object import PLACE, replica_with

pytestmark = pytest.mark.cluster

NAME = PLACE.partition("/")[2]


@pytest.fixture
def plane(kubernetes: Binaries, tmp_path: Path) -> Iterator[ControlPlane]:
    """One of its own: other tests remove what is shipped."""
    try:
        helm.find()
    except helm.NoHelm as reason:
        pytest.skip(str(reason))
    with ControlPlane(kubernetes, tmp_path) as running:
        yield running


async def test_a_new_pod_goes_on_with_the_rights_of_the_chart(plane: ControlPlane, tmp_path: Path) -> None:
    manifests = [each.content for each in render.render("", "--set", "statusPage.enabled=true")]
    shipped = [each for each in manifests if each["kind"] in RBAC or each["metadata"]["name"] == NAME]
    async with real(plane) as peer:
        await apply(peer, shipped)
        config = kubeconfig(plane, await identity(peer, SCHEDULER, "history"), tmp_path / "kubeconfig")
        for number in range(3):
            async with replica_with(await ApiServer.connect(config), f"p{number}") as leader:
                await until(partial(leader.counts, number))
                await leader.hour(1.0 + 10_000 * number)

                async def written(hours: int = number + 1) -> bool:
                    _, found = await peer.send("GET", f"/api/v1/namespaces/topogpu-system/configmaps/{NAME}")
                    return f'"ml":{hours}.' in found.get("data", {}).get("history", "")

                await until(written)
        await remove(peer, shipped)
