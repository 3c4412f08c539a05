"""`gpu-machine/1`: one YAML file with everything that NVML would answer on one kind of machine."""

import re
import uuid
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

import msgspec

from proto.decoding import converted
from simulation.machines.yaml_tree import MOST_GPUS, SCHEMA, MachineDescriptionError, with_words_resolved, yaml_mapping

Level = Literal["INTERNAL", "PIX", "PXB", "PHB", "NODE", "SYS"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""The distance of two GPUs over PCIe, nearest first."""

P2pStatus = Literal[
    "OK",
    "CHIPSET_NOT_SUPPORTED",
    "GPU_NOT_SUPPORTED",
    "IOH_TOPOLOGY_NOT_SUPPORTED",
    "DISABLED_BY_REGKEY",
    "NOT_SUPPORTED",
    "UNKNOWN",
]
P2P_STATUSES: tuple[P2pStatus, ...] = get_args(P2pStatus)
"""The order is that of nvmlGpuP2PStatus_t: the position is NVML's number."""

FabricState = Literal["NOT_SUPPORTED", "NOT_STARTED", "IN_PROGRESS", "COMPLETED"]
FABRIC_STATES: tuple[FabricState, ...] = ("NOT_SUPPORTED", "NOT_STARTED", "IN_PROGRESS", "COMPLETED")
"""The order is that of nvmlGpuFabricState_t: the position is NVML's number."""

_BUS = re.compile(r"[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-7]")
_PCI_ID = re.compile(r"[0-9a-f]{4}:[0-9a-f]{4}")
_CC = re.compile(r"[0-9]{1,2}\.[0-9]{1,2}")
_CPUS = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*")
_PROFILE = re.compile(r"((?P<compute>[1-9])c\.)?(?P<gpu>[1-9])g\.[0-9]{1,3}gb(\+[a-z0-9.,+]+)?")
_MOST_MIG_DEVICES = 7

_UUID_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://topogpu.io/gpu-machine/1")


class NumaNode(msgspec.Struct, frozen=True, kw_only=True):
    """A NUMA node that has CPUs, in the kernel's cpulist form (`0-15,128-143`)."""

    id: int
    cpus: str


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The machine around the GPUs."""

    kind: Literal["metal", "vm", "wsl"]
    arch: str
    cpu: str
    interconnect: str = ""
    """Key of the socket-to-socket table: `intel-upi-skl`, `amd-epyc`, `nvidia-grace` ..."""
    numa: tuple[NumaNode, ...] = ()
    numa_without_cpus: str = ""


class Software(msgspec.Struct, frozen=True, kw_only=True):
    """Driver and library. `cuda` as NVML gives it: 12040 is 12.4."""

    library: Literal["present", "missing"]
    init: str
    driver: str = ""
    nvml: str = ""
    cuda: int = 0


class Pcie(msgspec.Struct, frozen=True, kw_only=True):
    """PCIe of one GPU. The zero of the optional fields means "as the maximum"."""

    gen: int
    width: int
    current_width: int = 0
    idle_gen: int = 0

    @property
    def width_now(self) -> int:
        """Returns lanes in use; a slot may have fewer than the GPU's maximum."""
        return self.current_width or self.width

    @property
    def gen_now(self) -> int:
        """Returns generation as read on an idle GPU."""
        return self.idle_gen or self.gen


class PeerAccess(msgspec.Struct, frozen=True):
    """NVML's peer status over PCIe; the one over NVLink follows from the links."""

    pci: P2pStatus


class MigDevice(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A MIG device of a GPU: `[1g.5gb, 4864, 7, 0]`."""

    profile: str
    memory_mib: int
    gi: int
    """GPU instance."""
    ci: int
    """Compute instance."""
    uuid: str = ""
    """Empty for one that follows from machine, GPU and instances."""

    @property
    def slices(self) -> tuple[int, int]:
        """Returns the slices of the GPU instance and of its compute instance: (2, 1) for `1c.2g.10gb`."""
        found = _PROFILE.fullmatch(self.profile)
        gpu = int(found["gpu"]) if found else 0
        return gpu, int(found["compute"] or gpu) if found else 0


class DescribedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, with the machine's defaults filled in."""

    bus: str
    """`00000000:1E:00.0`: eight digits of domain, upper case, as NVML returns it."""
    numa: int = -1
    """The number in sysfs; -1 is not known."""
    own_numa: int | None = None
    """The node the GPU's memory is (Grace machines), never the host's."""
    name: str
    pci_id: str
    arch: str
    cc: str
    memory_mib: int
    reserved_mib: int = 0
    pcie: Pcie | None = None
    c2c_mbps: int = 0
    ecc: bool = False
    mig: Literal["unsupported", "disabled", "enabled"] = "unsupported"
    mig_devices: tuple[MigDevice, ...] = ()
    p2p: PeerAccess = PeerAccess("UNKNOWN")

    @property
    def compute_capability(self) -> tuple[int, int]:
        """Returns major and minor."""
        major, minor = self.cc.split(".")
        return int(major), int(minor)

    @property
    def pci_class(self) -> int:
        """GeForce cards drive displays."""
        return 0x030000 if "GeForce" in self.name else 0x030200

    @property
    def multiprocessors_per_slice(self) -> int:
        """Returns the multiprocessors of one slice: 14 on an A100, 16 on an H100 (NVIDIA's MIG user guide, supported
        profiles).
        """
        return 14 if self.compute_capability < (9, 0) else 16


class PcieGroup(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs that are at most `level` apart."""

    level: Level
    gpus: tuple[int, ...]


class PcieLevels(msgspec.Struct, frozen=True, kw_only=True):
    """A pair takes the nearest level among the groups that hold both, else `otherwise`."""

    otherwise: Level = "SYS"
    groups: tuple[PcieGroup, ...] = ()


class DirectLinks(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """NVLinks that join two GPUs without a switch."""

    a: int
    b: int
    links: int


class DescribedSwitch(msgspec.Struct, frozen=True, kw_only=True):
    """An NVSwitch; `links` from each of `gpus`."""

    links: int
    gpus: tuple[int, ...]
    bus: str = ""
    """Empty where the address is hidden."""


class DescribedSwitches(msgspec.Struct, frozen=True, kw_only=True):
    """The machine's NVSwitches; hidden ones answer the address FFFFFFFF:FF:FF.0."""

    address: Literal["real", "hidden"] = "real"
    list: tuple[DescribedSwitch, ...]


class Nvlink(msgspec.Struct, frozen=True, kw_only=True):
    """`version` is NVML_NVLINK_VERSION's number, `mbps` per link and direction."""

    version: int
    mbps: int
    direct: tuple[DirectLinks, ...] = ()
    switches: DescribedSwitches | None = None


class DescribedFabric(msgspec.Struct, frozen=True, kw_only=True):
    """Registration with the NVLink fabric. A zero cluster is healthy on one machine."""

    state: FabricState
    status: str = "SUCCESS"
    """A name of nvmlReturn_t, without NVML_."""
    cluster: str = "zero"
    clique: int = 0


class LinkEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The place where one NVLink of a GPU ends: at GPU `peer`, or at a switch (`peer` is None)."""

    peer: int | None
    bus: str
    """Remote address; empty where it is hidden."""


class MachineDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of machine. GPUs are in NVML index order."""

    id: str
    title: str
    sources: tuple[str, ...] = ()
    notes: str = ""
    composite: bool = False
    assumed: tuple[str, ...] = ()
    host: Host
    software: Software
    gpus: tuple[DescribedGpu, ...]
    pcie_levels: PcieLevels = PcieLevels()
    nvlink: Nvlink | None = None
    fabric: DescribedFabric | None = None
    unsupported: frozenset[str] = frozenset()
    """NVML calls, `field:N` or `nvlink` that answer NOT_SUPPORTED."""
    topo_m: tuple[tuple[str, ...], ...] = ()
    """The matrix `nvidia-smi topo -m` prints, X on the diagonal."""

    def level(self, a: int, b: int) -> Level:
        """Returns the PCIe level of two different GPUs."""
        shared = [g.level for g in self.pcie_levels.groups if a in g.gpus and b in g.gpus]
        return min(shared, key=LEVELS.index, default=self.pcie_levels.otherwise)

    def links(self, index: int) -> tuple[LinkEnd, ...]:
        """Returns the ends of one GPU's NVLinks, in link order: direct ones first, then switches."""
        return tuple(self._link_ends(index))

    def _link_ends(self, index: int) -> Iterator[LinkEnd]:
        if self.nvlink is None:
            return
        for edge in self.nvlink.direct:
            if index in (edge.a, edge.b):
                peer = edge.b if index == edge.a else edge.a
                yield from [LinkEnd(peer=peer, bus=self.gpus[peer].bus)] * edge.links
        switches = self.nvlink.switches
        for switch in switches.list if switches else ():
            if index in switch.gpus:
                hidden = switches is not None and switches.address == "hidden"
                yield from [LinkEnd(peer=None, bus="" if hidden else switch.bus)] * switch.links

    def switch_links(self, index: int) -> int:
        """Returns how many NVLinks of one GPU end at a switch."""
        return sum(end.peer is None for end in self.links(index))


def gpu_uuid(machine_id: str, index: int, instance: str = "") -> str:
    """Returns a stable UUID that belongs to no real card; `instance` distinguishes machines of one kind."""
    return f"GPU-{uuid.uuid5(_UUID_NAMESPACE, f'{machine_id}/{instance}/{index}')}"


def mig_uuid(machine_id: str, index: int, mig: MigDevice, instance: str = "") -> str:
    """Returns the MIG device's own UUID, else a stable one in the form of drivers since 470."""
    return mig.uuid or f"MIG-{uuid.uuid5(_UUID_NAMESPACE, f'{machine_id}/{instance}/{index}/{mig.gi}/{mig.ci}')}"


def cpu_numbers(cpulist: str) -> frozenset[int]:
    """Returns the CPUs of the kernel's list form: `0-2,8` is {0, 1, 2, 8}. Raises ValueError if it is no such list."""
    numbers: set[int] = set()
    for part in cpulist.split(",") if cpulist else ():
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def read_machine_description(text: str, file: str = "machine description") -> MachineDescription:
    """Read one YAML description; `file` is only for messages. Raises MachineDescriptionError."""
    tree = yaml_mapping(text, file)
    if tree.get("schema") != SCHEMA:
        raise MachineDescriptionError(file, "schema", f"expected {SCHEMA!r}, found {tree.get('schema')!r}")
    try:
        machine = converted(with_words_resolved(tree), MachineDescription)
    except msgspec.ValidationError as e:
        problem, _, place = str(e).partition(" - at ")
        raise MachineDescriptionError(file, place.strip("`").removeprefix("$."), problem) from e
    for field, problem in _contradictions(machine):
        raise MachineDescriptionError(file, field, problem)
    return machine


def _contradictions(machine: MachineDescription) -> Iterator[tuple[str, str]]:
    """Yields problems that types cannot exclude: (field, problem)."""
    if len(machine.gpus) > MOST_GPUS:
        yield "gpus", f"{len(machine.gpus)} GPUs, at most {MOST_GPUS}"
    yield from _gpu_problems(machine.gpus)
    for place, node in enumerate(machine.host.numa):
        if not _CPUS.fullmatch(node.cpus):
            yield f"host.numa[{place}].cpus", f"expected a list such as 0-15,128-143, found {node.cpus!r}"
    for place, group in enumerate(machine.pcie_levels.groups):
        yield from _outside(f"pcie_levels.groups[{place}].gpus", group.gpus, machine)
    if machine.nvlink is not None:
        yield from _link_problems(machine, machine.nvlink)
    if machine.topo_m and any(len(row) != len(machine.gpus) for row in (machine.topo_m, *machine.topo_m)):
        yield "topo_m", f"expected {len(machine.gpus)} rows of {len(machine.gpus)}"


def _gpu_problems(gpus: Sequence[DescribedGpu]) -> Iterator[tuple[str, str]]:
    seen: dict[str, int] = {}
    for index, gpu in enumerate(gpus):
        if not _BUS.fullmatch(gpu.bus):
            yield f"gpus[{index}].bus", f"expected a PCI address such as 00000000:1E:00.0, found {gpu.bus!r}"
        if gpu.bus in seen:
            yield f"gpus[{index}].bus", f"{gpu.bus} is gpus[{seen[gpu.bus]}] already"
        seen[gpu.bus] = index
        if not _PCI_ID.fullmatch(gpu.pci_id):
            yield f"gpus[{index}].pci_id", f"expected vendor:device such as 10de:20b0, found {gpu.pci_id!r}"
        if not _CC.fullmatch(gpu.cc):
            yield f"gpus[{index}].cc", f"expected a compute capability such as 8.0, found {gpu.cc!r}"
        if gpu.memory_mib <= gpu.reserved_mib or gpu.reserved_mib < 0:
            yield f"gpus[{index}].memory_mib", f"{gpu.memory_mib} MiB with {gpu.reserved_mib} MiB reserved"
        yield from _mig_problems(f"gpus[{index}].mig_devices", gpu)


def _mig_problems(field: str, gpu: DescribedGpu) -> Iterator[tuple[str, str]]:
    if gpu.mig_devices and gpu.mig != "enabled":
        yield field, f"MIG devices of a GPU whose mig is {gpu.mig}"
    if len(gpu.mig_devices) > _MOST_MIG_DEVICES:
        yield field, f"{len(gpu.mig_devices)} MIG devices, at most {_MOST_MIG_DEVICES}"
    if len({(mig.gi, mig.ci) for mig in gpu.mig_devices}) < len(gpu.mig_devices):
        yield field, "two MIG devices are the same compute instance of the same GPU instance"
    for place, mig in enumerate(gpu.mig_devices):
        if not _PROFILE.fullmatch(mig.profile):
            yield f"{field}[{place}]", f"expected a profile such as 1g.5gb, found {mig.profile!r}"
        if not 0 < mig.memory_mib <= gpu.memory_mib:
            yield f"{field}[{place}]", f"{mig.memory_mib} MiB of a GPU with {gpu.memory_mib} MiB"


def _link_problems(machine: MachineDescription, nvlink: Nvlink) -> Iterator[tuple[str, str]]:
    for place, edge in enumerate(nvlink.direct):
        where = f"nvlink.direct[{place}]"
        yield from _outside(where, (edge.a, edge.b), machine)
        if edge.a == edge.b or edge.links < 1:
            yield where, "expected two different GPUs and at least one link"
    switches = nvlink.switches
    for place, switch in enumerate(switches.list if switches else ()):
        where = f"nvlink.switches.list[{place}]"
        yield from _outside(f"{where}.gpus", switch.gpus, machine)
        if switches is not None and switches.address == "real" and not _BUS.fullmatch(switch.bus):
            yield f"{where}.bus", f"expected a PCI address such as 00000000:C4:00.0, found {switch.bus!r}"


def _outside(field: str, gpus: Sequence[int], machine: MachineDescription) -> Iterator[tuple[str, str]]:
    for index in gpus:
        if not 0 <= index < len(machine.gpus):
            yield field, f"no GPU {index} on a machine with {len(machine.gpus)}"
