"""The NUMA nodes that kubelet's Topology Manager reads of each replica. Pure.

Kubelet counts replicas, not GPUs, and takes the lowest NUMA node that has enough of them and of CPUs. So the free
replicas of a NUMA node none of whose GPUs has room name no NUMA node: kubelet then does not choose that one. A replica
that a container holds keeps what it was given with, because kubelet judges running pods again after its restart: one
that was given without a NUMA node is near all of them. A NUMA node without CPUs is never named: kubelet would refuse
each pod with CPUs of its own there.
Source: pkg/kubelet/cm/devicemanager/topology_hints.go of Kubernetes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from proto.devices import UNKNOWN_NUMA, Device


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaHints:
    """`zones` are the host's NUMA nodes with CPUs, empty if they are unknown. `held` has the NUMA nodes of the
    replicas that containers hold.
    """

    zones: frozenset[int] = frozenset()
    closed: frozenset[int] = frozenset()
    """The NUMA nodes none of whose GPUs has room."""
    held: Mapping[str, frozenset[int]] = field(default_factory=dict)

    def of(self, replica: str, device: Device) -> Sequence[int]:
        """Returns the NUMA nodes of a replica; empty for none."""
        held = self.held.get(replica)
        if held is not None:
            return sorted(held or self.zones)
        has_cpus = device.numa in self.zones if self.zones else device.numa != UNKNOWN_NUMA
        return (device.numa,) if has_cpus and device.numa not in self.closed else ()
