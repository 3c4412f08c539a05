"""Places pods one by one with the extender's own state and decisions, as kube-scheduler would request them."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from proto.annotations.node_lock import BindPhase
from proto.devices import PodShares
from proto.extender import FilterResult
from proto.kubernetes.objects import Node, Pod, PodStatus, ResourceQuota
from scheduler_ext.cluster.events import (
    Applied,
    ClusterEvent,
    Listed,
    NodeChosen,
    RecordEvent,
    Removed,
    Wake,
    unperformed,
)
from scheduler_ext.cluster.pod_index import pod_name
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.membership import group_of
from scheduler_ext.requests import RequestError, RequestSettings, pod_key, read_request
from scheduler_ext.verbs.bind_decision import binding_of
from scheduler_ext.verbs.filter_decision import FilterDecision
from simulation.plan.objects import Arrival, Described
from simulation.plan.offers import HostRequest, NodeOffers, left_to_extender
from simulation.words import HostPolicy

LEASE_SECONDS = 60.0
_BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)
"""The time of a plan's beginning, as annotations write it."""
_MOST_SHAPES = 1_000
"""Rankings kept: pods of more kinds come one after the other than in a cluster, and there is memory for them."""
_LATEST_SECONDS = 1e11
"""Annotations can write no year after 9999."""
_NO_RESULT = FilterResult()
_EVERY_NODE = 1 << 40
"""Effort for one answer: there is time to judge every node."""
_UNPERFORMED = unperformed(Wake, RecordEvent)
"""A plan has no tasks that wait, and names in its notes what could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    node: str
    shares: PodShares = ()
    """Empty for a pod without GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRefusal:
    """The pod waits. `nodes` counts nodes by the extender's or kube-scheduler's reason."""

    nodes: Mapping[str, int] = field(default_factory=dict)
    error: str = ""
    """The reason why the pod fits on no node whatever is free."""


class Engine:
    """One cluster. Time is an argument, in seconds, and never goes back."""

    def __init__(self, cluster: Described, settings: RequestSettings, hosts: HostPolicy) -> None:
        """The pods that the cluster holds have their nodes and keep them."""
        self.state = Cluster(settings)
        self._apply(Listed(Node, cluster.nodes), 0.0)
        self._apply(Listed(ResourceQuota, cluster.quotas), 0.0)
        for group in cluster.groups:
            self._apply(Applied(group), 0.0)
        self.changed: set[str] = {node.metadata.name for node in cluster.nodes}
        """Nodes on which something has changed. The reader empties it."""
        self._index = NodeIndex(self.state.ledger, least_most_effort=_EVERY_NODE, most_shapes=_MOST_SHAPES)
        self.offers = NodeOffers(cluster.nodes, left_to_extender(settings.names), hosts)
        self._there: dict[str, tuple[Pod, HostRequest]] = {}
        """Pods with a node, by UID."""
        self._refusals: dict[bytes, tuple[PlanRefusal, set[str]]] = {}
        """The refusal of each kind of pods that found no room, and the nodes where pods have ended since."""
        self._has_quotas, self._has_groups = bool(cluster.quotas), False
        for pod in cluster.held:
            self._seen(pod, self.offers.request_of(pod), 0.0)

    def pod(self, uid: str) -> Pod:
        """Returns a pod that has a node."""
        return self._there[uid][0]

    def request_of(self, uid: str) -> HostRequest:
        """Returns what a pod that has a node takes beside GPUs."""
        return self._there[uid][1]

    def place(
        self, arrival: Arrival, uid: str, now: float, *, only: Collection[str] | None = None
    ) -> Placed | PlanRefusal:
        """Places the pod as kube-scheduler and the extender would, on one of the nodes `only` if given.

        Where a pod of its kind found no room, only nodes where pods have ended since can have some. The refusal is
        then the old one: `refusal` returns that of now.
        """
        known = self._refusals.get(arrival.kind) if only is None else None
        if known is not None:
            refusal, freed = known
            if not freed:
                return refusal
            found = self._placed(arrival, uid, now, freed)
            if isinstance(found, PlanRefusal):
                freed.clear()
                return refusal
            return found
        found = self._placed(arrival, uid, now, only)
        # The room that is kept for the missing members of a group may become free while no pod ends.
        if isinstance(found, PlanRefusal) and only is None and not self._has_groups:
            self._refusals[arrival.kind] = found, set()
        return found

    def refusal(self, arrival: Arrival, uid: str, now: float) -> PlanRefusal | None:
        """Returns why the pod finds no room now; None if it finds some."""
        self._refusals.pop(arrival.kind, None)
        found = self.place(arrival, uid, now)
        if isinstance(found, PlanRefusal):
            return found
        self.end(uid, now)
        return None

    def _placed(self, arrival: Arrival, uid: str, now: float, only: Collection[str] | None) -> Placed | PlanRefusal:
        pod = arrival.pod(uid)
        if not self._has_groups and group_of(pod):
            self._has_groups = True
            self._refusals.clear()
        requested = self.offers.request_of(pod)
        offered = self.offers.offered(arrival.constraints, requested, only)
        try:
            request = read_request(pod, self.state.requests)
        except RequestError as error:
            return PlanRefusal(error=str(error))
        if request is None:
            node = self.offers.best_for_hosts(offered)
            if node is None:
                return self._refusal(arrival, requested, only)
            self._bind(pod, node, (), requested, now)
            return Placed(node=node)
        if not offered:
            return self._refusal(arrival, requested, only)
        self._apply(Applied(pod), now)
        answer = FilterDecision(self._index, self.state, LEASE_SECONDS).reserve(pod, request, offered, now)
        choice = answer.choice
        if choice is None or choice.node is None:
            self._index.look_ahead()
            self._apply(Removed(pod), now)
            return self._refusal(arrival, requested, only, answer.result)
        self.state.apply(NodeChosen(pod_key(pod), choice.node, now + LEASE_SECONDS), now)
        self._bind(pod, choice.node, choice.shares, requested, now)
        self._index.look_ahead()
        return Placed(node=choice.node, shares=choice.shares)

    def end(self, uid: str, now: float) -> Pod:
        """The pod ends, and is deleted. Returns it as it was."""
        pod, requested = self._there.pop(uid)
        if self._has_quotas:
            self._refusals.clear()
        for _, freed in self._refusals.values():
            freed.add(pod.spec.node_name)
        ended = Pod(metadata=pod.metadata, spec=pod.spec, status=PodStatus(phase="Succeeded"))
        self._apply(Applied(ended), now)
        self._apply(Removed(ended), now)
        self.offers.give(pod.spec.node_name, requested)
        self.changed.add(pod.spec.node_name)
        return pod

    def put_back(self, pod: Pod, now: float) -> None:
        """A pod that `end` returned is on its node again, with what it held."""
        self._seen(pod, self.offers.request_of(pod), now)

    def pods(self) -> Sequence[Pod]:
        """Returns the pods that have a node."""
        return [pod for pod, _ in self._there.values()]

    def _bind(self, pod: Pod, node: str, shares: PodShares, requested: HostRequest, now: float) -> None:
        metadata = pod.metadata
        if shares:
            at = _BEGINNING + timedelta(seconds=min(now, _LATEST_SECONDS))
            binding = binding_of(pod_name(pod), metadata.uid, node, shares, at, phase=BindPhase.SUCCESS)
            metadata.annotations |= binding.metadata.annotations
        bound = Pod(metadata=metadata, spec=replace(pod.spec, node_name=node), status=PodStatus(phase="Running"))
        self._seen(bound, requested, now)

    def _seen(self, pod: Pod, requested: HostRequest, now: float) -> None:
        """The watch shows a bound pod."""
        # The state knows no other kinds of pods.
        self._apply(Applied(Pod(metadata=pod.metadata, spec=pod.spec, status=pod.status)), now)
        self._there[pod_key(pod)] = pod, requested
        self.offers.take(pod.spec.node_name, requested)
        self.changed.add(pod.spec.node_name)

    def _apply(self, event: ClusterEvent, now: float) -> None:
        self.state.step(event, now, _UNPERFORMED)

    def _refusal(
        self, arrival: Arrival, requested: HostRequest, only: Collection[str] | None, result: FilterResult = _NO_RESULT
    ) -> PlanRefusal:
        """Returns the reasons of all nodes. Where `only` some count, no person sees them."""
        if only is not None:
            return PlanRefusal()
        failed = (*(result.failed_nodes or {}).values(), *(result.failed_and_unresolvable_nodes or {}).values())
        nodes = self.offers.refusals(arrival.constraints, requested) + Counter(failed)
        return PlanRefusal(nodes=nodes, error=result.error or "")
