"""The bandwidth between the GPUs of a pod."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import mean

from proto.devices import DeviceUUID, PairScores, PodShares

NVLINK_SCORE = 100
"""Each NVLink adds this to a pair's score."""
GBPS_AN_NVLINK = 20.0
PCIE_GBPS = {60: 24.0, 50: 24.0, 40: 24.0, 30: 24.0, 20: 24.0, 10: 16.0}
"""Bandwidths by the score of the path: PCIe 4 with 16 lanes, and the links between sockets of AMD EPYC."""

Speeds = Mapping[frozenset[DeviceUUID], float]
"""GB/s in one direction, by pair."""


@dataclass(frozen=True, slots=True)
class LinkSpeeds:
    """`known` are the speeds of described machines. The speed of other pairs is estimated from their scores."""

    known: Speeds = field(default_factory=dict)

    def pod_gbps(self, shares: PodShares, scores: PairScores) -> float | None:
        """Returns the mean over all pairs of GPUs of the same container. None without such pairs, and for a node that
        has not published its links.
        """
        pairs = [
            self.gbps(a.uuid, b.uuid, scores)
            for container in shares
            for n, a in enumerate(container)
            for b in container[n + 1 :]
        ]
        return mean(pairs) if any(pairs) else None

    def gbps(self, first: DeviceUUID, second: DeviceUUID, scores: PairScores) -> float:
        known = self.known.get(frozenset((first, second)))
        return estimated_gbps(scores.get(first, {}).get(second, 0)) if known is None else known


def estimated_gbps(score: int) -> float:
    """Returns 0 for an unknown pair. Sources: `deviceplugin.machine.bandwidth`."""
    return GBPS_AN_NVLINK * nvlinks(score) or PCIE_GBPS.get(score, 0.0)


def nvlinks(score: int) -> int:
    """Returns the number of links between two GPUs with this pair score."""
    return score // NVLINK_SCORE
