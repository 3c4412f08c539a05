"""The manifest that cleans the nodes, and the command it runs there, on a real API server under our own policies."""

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from daemonset import render
from proto.annotations import keys
from proto.annotations.node_lock import encode_lock_uid
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane
from tests.cluster.peers import Peer, real
from tests.cluster.shipped import DAEMON, MERGE_PATCH, POLICIES, apply, documents, identity, kubeconfig
from tests.polling import until

pytestmark = pytest.mark.cluster
POLICIES_SINCE = 30
LOCK = "2030-01-01T00:00:00Z,ml,train"
WRITTEN = {
    keys.NODE_REGISTER: "[]",
    keys.NODE_SCORE: "[]",
    keys.NODE_ALLOCATION: "slots",
    keys.NODE_HANDSHAKE: "Reported 2030-01-01 00:00:00.000000 +0000",
    keys.NODE_LOCK: LOCK,
    keys.NODE_LOCK_UID: encode_lock_uid(LOCK, "uid-1"),
}
ANOTHERS = {keys.DEVICE_CORDON: "GPU-x"}


@pytest.fixture
def plane(kubernetes: Binaries, tmp_path: Path) -> Iterator[ControlPlane]:
    """One of its own: the shipped policies stop what other tests do."""
    with ControlPlane(kubernetes, tmp_path / "control-plane") as running:
        yield running


@pytest.fixture
async def peer(plane: ControlPlane) -> AsyncIterator[Peer]:
    async with real(plane) as server:
        plane.kubectl("apply", "-k", str(render.HERE / "uninstall"))
        await apply(server, documents(*POLICIES) if await server.minor() >= POLICIES_SINCE else [])
        yield server


async def test_the_cleaner_of_a_node_takes_away_what_is_ours_there(
    peer: Peer, plane: ControlPlane, tmp_path: Path
) -> None:
    node = f"gpu-{uuid.uuid4().hex[:8]}"
    cleaner = await identity(peer, DAEMON, node)
    status, _ = await peer.send(
        "PATCH", f"/api/v1/nodes/{node}", {"metadata": {"annotations": WRITTEN | ANOTHERS}}, MERGE_PATCH
    )
    assert status == 200
    command = ["uninstall-node", "--node-name", node, "--host-root", str(tmp_path)]
    command += ["--kubeconfig", kubeconfig(plane, cleaner, tmp_path / "kubeconfig")]

    async def cleaned() -> bool:
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "deviceplugin", *command)
        return await process.wait() == 0

    await until(cleaned)  # the server takes a moment to know a new role
    _, answer = await peer.send("GET", f"/api/v1/nodes/{node}")
    assert answer["metadata"]["annotations"] == ANOTHERS
