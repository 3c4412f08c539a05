"""A driver for each test, and NVIDIA's programs as Go built them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from simulation.machines.description import MachineDescription
from tests.cluster.binaries import NoBinaries
from tests.nvidia.driver import Driver
from tests.nvidia.programs import Programs, find

MakeDriver = Callable[[MachineDescription], Driver]


@pytest.fixture(scope="session")
def programs() -> Programs:
    if os.geteuid():
        pytest.skip("NVIDIA's programs see the simulated driver in mount namespaces, which need root")
    try:
        return find()
    except NoBinaries as reason:
        pytest.skip(str(reason))


@pytest.fixture
def driver_of(programs: Programs, tmp_path: Path) -> MakeDriver:
    assert programs
    made: list[Driver] = []

    def make(description: MachineDescription) -> Driver:
        made.append(Driver(description, tmp_path / f"driver-{len(made)}"))
        return made[-1]

    return make
