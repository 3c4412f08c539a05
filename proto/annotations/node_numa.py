"""`topogpu.io/numa`: how kubelet's Topology Manager admits pods on the node, and the CPUs of each NUMA node.

`{"version":1,"policy":"single-numa-node","scope":"container","zones":{"0":{"cpus":64,"free":62}}}`. The node daemon
writes it. `zones` is there only where kubelet gives containers CPUs of their own and keeps them beside their GPUs.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta, structs

from proto.annotations.keys import NODE_NUMA
from proto.annotations.values import decode_json
from proto.devices import Natural

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
    free: Natural
    closed: bool = False

    def __post_init__(self) -> None:
        if self.cpus < self.free:
            raise ValueError("expected 0 <= free <= cpus")


_Number = Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)]


class NodeNuma(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="version", tag=1):
    """`zones` is empty where kubelet does not look at the place of CPUs, or that is unknown. `changing`: other
    zones are about to be closed, so it is unknown where kubelet would put a pod.
    """

    policy: TopologyPolicy
    scope: TopologyScope = TopologyScope.CONTAINER
    zones: Annotated[Mapping[_Number, ZoneCpus], Meta(max_length=MOST_ZONES)] = {}
    changing: bool = False


def encode_numa(numa: NodeNuma) -> str:
    return msgspec.json.encode(structs.replace(numa, zones=dict(sorted(numa.zones.items())))).decode()


def decode_numa(value: str) -> NodeNuma:
    """Raises AnnotationError."""
    return decode_json(NODE_NUMA, value, NodeNuma)
