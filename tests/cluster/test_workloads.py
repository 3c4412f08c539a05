"""A real API server refuses the workloads that the embedded one refuses."""

from typing import Any

import pytest

from simulation.apiserver.kinds import BY_NAME
from tests.cluster.peers import Peer
from tests.simulation.apiserver.test_workloads import WRONG

pytestmark = pytest.mark.cluster

MANAGED_BY_SINCE = 32
"""From this minor release on `spec.managedBy` of a Job is kept by default; earlier API servers drop it unread."""


@pytest.mark.parametrize("peer", ["real"], indirect=True)
@pytest.mark.parametrize("item", [item for item, _ in WRONG], ids=[problem for _, problem in WRONG])
async def test_a_real_api_server_refuses_the_workload(peer: Peer, item: dict[str, Any]) -> None:
    if "managedBy" in item["spec"] and await peer.minor() < MANAGED_BY_SINCE:
        pytest.skip(f"spec.managedBy is read from Kubernetes 1.{MANAGED_BY_SINCE} on")
    kind = BY_NAME[item["kind"]]
    path = f"{kind.root}/namespaces/default/{kind.plural}?dryRun=All"
    status, answer = await peer.send("POST", path, {"apiVersion": kind.group_version} | item)
    assert status in {400, 422}, answer
