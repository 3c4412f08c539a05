"""Who sees the status page, as a real API server says it."""

import time
import uuid
from collections.abc import AsyncIterator

import pytest

from proto.kubernetes.client import ApiServer
from scheduler_ext.status.access import PATH, AccessRefusal, TokenAccess
from tests.cluster.control_plane import ControlPlane
from tests.cluster.peers import Peer, real

pytestmark = pytest.mark.cluster
GROUP = "rbac.authorization.k8s.io"


@pytest.fixture
async def own(plane: ControlPlane) -> AsyncIterator[Peer]:
    async with real(plane) as peer:
        yield peer


async def refusal(peer: Peer, token: str) -> AccessRefusal | None:
    """Nothing is remembered from the question before."""
    api = await ApiServer.connect(peer.kubeconfig("admin"))
    try:
        return await TokenAccess(api, time.monotonic).refusal(token)
    finally:
        await api.close()


async def test_a_service_account_sees_the_page_once_it_may_get_its_url(own: Peer) -> None:
    namespace = await own.namespace(f"test-{uuid.uuid4().hex[:8]}")
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    await own.create(accounts, {"metadata": {"name": "viewer"}})
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = (await own.create(f"{accounts}/viewer/token", request))["status"]["token"]
    user = f"system:serviceaccount:{namespace}:viewer"
    assert await refusal(own, token) == AccessRefusal(403, f"user {user} has no right to get {PATH}")
    assert await refusal(own, f"{token}x") == AccessRefusal(401, "the API server does not accept this token")
    roles = f"/apis/{GROUP}/v1"
    rule = {"nonResourceURLs": [PATH], "verbs": ["get"]}
    await own.create(f"{roles}/clusterroles", {"metadata": {"name": namespace}, "rules": [rule]})
    subject = {"kind": "ServiceAccount", "name": "viewer", "namespace": namespace}
    role = {"apiGroup": GROUP, "kind": "ClusterRole", "name": namespace}
    binding = {"metadata": {"name": namespace}, "roleRef": role, "subjects": [subject]}
    await own.create(f"{roles}/clusterrolebindings", binding)
    deadline = time.monotonic() + 30
    while await refusal(own, token) is not None:  # the API server reads its roles from a watch
        assert time.monotonic() < deadline
