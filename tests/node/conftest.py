"""One real node for the whole session; before every test it is on, with a fresh daemon to come, and without pods."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.cluster.binaries import NoBinaries
from tests.cluster.control_plane import ControlPlane
from tests.cluster.peers import Peer, real
from tests.cluster.scheduling import grant_rights, placing
from tests.node import binaries
from tests.node.image import NoImage, write_image
from tests.node.machine import missing
from tests.node.pods import Pods, node_is_ready
from tests.node.real_node import DAEMON_USER, RealNode

_DAEMON_RIGHTS = (
    ("", "nodes", "get list watch patch"),
    ("", "nodes/status", "patch"),
    ("", "pods", "get list watch patch"),
    ("", "events", "create"),
    ("", "pods/eviction", "create"),
    ("coordination.k8s.io", "leases", "get patch"),
)
"""What docs/security.md says the daemon needs, to evict pods too."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is about slots is left out on a runtime that cannot have them."""
    if os.environ.get("NODE_RUNTIME") != "cri-o-1.33":
        return
    without = pytest.mark.skip(reason="slots need a runtime whose CDI devices replace variables")
    for item in items:
        if item.get_closest_marker("node") and "immediate" not in item.name and "without_slots" not in item.nodeid:
            item.add_marker(without)


@pytest.fixture(scope="session")
def machine(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    """Skipped, with the reason, where a machine of its own or its programs cannot be had."""
    lacking = missing()
    if lacking:
        pytest.skip(f"a real kubelet cannot be run here: {lacking}")
    try:
        found = binaries.find(os.environ.get("KUBERNETES_RELEASE", ""), os.environ.get("NODE_RUNTIME", ""))
        archive = write_image(tmp_path_factory.mktemp("image"))
    except (NoBinaries, NoImage) as reason:
        pytest.skip(str(reason))
    node = RealNode(found, plane, archive)
    try:
        yield node
    finally:
        node.discard(logs=tmp_path_factory.mktemp("node"))


@pytest.fixture
async def real_peer(plane: ControlPlane) -> AsyncIterator[Peer]:
    async with real(plane) as peer:
        yield peer


@pytest.fixture
async def real_kubelet(machine: RealNode, real_peer: Peer) -> AsyncIterator[RealNode]:
    """kubelet and its runtime at work, no plugin registered. The test stops the plugins that it starts."""
    await asyncio.to_thread(machine.ensure_kubelet)
    await node_is_ready(real_peer)
    yield machine
    await asyncio.to_thread(machine.stop_daemon)


@pytest.fixture
async def pods(real_kubelet: RealNode, real_peer: Peer) -> AsyncIterator[Pods]:
    """A namespace of the test's own, whose pods have left the node at its end."""
    await grant_rights(real_peer, DAEMON_USER, _DAEMON_RIGHTS)
    namespace = await real_peer.namespace(f"test-{uuid.uuid4().hex[:8]}")
    made = Pods(real_kubelet, real_peer, namespace)
    yield made
    await asyncio.to_thread(real_kubelet.ensure_kubelet)
    await made.clear()


@pytest.fixture
async def scheduled(plane: ControlPlane, pods: Pods, tmp_path: Path) -> AsyncIterator[Pods]:
    """`pods`, which kube-scheduler and our extender bind."""
    async with placing(plane, pods.peer, tmp_path, pods.namespace):
        yield pods
