"""The reading of a machine: its GPUs and, pair by pair, the paths between them, without any judgement."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum, StrEnum

from proto.devices import UNKNOWN_NUMA, DeviceUUID


class PcieLevel(IntEnum):
    """Nearest common ancestor of two GPUs; the numbers are NVML's nvmlGpuTopologyLevel_t."""

    INTERNAL = 0
    SINGLE = 10
    MULTIPLE = 20
    HOSTBRIDGE = 30
    NODE = 40
    SYSTEM = 50


class PeerStatus(Enum):
    """The right of one GPU to reach the memory of another. UNREADABLE also stands for NVML's own "unknown"."""

    OK = "ok"
    REFUSED = "refused"
    UNREADABLE = "unreadable"


class SwitchEvidence(StrEnum):
    """The source of the links to NVSwitches. FIELD and TYPE are the driver's answers, ADDRESS is inferred."""

    NONE = "none"
    FIELD = "field"
    TYPE = "type"
    ADDRESS = "address"

    @property
    def is_strong(self) -> bool:
        return self in (SwitchEvidence.FIELD, SwitchEvidence.TYPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Registration with the NVLink fabric (nvmlGpuFabricInfoV_t); state 0 means there is none to register with."""

    state: int
    status: int
    cluster: str
    clique: int

    @property
    def is_broken(self) -> bool:
        """Returns whether it is anything but completed (3) with success (0); other states have no status."""
        return self.state != 0 and (self.state, self.status) != (3, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigSize:
    """The part of its GPU that a MIG device has (nvmlDeviceAttributes_t)."""

    gpu_slices: int
    compute_slices: int
    multiprocessors: int = 0
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MigReading:
    """One MIG device: a compute instance of a GPU instance."""

    uuid: DeviceUUID
    profile: str
    """`1g.5gb`, `1c.2g.10gb`, `1g.10gb+me`."""
    gi: int
    ci: int
    parent: DeviceUUID
    """The GPU it is a part of, and as healthy as."""
    memory_mib: int | None = None
    size: MigSize | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One GPU. `problem` is empty for a healthy one, else the reason why it cannot be used, as a sentence."""

    index: int
    uuid: DeviceUUID
    name: str
    bus_id: str
    memory_mib: int | None = None
    minor: int | None = None
    numa: int = UNKNOWN_NUMA
    own_numa: int | None = None
    """The NUMA node the GPU's memory is (Grace machines); never the host node."""
    cpu_affinity: str = ""
    numa_affinity: str = ""
    compute_capability: tuple[int, int] | None = None
    """CUDA's, major and minor."""
    pci_class: int | None = None
    """0x030000 for a card with a display, 0x030200 for one without."""
    mig_capable: bool = False
    mig_enabled: bool = False
    mig_devices: tuple[MigReading, ...] = ()
    pcie_gen: int | None = None
    pcie_width: int | None = None
    switch_links: int = 0
    switch_evidence: SwitchEvidence = SwitchEvidence.NONE
    nvlink_version: int | None = None
    """NVML_NVLINK_VERSION number: 1=1.0 2=2.0 3=2.2 4=3.0 5=3.1 6=4.0 7=5.0."""
    nvlink_mbps: int | None = None
    fabric: Fabric | None = None
    problem: str = ""

    @property
    def healthy(self) -> bool:
        return not self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class PairReading:
    """Two GPUs, the first with the lower index. A level of None means that it could not be read."""

    level: PcieLevel | None
    links_there: int = 0
    links_back: int = 0
    p2p_nvlink: PeerStatus = PeerStatus.UNREADABLE
    p2p_pcie: PeerStatus = PeerStatus.UNREADABLE


_UNKNOWN = DeviceUUID("")


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingGpu:
    """A GPU that exists and cannot be shared, because its UUID or its memory is not known. `name` has its NVML index,
    its UUID and its PCI address, as far as they are known.
    """

    name: str
    problem: str
    index: int | None = None
    """The place in NVML's enumeration; None where NVML does not count the GPU."""
    uuid: DeviceUUID = _UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineReading:
    """A whole machine. `pairs` is keyed by (lower, higher) GPU index; `problems` are sentences for people."""

    driver: str = ""
    cuda: tuple[int, int] | None = None
    """The newest CUDA that the driver serves, major and minor."""
    product: str = ""
    """The machine's name in its DMI table."""
    cpu: str = ""
    """Model of the CPU or a key of `bandwidth.SOCKET_LINKS`; decides the speed between sockets."""
    gpus: tuple[GpuReading, ...] = ()
    pairs: Mapping[tuple[int, int], PairReading] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    missing: tuple[MissingGpu, ...] = ()
    is_simulated: bool = False
    """The library reports that no driver is behind it: these GPUs are not real."""
    is_doubtful: bool = False
    """A call failed, perhaps by chance: its earlier answer is used instead. Read again soon."""

    @property
    def mig_devices(self) -> Mapping[DeviceUUID, MigReading]:
        """Returns the MIG devices of all GPUs, by UUID."""
        return {mig.uuid: mig for gpu in self.gpus for mig in gpu.mig_devices}


FIRST_LIMITING_BRANCH = 615
"""The first branch of drivers that limit GPU memory by control group."""


def driver_branch(version: str) -> int | None:
    """Returns the branch of a driver's version, 615 of `615.71.05`; None where it is unknown."""
    branch = version.partition(".")[0]
    return int(branch) if branch.isascii() and branch.isdigit() and len(branch) <= _MOST_DIGITS else None


_MOST_DIGITS = 9
