"""The real control plane, started once for all tests that ask for it, and the peers that must answer alike."""

import os
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from proto.kubernetes.client import ApiServer
from tests.cluster.binaries import Binaries, NoBinaries, find
from tests.cluster.control_plane import ControlPlane
from tests.cluster.peers import Peer, embedded, real


@pytest.fixture(scope="session")
def kubernetes() -> Binaries:
    """Of the release $KUBERNETES_RELEASE, by default the newest."""
    try:
        return find(os.environ.get("KUBERNETES_RELEASE", ""))
    except NoBinaries as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def plane(kubernetes: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(kubernetes, tmp_path_factory.mktemp("control-plane")) as running:
        yield running


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.cluster)])
async def peer(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Peer]:
    """Both must answer alike."""
    if request.param == "embedded":
        async with embedded(tmp_path) as server:
            yield server
    else:
        plane: ControlPlane = request.getfixturevalue("plane")
        async with real(plane) as server:
            yield server


@pytest.fixture
async def api(peer: Peer) -> AsyncIterator[ApiServer]:
    client = await ApiServer.connect(peer.kubeconfig("admin"))
    yield client
    await client.close()


@pytest.fixture
async def namespace(peer: Peer) -> str:
    """A new one for each test: the real server is shared."""
    return await peer.namespace(f"test-{uuid.uuid4().hex[:8]}")
