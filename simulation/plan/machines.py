"""Clusters that are described: so many machines of a kind."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from deviceplugin.machine.discovery import NodeSharing, discover_devices
from deviceplugin.machine.features import feature_labels
from deviceplugin.machine.topology import Topology, build_topology, pair_scores
from proto.annotations import keys
from proto.annotations.node_allocation import AllocationMode
from proto.annotations.node_limits import NodeLimits
from proto.annotations.node_register import encode_register, encode_scores
from proto.devices import Device, DeviceUUID, PairScores
from proto.kubernetes.objects import Node, NodeStatus, ObjectMeta
from simulation import machines
from simulation.machines.described import describe_reading
from simulation.machines.description import MachineDescription, cpu_numbers
from simulation.machines.sets import SETS, placed
from simulation.machines.yaml_tree import MachineDescriptionError
from simulation.plan.links import LinkSpeeds
from simulation.plan.objects import Described

MOST_NODES = 10_000
MOST_DIGITS = 6
MIB_A_CPU = 4096
"""Memory of a node for each CPU: machine descriptions name CPUs and no memory."""
PODS_A_NODE = 110
"""Kubelet's default."""


class UnknownMachine(ValueError):
    """The message names the part of the text and what it could mean."""


def read_cluster(text: str, prefix: str = "") -> Described:
    """Read `8x:dgx-a100,20x:l40s`. `prefix` begins the names of the nodes. Raises UnknownMachine."""
    found, counts = Described(), dict[str, int]()
    for part in filter(None, (part.strip() for part in text.split(","))):
        number, _, name = part.rpartition("x:")
        if number and not (number.isascii() and number.isdigit() and len(number) < MOST_DIGITS):
            raise UnknownMachine(f"{part!r}: expected COUNTx:MACHINE, such as 8x:dgx-a100")
        count = int(number or 1)
        if not 0 < count <= MOST_NODES - len(found.nodes):
            raise UnknownMachine(f"{part!r}: a plan has 1 to {MOST_NODES} nodes")
        if name in SETS:
            found = found.beside(_set_of(name, count, prefix))
            continue
        machine = load(name)
        first = counts.get(machine.id, 0)
        counts[machine.id] = first + count
        found = found.beside(_several(machine, [f"{prefix}{machine.id}-{first + n + 1}" for n in range(count)]))
    if not found.nodes:
        raise UnknownMachine(f"{text!r} names no machine; write for example 8x:dgx-a100")
    return found


def _set_of(name: str, count: int, prefix: str) -> Described:
    """Returns this many sets, each in a block of its own."""
    found, machine = Described(), load(SETS[name].machine)
    for number in range(count):
        for position, each in enumerate(placed(name, number), 1):
            found = found.beside(_several(machine, [f"{prefix}{name}-{number + 1}-{position}"], each.labels))
    return found


def load(name: str) -> MachineDescription:
    """Raises UnknownMachine."""
    try:
        return machines.load(name)
    except MachineDescriptionError as error:
        raise UnknownMachine(f"{error}; sets are {', '.join(SETS)}") from error


def _several(
    machine: MachineDescription, names: Sequence[str], labels: Mapping[str, str] = MappingProxyType({})
) -> Described:
    nodes, known = [], dict[frozenset[DeviceUUID], float]()
    for name in names:
        reading = describe_reading(machine, name)
        topology = build_topology(reading)
        devices = discover_devices(reading, NodeSharing())
        scores = pair_scores(topology, [device.uuid for device in devices])
        cpus = sum(len(cpu_numbers(numa.cpus)) for numa in machine.host.numa)
        node = node_of(name, devices, scores, cpu_milli=1000 * cpus, memory_mib=MIB_A_CPU * cpus)
        clique = feature_labels(reading, NodeSharing()).get(keys.NODE_CLIQUE)
        node.metadata.labels |= {keys.NODE_HOSTNAME: name, **({keys.NODE_CLIQUE: clique} if clique else {}), **labels}
        nodes.append(node)
        known.update(_speeds(topology))
    return Described(nodes=tuple(nodes), links=LinkSpeeds(known))


def _speeds(topology: Topology) -> Iterator[tuple[frozenset[DeviceUUID], float]]:
    """Yields the slower of both directions of each pair whose directions are known."""
    for a, first in enumerate(topology.gpus):
        for b, second in enumerate(topology.gpus[:a]):
            there, back = topology.bandwidth_gbps[a][b], topology.bandwidth_gbps[b][a]
            if there is not None and back is not None:
                yield frozenset((first.uuid, second.uuid)), min(there, back)


def node_of(name: str, devices: Sequence[Device], scores: PairScores, *, cpu_milli: int, memory_mib: int) -> Node:
    """Returns a node on which our daemon has written these GPUs."""
    annotations = {}
    if devices:
        annotations = {
            keys.NODE_REGISTER: encode_register(devices),
            keys.NODE_SCORE: encode_scores(scores, [device.uuid for device in devices]),
            keys.NODE_ALLOCATION: AllocationMode.SLOTS.value,
            keys.NODE_LIMITS: NodeLimits.HAMI_CORE.value,
        }
    allocatable: dict[str, str | int | float] = {
        "cpu": f"{cpu_milli}m",
        "memory": f"{memory_mib}Mi",
        "pods": PODS_A_NODE,
    }
    if devices:
        allocatable[keys.RESOURCE_COUNT] = sum(device.replicas for device in devices)
    return Node(metadata=ObjectMeta(name=name, annotations=annotations), status=NodeStatus(allocatable=allocatable))
