"""Sets of machines with the labels of their places: what groups of pods that span machines are tried on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from proto.annotations.keys import NODE_CLIQUE
from simulation.machines import load

ONE_MACHINE = "zero"
"""The cluster of a fabric that joins no other machine."""
BLOCK, RACK = "cloud.provider.com/topology-block", "cloud.provider.com/topology-rack"
"""The labels of Kueue's documents (sigs.k8s.io/kueue, Topology Aware Scheduling)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSet:
    """`racks` have the number of machines in each; all are of one kind, and in one block."""

    title: str
    machine: str
    racks: tuple[int, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlacedMachine:
    """A kind of machine, and the labels of its node."""

    kind: str
    labels: Mapping[str, str]


SETS: Mapping[str, MachineSet] = {
    "gb200-nvl72": MachineSet(
        title="A rack of 18 trays with 4 GB200 GPUs, in one NVLink clique",
        machine="gb200-nvl72-tray",
        racks=(18,),
        sources=("nvidia.com/en-us/data-center/gb200-nvl72: 36 Grace CPUs and 72 GPUs in 18 compute trays",),
    ),
    "hgxh100-two-racks": MachineSet(
        title="Two racks of 4 HGX H100 machines, joined by a network",
        machine="hgxh100-8x-h100-80g",
        racks=(4, 4),
        sources=("NVIDIA DGX SuperPOD reference architecture with DGX H100: four machines of 8 GPUs in a rack",),
    ),
}


def placed(name: str, number: int = 0) -> tuple[PlacedMachine, ...]:
    """Returns the machines of a set. `number` makes another block of the same kind, with a fabric of its own."""
    found = SETS[name]
    fabric = load(found.machine).fabric
    joins = fabric is not None and fabric.cluster != ONE_MACHINE
    clique = {NODE_CLIQUE: f"{fabric.cluster}.{fabric.clique + number}"} if fabric is not None and joins else {}
    return tuple(
        PlacedMachine(found.machine, {BLOCK: f"block-{number + 1}", RACK: f"rack-{rack + 1}", **clique})
        for rack, machines in enumerate(found.racks)
        for _ in range(machines)
    )


def expanded(named: Sequence[str]) -> Iterator[PlacedMachine]:
    """Yields a machine for each name, and those of each set."""
    for number, name in enumerate(named):
        yield from placed(name, number) if name in SETS else (PlacedMachine(name, {}),)
