"""Turns readings of a machine into its link matrix: tokens as `nvidia-smi topo -m` prints them, scores and GB/s."""

from collections.abc import Collection
from dataclasses import dataclass
from itertools import permutations

from deviceplugin.machine.bandwidth import pair_gbps, socket_link
from deviceplugin.machine.readings import GpuReading, MachineReading, PairReading, PcieLevel, PeerStatus
from proto.devices import DeviceUUID, PairScores

SELF = "X"
UNKNOWN = "?"

TOKENS = {
    PcieLevel.INTERNAL: "PSB",
    PcieLevel.SINGLE: "PIX",
    PcieLevel.MULTIPLE: "PXB",
    PcieLevel.HOSTBRIDGE: "PHB",
    PcieLevel.NODE: "NODE",
    PcieLevel.SYSTEM: "SYS",
}

WEIGHTS = {"PSB": 60, "PIX": 50, "PXB": 40, "PHB": 30, "NODE": 20, "SYS": 10, "SOC": 10}
"""HAMi's weights (pkg/device/nvidia/calculate_score.go); SOC is what drivers before 2017 print for SYS."""

NVLINK_WEIGHT = 100

Matrix = tuple[tuple[str, ...], ...]
ScoreMatrix = tuple[tuple[int | None, ...], ...]
BandwidthMatrix = tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The matrices, n x n in the order of `gpus`.

    The diagonal is `X`, 0 and 0; a pair that cannot be computed is `?` and None.
    """

    gpus: tuple[GpuReading, ...]
    links: Matrix
    scores: ScoreMatrix
    bandwidth_gbps: BandwidthMatrix


@dataclass(frozen=True, slots=True, kw_only=True)
class AsymmetricPair:
    """Two GPUs that disagree on how many NVLinks join them."""

    first: GpuReading
    second: GpuReading
    links_there: int
    """The number of links as the first GPU counts them."""
    links_back: int

    @property
    def sentence(self) -> str:
        return (
            f"GPU {self.first.index} ({self.first.uuid}) counts {self.links_there} NVLinks to GPU {self.second.index} "
            f"({self.second.uuid}), which counts {self.links_back} back; the pair is scored by the smaller number"
        )


@dataclass(frozen=True, slots=True)
class _Pair:
    token: str = UNKNOWN
    score: int | None = None
    gbps: float | None = None


def build_topology(machine: MachineReading) -> Topology:
    """Each pair stands alone: one that cannot be read leaves the others as they are."""
    socket = socket_link(machine.cpu)

    def judge(first: GpuReading, second: GpuReading) -> _Pair:
        if first.index == second.index:
            return _Pair(SELF, 0, 0.0)
        if first.index > second.index:
            first, second = second, first
        pair = machine.pairs.get((first.index, second.index))
        if pair is None:
            return _Pair()
        nvlinks = count_nvlinks(first, second, pair)
        gbps = pair_gbps(first, second, pair, nvlinks, socket)
        return _Pair(_token(pair, nvlinks), _score(pair, nvlinks), gbps)

    rows = [[judge(first, second) for second in machine.gpus] for first in machine.gpus]
    return Topology(
        gpus=machine.gpus,
        links=tuple(tuple(cell.token for cell in row) for row in rows),
        scores=tuple(tuple(cell.score for cell in row) for row in rows),
        bandwidth_gbps=tuple(tuple(cell.gbps for cell in row) for row in rows),
    )


def count_nvlinks(first: GpuReading, second: GpuReading, pair: PairReading) -> int:
    """Returns the number of NVLinks that a pair can use: its own, else those of the GPU with fewer into the NVSwitches.

    A link that is up need not be usable, so behind switches peer status and fabric must agree.
    """
    if first.mig_enabled or second.mig_enabled:
        return 0
    direct = min(pair.links_there, pair.links_back)
    if direct:
        return direct
    through_switches = min(first.switch_links, second.switch_links)
    return through_switches if through_switches and _switches_usable(first, second, pair) else 0


def pair_scores(topology: Topology, shared: Collection[DeviceUUID] | None = None) -> PairScores:
    """Scores by UUID, the worse of the two directions; a pair that could not be computed is left out.

    Of the `shared` devices only, of all GPUs for None. MIG devices have no links of their own: their row is empty.
    """
    places = {gpu.uuid: place for place, gpu in enumerate(topology.gpus)}
    uuids = list(places) if shared is None else list(shared)
    scores: dict[DeviceUUID, dict[DeviceUUID, int]] = {uuid: {} for uuid in uuids}
    for uuid, other in permutations([uuid for uuid in uuids if uuid in places], 2):
        there = topology.scores[places[uuid]][places[other]]
        back = topology.scores[places[other]][places[uuid]]
        if there is not None and back is not None:
            scores[uuid][other] = min(there, back)
    return scores


def asymmetric_pairs(machine: MachineReading) -> tuple[AsymmetricPair, ...]:
    """Pairs whose ends count different NVLinks to each other; scored by the smaller count."""
    gpus = {gpu.index: gpu for gpu in machine.gpus}
    return tuple(
        AsymmetricPair(first=gpus[first], second=gpus[second], links_there=pair.links_there, links_back=pair.links_back)
        for (first, second), pair in sorted(machine.pairs.items())
        if pair.links_there != pair.links_back
    )


def _switches_usable(first: GpuReading, second: GpuReading, pair: PairReading) -> bool:
    strong = first.switch_evidence.is_strong and second.switch_evidence.is_strong
    reachable = pair.p2p_nvlink is PeerStatus.OK or (pair.p2p_nvlink is PeerStatus.UNREADABLE and strong)
    return reachable and _same_fabric(first, second)


def _same_fabric(first: GpuReading, second: GpuReading) -> bool:
    """Returns whether two GPUs may be in one fabric: one without a fabric (before Hopper) contradicts no other."""
    fabrics = [gpu.fabric for gpu in (first, second) if gpu.fabric is not None]
    if any(fabric.is_broken for fabric in fabrics):
        return False
    return len({(fabric.cluster, fabric.clique) for fabric in fabrics if fabric.state}) <= 1


def _token(pair: PairReading, nvlinks: int) -> str:
    if nvlinks:
        return f"NV{nvlinks}"
    return UNKNOWN if pair.level is None else TOKENS[pair.level]


def _score(pair: PairReading, nvlinks: int) -> int | None:
    if pair.level is None:
        return None
    return WEIGHTS[TOKENS[pair.level]] + NVLINK_WEIGHT * nvlinks
