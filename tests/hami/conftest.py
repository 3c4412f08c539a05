"""A lab of its own for each test: what is installed there stops what other tests do."""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from daemonset import helm as helm_program
from proto.kubernetes.client import ApiServer
from simulation.watching import ClusterView
from tests.cluster.binaries import Binaries, NoBinaries
from tests.cluster.control_plane import ControlPlane, Program, free_port
from tests.cluster.peers import real
from tests.hami.cluster import Lab
from tests.hami.programs import Hami, find


@pytest.fixture(scope="session")
def hami() -> Hami:
    if os.geteuid():
        pytest.skip("HAMi's plugin gets a root file system of its own, which needs root")
    try:
        helm_program.find()
        return find()
    except (NoBinaries, helm_program.NoHelm) as reason:
        pytest.skip(str(reason))


@pytest.fixture
def plane(kubernetes: Binaries, tmp_path: Path) -> Iterator[ControlPlane]:
    with ControlPlane(kubernetes, tmp_path / "control-plane") as running:
        yield running


@pytest.fixture
async def lab(hami: Hami, plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Lab]:
    port = free_port()
    words = [plane.binary("kubectl"), "--kubeconfig", plane.kubeconfig(), "proxy", f"--port={port}"]
    proxy = Program([*words, "--disable-filter=true"], tmp_path / "proxy.log")
    api = await ApiServer.connect(plane.kubeconfig())
    view = ClusterView(api)
    # Sockets lie below it, and the path of one has at most 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="tg", dir="/tmp"))
    try:
        async with real(plane) as peer:
            found = Lab(plane, peer, api, view, hami, folder, f"http://127.0.0.1:{port}")
            view.start()
            try:
                yield found
            finally:
                await found.stop()
    finally:
        await view.stop()
        await api.close()
        proxy.stop()
        shutil.move(folder, tmp_path / "lab")
