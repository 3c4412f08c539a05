"""A node for each test, with the library built from $HAMI_CORE_SOURCE."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.binaries import NoBinaries
from tests.hami_core.node import CoreNode, SimulatedGpu
from tests.hami_core.programs import Programs, find


@pytest.fixture(scope="session")
def programs() -> Programs:
    if os.geteuid():
        pytest.skip("containers are mount and PID namespaces, which needs root")
    try:
        return find()
    except NoBinaries as reason:
        pytest.skip(str(reason))


@pytest.fixture
def core_node(programs: Programs, tmp_path: Path) -> Iterator[Callable[..., CoreNode]]:
    """Makes the node of the given GPUs, and ends its containers."""
    nodes: list[CoreNode] = []

    def make(*gpus: SimulatedGpu, library: Path | None = None) -> CoreNode:
        folder = tmp_path / f"node-{len(nodes)}"
        folder.mkdir()
        nodes.append(CoreNode(programs, folder, gpus, library))
        return nodes[-1]

    yield make
    for each in nodes:
        each.close()
