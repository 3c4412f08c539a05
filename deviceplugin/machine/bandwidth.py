"""The bandwidth between two GPUs, in GB/s and one direction.

Effective figures, not nominal ones: NVLink, PCIe and socket links as NCCL reckons them (NVIDIA/nccl
src/graph/topo.h), staging through host memory by NVIDIA/nccl issues 1127, 1264 and 1309.
"""

from dataclasses import dataclass

from deviceplugin.machine.readings import GpuReading, PairReading, PcieLevel, PeerStatus

NVLINK_GBPS = {1: 18.0, 2: 20.0, 3: 20.0, 4: 20.0, 5: 20.0, 6: 20.6, 7: 40.1}
"""GB/s of one link in one direction, by NVML's number of the NVLink version (NVML_NVLINK_VERSION)."""

NVLINK3_WORKSTATION_GBPS = 12.0
"""GeForce 3090, A40 and A6000 run NVLink 3 at 14.06 instead of 25."""

NVLINK_UNKNOWN_SHARE = 0.77
"""Effective share of the reported speed where the version is not known; fits V100, H100 and B200."""

_FAR = 1.5
"""Versions that follow each other differ by no more, or by twice as much."""

PCIE_X16_GBPS = {1: 3.0, 2: 6.0, 3: 12.0, 4: 24.0, 5: 48.0, 6: 96.0}


@dataclass(frozen=True, slots=True)
class SocketLink:
    gbps: float
    is_intel: bool = False


SOCKET_LINKS = {
    "intel-qpi": SocketLink(6.0, is_intel=True),
    "intel-upi-skl": SocketLink(10.0, is_intel=True),
    "intel-upi-spr": SocketLink(22.0, is_intel=True),
    "intel-upi-emr": SocketLink(40.0, is_intel=True),
    "amd-epyc": SocketLink(16.0),
    "ibm-power9": SocketLink(32.0),
    "nvidia-grace": SocketLink(100.0),
    "arm": SocketLink(6.0),
}
"""Grace is ours: NCCL's 6 for every Arm is far too low for it."""

_CPU_WORDS = (
    ("grace", "nvidia-grace"),
    ("neoverse-v2", "nvidia-grace"),
    ("power9", "ibm-power9"),
    ("epyc", "amd-epyc"),
    ("amd", "amd-epyc"),
    ("e5-", "intel-qpi"),
    ("e7-", "intel-qpi"),
    ("arm", "arm"),
    ("neoverse", "arm"),
)
_XEON_FAMILIES = ("bronze", "silver", "gold", "platinum", "xeon")
_XEON_BY_GENERATION = {"4": "intel-upi-spr", "5": "intel-upi-emr", "6": "intel-upi-emr"}


def socket_link(cpu: str) -> SocketLink:
    """Returns the link between sockets of a CPU model or of a key above; the slowest common one for a stranger.

    The second digit of a Xeon Scalable's number is its generation: 8480 is the fourth, Sapphire Rapids.
    """
    name = cpu.lower()
    if name in SOCKET_LINKS:
        return SOCKET_LINKS[name]
    for word, key in _CPU_WORDS:
        if word in name:
            return SOCKET_LINKS[key]
    words = name.replace("(r)", "").split()
    numbers = [word for word in words if word[:4].isdigit() and len(word) >= 4]
    if any(family in words for family in _XEON_FAMILIES) and numbers:
        return SOCKET_LINKS[_XEON_BY_GENERATION.get(numbers[0][1], "intel-upi-skl")]
    return SocketLink(6.0, is_intel="intel" in name)


def nvlink_gbps(gpu: GpuReading) -> float | None:
    """Returns one link of this GPU, one direction. None if neither version nor speed is known. A speed that is far from
    what the version comes to is believed, because it was read from the link.
    """
    if gpu.nvlink_version in (4, 5) and gpu.nvlink_mbps is not None and gpu.nvlink_mbps < 20_000:
        return NVLINK3_WORKSTATION_GBPS
    by_speed = NVLINK_UNKNOWN_SHARE * gpu.nvlink_mbps / 1000 if gpu.nvlink_mbps else None
    by_version = NVLINK_GBPS.get(gpu.nvlink_version or 0)
    if by_version is None or (by_speed is not None and not 1 / _FAR < by_speed / by_version < _FAR):
        return by_speed
    return by_version


def pcie_gbps(gpu: GpuReading) -> float | None:
    """Returns the speed of the GPU's own PCIe link. None for an unknown generation or width."""
    per_x16 = PCIE_X16_GBPS.get(gpu.pcie_gen or 0)
    return per_x16 * gpu.pcie_width / 16 if per_x16 and gpu.pcie_width else None


def pair_gbps(
    first: GpuReading, second: GpuReading, pair: PairReading, nvlinks: int, socket: SocketLink
) -> float | None:
    """Returns the speed of a copy between the two. None if a figure for it is unknown."""
    if nvlinks:
        return _link_product(nvlinks, nvlink_gbps(first), nvlink_gbps(second))
    one, other = pcie_gbps(first), pcie_gbps(second)
    if pair.level is None or one is None or other is None:
        return None
    gbps = min(one, other)
    # MIG disables peer access, whatever the driver reports of the pair.
    peer = pair.p2p_pcie is PeerStatus.OK and not (first.mig_enabled or second.mig_enabled)
    reach = _peer_gbps(gbps, pair.level, socket) if peer else _staged_gbps(gbps, pair.level)
    return min(reach, socket.gbps) if pair.level >= PcieLevel.SYSTEM else reach


def _link_product(nvlinks: int, first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else round(nvlinks * min(first, second), 1)


def _peer_gbps(gbps: float, level: PcieLevel, socket: SocketLink) -> float:
    """Intel root complexes forward peer traffic at 1/1.2 of the link's speed."""
    return gbps / 1.2 if level > PcieLevel.MULTIPLE and socket.is_intel else gbps


def _staged_gbps(gbps: float, level: PcieLevel) -> float:
    """Behind one switch both copies of a staged transfer share its uplink, so near is slower than far."""
    return gbps * (0.5 if level <= PcieLevel.MULTIPLE else 0.75)
