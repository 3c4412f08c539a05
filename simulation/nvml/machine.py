"""A machine file as the stand-in in Python reads it, once; machine.c reads the same."""

from dataclasses import dataclass, field

_GPU_WORDS = 20
SWITCH = 2
"""Kind of a link that ends at an NVSwitch."""
_HEALTHY_FABRIC = (3, 0)
"""Its state is completed, its status success."""


class MachineFileError(Exception):
    """The machine file cannot be read, in one sentence."""


@dataclass(frozen=True, slots=True)
class Mig:
    """One MIG device: GPU instance, compute instance, and the slices of both."""

    uuid: str
    profile: str
    memory_mib: int
    gi: int
    ci: int
    gpu_slices: int
    compute_slices: int


@dataclass(slots=True)
class Gpu:
    """The words of its `gpu` line, and what the lines after it add."""

    words: list[str]
    name: str
    cpus: str = ""
    nodes: str = ""
    links: list[tuple[int, str]] = field(default_factory=list)
    """Kind of the far end, and its bus."""
    migs: list[Mig] = field(default_factory=list)
    fabric: tuple[int, int, int, bytes] | None = None
    """State, status, clique, UUID of the cluster."""
    usage: tuple[int, ...] = (0,) * 9
    """Percent of the SMs and of the memory's time, degrees Celsius, milliwatts, MHz of SMs and memory, percent of
    encoder and decoder, reasons for lower clocks."""
    counters: dict[int, int] = field(default_factory=dict)
    """Values of fields by their number."""
    processes: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Which of the three lists, pid, MiB, percent of the SMs."""

    @property
    def used_mib(self) -> int:
        return sum(used for _, _, used, _ in self.processes)

    def number(self, word: int) -> int:
        """One of the numbers after uuid, bus and PCI id, by its place on the `gpu` line."""
        return int(self.words[word])


@dataclass(slots=True)
class Machine:
    """Versions and the like by their word, GPUs in index order, PCIe levels of pairs, and what it refuses to tell."""

    facts: dict[str, str] = field(default_factory=dict)
    gpus: list[Gpu] = field(default_factory=list)
    levels: dict[tuple[int, int], int] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)


def read_machine(text: str) -> Machine:
    """Raises MachineFileError."""
    lines = [line.partition(" ")[::2] for line in text.splitlines() if line and not line.startswith("#")]
    if not lines or lines[-1][0] != "end":
        raise MachineFileError("the machine file is cut short: its last line is not `end`")
    machine = Machine()
    try:
        for word, rest in lines:
            _read(machine, word, rest)
    except (ValueError, IndexError) as e:
        raise MachineFileError(f"the machine file cannot be read: {e}") from e
    return machine


def _read(machine: Machine, word: str, rest: str) -> None:
    parts = rest.split(" ")
    match word:
        case "gpu":
            machine.gpus.append(Gpu(parts[:_GPU_WORDS], " ".join(parts[_GPU_WORDS:])))
        case "cpus":
            machine.gpus[int(parts[0])].cpus = parts[1]
        case "nodes":
            machine.gpus[int(parts[0])].nodes = parts[1]
        case "link":
            machine.gpus[int(parts[0])].links.append((int(parts[1]), parts[2]))
        case "level":
            machine.levels[int(parts[0]), int(parts[1])] = int(parts[2])
        case "mig":
            machine.gpus[int(parts[0])].migs.append(Mig(parts[1], parts[2], *map(int, parts[3:8])))
        case "fabric":
            state, status, clique = map(int, parts[1:4])
            machine.gpus[int(parts[0])].fabric = (state, status, clique, bytes.fromhex(parts[4]))
        case "usage":
            machine.gpus[int(parts[0])].usage = tuple(map(int, parts[1:10]))
        case "counter":
            machine.gpus[int(parts[0])].counters[int(parts[1])] = int(parts[2])
        case "process":
            process_list, pid, used, percent = map(int, parts[1:5])
            machine.gpus[int(parts[0])].processes.append((process_list, pid, used, percent))
        case "refuse":
            machine.refused.add(parts[0])
        case _:
            machine.facts[word] = rest


def joined(a: Gpu, b: Gpu) -> bool:
    """Whether NVLinks lead from one to the other, directly or through switches."""
    if 1 in (a.number(9), b.number(9)):
        return False
    direct = any(bus == b.words[2] for _, bus in a.links)
    switched = all(any(kind == SWITCH for kind, _ in gpu.links) for gpu in (a, b))
    one_fabric = a.fabric == b.fabric and (a.fabric is None or a.fabric[:2] == _HEALTHY_FABRIC)
    return direct or (switched and one_fabric)
