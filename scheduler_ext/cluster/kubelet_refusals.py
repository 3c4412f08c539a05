"""Nodes whose kubelets refused a pod for the place of its CPUs and devices: they get no other pod like it for a while.

Such a pod has failed for good, and its controller makes another one, about which kubelet decides the same. What the
extender expects of the Topology Manager comes first (`decide.alignment`); this counts where it does not know enough.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from proto.kubernetes.objects import TOPOLOGY_AFFINITY_ERROR, Pod, Resources
from scheduler_ext.cluster.records import NO_GPUS, PodRecord

REFUSED_ALIKE = "KubeletRefusedAlike"
"""Reason for a node whose kubelet refused such a pod."""
FIRST_SECONDS = 30.0
LONGEST_SECONDS = 300.0
"""kube-scheduler itself tries a pod that waits again after so long."""
MOST_REMEMBERED = 1000
_REASONS = (TOPOLOGY_AFFINITY_ERROR, "SMTAlignmentError")
"""The second one is of the CPU manager's option `full-pcpus-only`."""

_Shape = tuple[object, ...]
_NONE_CLOSED: Mapping[str, str] = {}
_REFUSED = (
    f"{REFUSED_ALIKE}: kubelet has refused a pod with the same requests there for the place of its CPUs ({{}}); the "
    f"node is tried again when a pod with GPUs leaves it, at the latest after {LONGEST_SECONDS:.0f} s"
)


class _Refusal(NamedTuple):
    pod: str
    """Namespace and name of the last one."""
    until: float
    pause: float


@dataclass(slots=True)
class KubeletRefusals:
    """The last refusal by requests and node. The pause is twice as long if the next try is refused too."""

    now: float = -inf
    """The time of the last event in monotonic seconds."""
    _refusals: dict[tuple[_Shape, str], _Refusal] = field(default_factory=dict)

    def dropped(self, held: PodRecord | None, ended: Pod | None = None) -> None:
        """A pod holds GPUs no longer: its kubelet refused it, or there is more room on its node."""
        if held is None or held.gpus is NO_GPUS:
            return
        if ended is not None and ended.status.reason in _REASONS:
            self._add(ended)
        elif not held.is_pending:
            self._open(held.node)

    def _add(self, pod: Pod) -> None:
        key = _shape(pod), pod.spec.node_name
        known = self._refusals.get(key)
        # Pods that were sent together are refused together.
        if known is not None and self.now < known.until:
            return
        self._refusals = {each: one for each, one in self._refusals.items() if self.now < one.until + LONGEST_SECONDS}
        pause = min(2 * known.pause, LONGEST_SECONDS) if key in self._refusals and known else FIRST_SECONDS
        if key in self._refusals or len(self._refusals) < MOST_REMEMBERED:
            self._refusals[key] = _Refusal(pod.full_name, self.now + pause, pause)

    def _open(self, node: str) -> None:
        for key, one in self._refusals.items():
            if key[1] == node:
                self._refusals[key] = one._replace(until=min(one.until, self.now))

    def closed_to(self, pod: Pod) -> Mapping[str, str]:
        """Returns the nodes that would refuse the pod, with the reason."""
        if not self._refusals:
            return _NONE_CLOSED
        shape = _shape(pod)
        return {
            node: _REFUSED.format(one.pod)
            for (refused, node), one in self._refusals.items()
            if refused == shape and self.now < one.until
        }


def _shape(pod: Pod) -> _Shape:
    """Returns what kubelet looks at."""
    of_containers = [(each.is_sidecar, *_amounts(each.resources)) for each in pod.all_containers]
    return len(pod.spec.init_containers), *of_containers, _amounts(pod.spec.resources or Resources())


def _amounts(resources: Resources) -> tuple[object, ...]:
    return tuple(sorted(resources.limits.items())), tuple(sorted(resources.requests.items()))
