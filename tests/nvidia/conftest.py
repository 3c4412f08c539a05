"""A driver for each test, and NVIDIA's programs as Go built them."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from simulation.machines.description import MachineDescription
from tests.cluster.binaries import NoBinaries
from tests.node.binaries import find as node_binaries
from tests.nvidia.driver import Driver
from tests.nvidia.programs import Programs, find
from tests.nvidia.runtime import Host, NoHost, Runtimes

MakeDriver = Callable[[MachineDescription], Driver]
MakeHost = Callable[[MachineDescription], Host]


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


@pytest.fixture(scope="session")
def runtimes(tmp_path_factory: pytest.TempPathFactory) -> Runtimes:
    look = tmp_path_factory.mktemp("look") / "look"
    source = Path(__file__).with_name("look.c")
    subprocess.run(["cc", "-O1", "-static", "-o", str(look), str(source)], check=True)
    try:
        found = node_binaries()
    except NoBinaries as reason:
        pytest.skip(str(reason))
    return Runtimes(found.search_path, found.path("runc"), look)


@pytest.fixture
def host_of(programs: Programs, runtimes: Runtimes, driver_of: MakeDriver) -> Iterator[MakeHost]:
    """Makes a host of the machine, with NVIDIA's runtime."""
    made: list[Host] = []

    def make(description: MachineDescription) -> Host:
        try:
            made.append(Host(programs, runtimes, driver_of(description)))
        except NoHost as reason:
            pytest.skip(str(reason))
        return made[-1]

    yield make
    for each in made:
        each.close()
