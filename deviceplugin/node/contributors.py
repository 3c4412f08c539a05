"""The parts of this node's Node, from the daemon's state at the time of a look (edge)."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

from deviceplugin.allocation.decision import held_by, live_holds
from deviceplugin.allocation.sources import AllocationSources
from deviceplugin.node.desired import Desired
from deviceplugin.node.labels import label_report
from deviceplugin.node.outliving import (
    Departures,
    after_look,
    after_pods,
    first,
    outliving_of,
    read_outliving,
)
from deviceplugin.node.registration import Offer, registration
from deviceplugin.node.totals import node_sums, node_totals, present_totals, requested_sums, requested_totals
from deviceplugin.node.undecided import is_undecided, known_of
from deviceplugin.own_threads import OwnThreads
from deviceplugin.pod_cgroups import PodCgroups
from deviceplugin.pod_results import PodResults
from deviceplugin.records.holdings import Holding
from deviceplugin.settings import HamiScheduler
from proto.annotations.keys import NODE_NUMA, NODE_OUTLIVING, NODE_UNDECIDED, SUMS
from proto.annotations.node_numa import NodeNuma, encode_numa
from proto.annotations.outliving_pods import encode_outliving
from proto.annotations.undecided_pods import encode_undecided
from proto.kubernetes.objects import Node, Pod

_ADMITTED = timedelta(seconds=5)
"""Time between checks whether kubelet has admitted a pod without a decision; mostly the first check finds it."""
_UNSEEN = timedelta(seconds=30)
"""Time between looks for the host's control groups."""
_STOPPING = timedelta(seconds=1)
"""Time between looks whether the containers of deleted pods have ended."""


class RegisteredGpus:
    """The GPUs as schedulers read them. `offer` returns None until all of it is known."""

    def __init__(
        self, offer: Callable[[], Offer | None], scheduler: HamiScheduler, count: Callable[[bool], None]
    ) -> None:
        self._offer = offer
        self._scheduler = scheduler
        self._count = count
        self._looked_at: datetime | None = None
        self._answered_at: datetime | None = None

    def desired(self, node: Node, now: datetime) -> Desired | None:
        self._looked_at, offer = now, self._offer()
        if offer is None:
            return None
        return registration(node, offer, self._scheduler, answered_at=self._answered_at, now=now)

    def reported(self, taken: bool) -> None:
        self._count(taken)
        if taken:
            self._answered_at = self._looked_at


class NodeTotals:
    """The amounts of the resources that pods name beside GPUs."""

    def __init__(self, sources: AllocationSources) -> None:
        self._own = sources.own
        self._gpus = sources.gpus
        self._names = sources.configuration.total_names
        self._requests = PodResults(requested_totals)

    def desired(self, _node: Node, _now: datetime) -> Desired | None:
        """Returns the totals; None without a GPU: the Node keeps its totals, as it keeps its registration."""
        names, devices = self._names, self._gpus.inventory.devices
        if not devices or not self._own.pods_known:
            return None
        return Desired(totals=node_totals(names, devices, self._requests.of(self._own.pods, names)))


class NodeSums:
    """The sums of what the GPUs have together; without the setting, they are taken away."""

    def __init__(self, sources: AllocationSources) -> None:
        self._own = sources.own
        self._gpus = sources.gpus
        self._enabled = sources.settings.gpu_sums
        self._requested = PodResults[None, tuple[int, ...]](lambda pod, _: requested_sums(pod))
        self._held = live_holds(sources.resource)

    def desired(self, node: Node, _now: datetime) -> Desired | None:
        """Returns the sums; None, which keeps them, without a GPU or before the pods are known."""
        own, devices = self._own, self._gpus.inventory.devices
        if not self._enabled:
            return Desired(totals=dict.fromkeys(present_totals(node, SUMS)))
        if not devices or not own.pods_known:
            return None
        held = self._held.of(own.pods, self._gpus.by_uuid())
        outliving = first({}, 0, read_outliving(node)).gone.values()
        return Desired(totals=node_sums(devices, (*held, *outliving), self._requested.of(own.pods, None)))


def numa_annotation(numa: NodeNuma | None) -> Desired:
    """Returns the policy of kubelet's Topology Manager, and the CPUs of each NUMA node; None while unknown."""
    return Desired(annotations={NODE_NUMA: None if numa is None else encode_numa(numa)})


class UndecidedPods:
    """The GPUs that kubelet gave to pods without a decision."""

    def __init__(self, sources: AllocationSources) -> None:
        self._own = sources.own
        self._gpus = sources.gpus
        self._resource = sources.resource
        self._read_checkpoint = sources.read_checkpoint
        self._recorded: Sequence[Holding] = ()
        self._found = PodResults[str, Pod | None](lambda pod, resource: pod if is_undecided(pod, resource) else None)

    async def look(self, _node: Node) -> None:
        """Reads kubelet's checkpoint, if there is such a pod."""
        self._recorded = await self._read_checkpoint() or () if self._pods() else ()

    def desired(self, _node: Node, _now: datetime) -> Desired | None:
        """Returns the annotation; None, which keeps it, until pods and GPUs are known: no pod gets other GPUs while it
        lives.
        """
        gpus = self._gpus.by_uuid()
        if not self._own.pods_known or not gpus:
            return None
        pods = self._pods()
        known = known_of(pods, self._recorded, gpus, self._resource)
        return Desired(
            annotations={NODE_UNDECIDED: encode_undecided(known) if known else None},
            again_in=None if len(known) == len(pods) else _ADMITTED,
        )

    def _pods(self) -> list[Pod]:
        return [pod for pod in self._found.of(self._own.pods, self._resource) if pod is not None]


class OutlivingPods:
    """The pods that still run although the API server no longer has them."""

    def __init__(self, sources: AllocationSources, cgroups: PodCgroups) -> None:
        self._own = sources.own
        self._gpus = sources.gpus
        self._cgroups = cgroups
        self._thread = OwnThreads("control groups")
        self._resource = sources.resource
        self._departures: Departures | None = None
        """None until the control groups were seen once."""
        self._desired: Desired | None = None

    def desired(self, _node: Node, _now: datetime) -> Desired | None:
        """Writes nothing on a node whose control groups are not visible."""
        return self._desired

    async def look(self, node: Node) -> None:
        """Takes the pods, and looks for their processes where a pod may have left some."""
        own = self._own
        if not own.pods_known or not self._gpus.known:
            return
        if self._departures is None:
            known = first(own.pods, own.pods_version, read_outliving(node))
        else:
            gpus = self._gpus.by_uuid()
            known = after_pods(
                self._departures, own.pods, own.pods_version, lambda pod: held_by(pod, gpus, self._resource)
            )
        if known.is_due:
            running = await self._thread.call(partial(self._cgroups.populated, known.known.keys()))
            if running is None:
                self._desired = Desired(annotations={NODE_OUTLIVING: None}, again_in=_UNSEEN)
                return
            known = after_look(known, running)
        self._departures = known
        written = encode_outliving(outliving_of(known))
        self._desired = Desired(annotations={NODE_OUTLIVING: written}, again_in=_STOPPING if known.is_due else None)


class FeatureLabels:
    """The labels of the GPUs; without the setting, those of an earlier daemon are taken away."""

    def __init__(self, sources: AllocationSources) -> None:
        self._gpus = sources.gpus
        self._enabled = sources.settings.feature_labels

    def desired(self, node: Node, _now: datetime) -> Desired | None:
        """Returns None until the GPUs are known."""
        wanted = self._wanted()
        return None if wanted is None else label_report(node, wanted).desired

    def others(self, node: Node | None) -> tuple[str, ...]:
        """Returns the names of the labels that other programs write."""
        wanted = self._wanted()
        return () if node is None or wanted is None else label_report(node, wanted).others

    def _wanted(self) -> Mapping[str, str] | None:
        return self._gpus.inventory.labels if self._enabled else {}
