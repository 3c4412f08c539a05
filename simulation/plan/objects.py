"""Nodes and pods with all that kube-scheduler reads of them, described clusters, and pods that come to a plan."""

from dataclasses import dataclass, field, replace
from math import inf

import msgspec
from msgspec import Struct

from proto.annotations.keys import POD_WRITTEN_KEYS, POD_WRITTEN_PREFIX
from proto.kubernetes.objects import (
    Affinity,
    Node,
    Object,
    ObjectMeta,
    Pod,
    PodGroup,
    PodSpec,
    PodStatus,
    ResourceQuota,
    Toleration,
)
from scheduler_ext.membership import group_of
from simulation.plan.links import LinkSpeeds


class SelectorRule(Struct, rename="camel", frozen=True, kw_only=True):
    key: str = ""
    operator: str = "In"
    values: tuple[str, ...] = ()


class SelectorTerm(Struct, rename="camel", frozen=True, kw_only=True):
    """All rules must hold. `match_fields` knows only the field `metadata.name`."""

    match_expressions: tuple[SelectorRule, ...] = ()
    match_fields: tuple[SelectorRule, ...] = ()


class RequiredNodes(Struct, rename="camel", frozen=True, kw_only=True):
    """One of the terms must hold."""

    node_selector_terms: tuple[SelectorTerm, ...] = ()


class NodeAffinity(Struct, rename="camel", frozen=True, kw_only=True):
    required_during_scheduling_ignored_during_execution: RequiredNodes | None = None


class WholeAffinity(Affinity):
    node_affinity: NodeAffinity | None = None


class SpreadConstraint(Object):
    when_unsatisfiable: str = "DoNotSchedule"


class WholePodSpec(PodSpec):
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    affinity: WholeAffinity | None = None
    topology_spread_constraints: tuple[SpreadConstraint, ...] = ()


class WholePod(Pod):
    spec: WholePodSpec = msgspec.field(default_factory=WholePodSpec)

    @property
    def stays_with_its_node(self) -> bool:
        """Returns whether a DaemonSet or the node itself made it: on another node there is another one."""
        return any(owner.controller and owner.kind in ("DaemonSet", "Node") for owner in self.metadata.owner_references)


class Constraints(Struct, frozen=True):
    """The constraints of a pod on the nodes to which it may go."""

    selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    terms: tuple[SelectorTerm, ...] | None = None
    """The terms of its required node affinity; None without one."""


ANYWHERE = Constraints()


def constraints_of(pod: WholePod) -> Constraints:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    return Constraints(
        selector=tuple(sorted(pod.spec.node_selector.items())),
        tolerations=pod.spec.tolerations,
        terms=None if required is None else required.node_selector_terms,
    )


def left_out(pod: WholePod) -> str:
    """What of the pod's wishes a plan does not consider; empty if nothing."""
    affinity = pod.spec.affinity
    wishes = {
        "affinity to pods": affinity is not None and affinity.pod_affinity is not None,
        "anti-affinity to pods": affinity is not None and affinity.pod_anti_affinity is not None,
        "topology spread constraints": any(
            each.when_unsatisfiable == "DoNotSchedule" for each in pod.spec.topology_spread_constraints
        ),
    }
    return ", ".join(wish for wish, there in wishes.items() if there)


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A cluster: its nodes, the pods that have a node, quotas, and the groups in which pods start together."""

    nodes: tuple[Node, ...] = ()
    held: tuple[Pod, ...] = ()
    quotas: tuple[ResourceQuota, ...] = ()
    groups: tuple[PodGroup, ...] = ()
    links: LinkSpeeds = field(default_factory=LinkSpeeds)
    notes: tuple[str, ...] = ()

    def beside(self, other: "Described") -> "Described":
        """Returns this cluster with the machines of the other one."""
        links = LinkSpeeds({**self.links.known, **other.links.known})
        return replace(self, nodes=(*self.nodes, *other.nodes), links=links, notes=(*self.notes, *other.notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A pod that comes to the cluster. Times are seconds from the beginning; a pod may stay forever.

    Arrivals with the same `kind` request the same: where one of them finds no room, none does.
    """

    name: str
    namespace: str = "default"
    spec: PodSpec
    annotations: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    constraints: Constraints = ANYWHERE
    at: float = 0.0
    lasts: float = inf
    came_from: str = ""
    """The node from which it is moved; empty for a new pod."""
    kind: bytes = b""
    group: str = ""
    """Namespace and name of the group with which it starts; empty for a pod without one."""

    def pod(self, uid: str) -> Pod:
        """Returns a pod that waits to be placed."""
        metadata = ObjectMeta(
            name=self.name,
            namespace=self.namespace,
            uid=uid,
            labels=self.labels,
            annotations=dict(self.annotations),
        )
        return Pod(metadata=metadata, spec=self.spec, status=PodStatus(phase="Pending"))


def arrival_of(pod: Pod, *, at: float = 0.0, lasts: float = inf, came_from: str = "") -> Arrival:
    """Returns the pod as it would come if it were created again: without node and without a decision."""
    metadata = pod.metadata
    annotations = {key: value for key, value in metadata.annotations.items() if not _is_a_decision(key)}
    spec = msgspec.structs.replace(pod.spec, node_name="")
    constraints = constraints_of(pod) if isinstance(pod, WholePod) else ANYWHERE
    group = group_of(pod)
    parts = [metadata.namespace, spec, annotations, constraints, group]
    kind = msgspec.msgpack.encode(parts, order="sorted")
    return Arrival(
        name=metadata.name,
        namespace=metadata.namespace or "default",
        spec=spec,
        annotations=annotations,
        labels=metadata.labels,
        constraints=constraints,
        at=at,
        lasts=lasts,
        came_from=came_from,
        kind=kind,
        group=group,
    )


def _is_a_decision(key: str) -> bool:
    """Returns whether schedulers and daemons write it."""
    return key in POD_WRITTEN_KEYS or key.startswith(POD_WRITTEN_PREFIX)
