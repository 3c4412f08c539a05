"""`topogpu.io/numa`: how kubelet's Topology Manager admits pods on the node, and the CPUs of each NUMA node.

`{"version":1,"policy":"single-numa-node","scope":"container","zones":{"0":{"cpus":64,"free":62}}}`. The node daemon
writes it. `zones` is there only where kubelet gives containers CPUs of their own and keeps them beside their GPUs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from proto.annotations.errors import AnnotationError
from proto.annotations.keys import NODE_NUMA
from proto.annotations.values import decode_json

VERSION = 1
MOST_ZONES = 8
"""The most NUMA nodes with which kubelet starts its Topology Manager, unless an option allows more."""
LARGEST_NUMBER = 63
"""The largest number of a NUMA node: kubelet's sets of them have 64 bits."""


class TopologyPolicy(StrEnum):
    """Kubelet's `topologyManagerPolicy`."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"

    @property
    def aligns(self) -> bool:
        """Returns whether kubelet keeps CPUs and devices together."""
        return self is not TopologyPolicy.NONE

    @property
    def refuses(self) -> bool:
        """Returns whether kubelet refuses pods that it cannot align."""
        return self in (TopologyPolicy.RESTRICTED, TopologyPolicy.SINGLE_NUMA_NODE)


class TopologyScope(StrEnum):
    """Kubelet's `topologyManagerScope`: the part of a pod that is aligned together."""

    CONTAINER = "container"
    POD = "pod"


class ZoneCpus(msgspec.Struct, frozen=True, omit_defaults=True):
    """One NUMA node. `free` are the CPUs that kubelet may give away and that no pod without GPUs has. Those of pods
    with GPUs are among them, but with scope `container` only those of containers with GPUs. `closed`: kubelet
    gets no hint to this NUMA node, because none of its GPUs has room.
    """

    cpus: int
    free: int
    closed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNuma:
    """`zones` is empty where kubelet does not look at the place of CPUs, or that is unknown. `changing`: other
    zones are about to be closed, so it is unknown where kubelet would put a pod.
    """

    policy: TopologyPolicy
    scope: TopologyScope = TopologyScope.CONTAINER
    zones: Mapping[int, ZoneCpus] = field(default_factory=dict)
    changing: bool = False


class _NumaDocument(msgspec.Struct, omit_defaults=True):
    version: int
    policy: TopologyPolicy
    scope: TopologyScope = TopologyScope.CONTAINER
    zones: dict[int, ZoneCpus] = {}
    changing: bool = False


def encode_numa(numa: NodeNuma) -> str:
    document = _NumaDocument(
        version=VERSION,
        policy=numa.policy,
        scope=numa.scope,
        zones=dict(sorted(numa.zones.items())),
        changing=numa.changing,
    )
    return msgspec.json.encode(document).decode()


def decode_numa(value: str) -> NodeNuma:
    """Raises AnnotationError."""
    document = decode_json(NODE_NUMA, value, _NumaDocument)
    if document.version != VERSION:
        raise AnnotationError(NODE_NUMA, "$.version", f"expected {VERSION}, found {document.version}")
    if len(document.zones) > MOST_ZONES:
        raise AnnotationError(NODE_NUMA, "$.zones", f"expected at most {MOST_ZONES}, found {len(document.zones)}")
    for number, zone in document.zones.items():
        if not 0 <= number <= LARGEST_NUMBER:
            raise AnnotationError(NODE_NUMA, "$.zones", f"expected numbers from 0 to {LARGEST_NUMBER}")
        if zone.free < 0 or zone.cpus < zone.free:
            raise AnnotationError(NODE_NUMA, f"$.zones.{number}", "expected 0 <= free <= cpus")
    return NodeNuma(policy=document.policy, scope=document.scope, zones=document.zones, changing=document.changing)
