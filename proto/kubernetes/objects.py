"""Typed Kubernetes objects, with only the fields that we use.

Names follow the API in snake case. Unknown fields are ignored on reading, so these structs are never written back
whole: writes are patches, Bindings and Events. Timestamps stay the RFC 3339 text of the wire. Source: Kubernetes API
reference, core/v1, coordination.k8s.io/v1, authentication.k8s.io/v1, authorization.k8s.io/v1, policy/v1,
admissionregistration.k8s.io/v1, resource.k8s.io/v1.
"""

import re
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, TypeVar

import msgspec


class Object(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """Base of all structs: camel case on the wire, defaults left out."""


class OwnerReference(Object):
    kind: str = ""
    name: str = ""
    controller: bool = False


class ObjectMeta(Object):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


class ListMeta(Object):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class Resources(Object):
    """Quantities by resource name, as text; JSON numbers are read as well."""

    limits: dict[str, str | int | float] = {}
    requests: dict[str, str | int | float] = {}


class EnvVar(Object):
    name: str
    value: str = ""
    value_from: dict[str, Any] | None = None


class Container(Object):
    name: str
    image: str = ""
    command: list[str] = []
    args: list[str] = []
    env: list[EnvVar] = []
    resources: Resources = msgspec.field(default_factory=Resources)
    restart_policy: str = ""
    """The restart policy: `Always` on an init container makes it a sidecar."""
    security_context: dict[str, Any] | None = None

    @property
    def is_sidecar(self) -> bool:
        """Returns the restart policy of an init container."""
        return self.restart_policy == "Always"


class SchedulingGroup(Object):
    pod_group_name: str = ""


class WorkloadReference(Object):
    """The group of a pod in Kubernetes 1.35."""

    name: str = ""
    pod_group: str = ""
    pod_group_replica_key: str = ""


class PodAffinityTerm(Object):
    namespaces: list[str] = []
    namespace_selector: dict[str, Any] | None = None
    """A selector; an empty one selects all namespaces."""


class WeightedPodAffinityTerm(Object):
    pod_affinity_term: PodAffinityTerm = msgspec.field(default_factory=PodAffinityTerm)


class PodAffinity(Object):
    """One term of affinity or of anti-affinity."""

    required_during_scheduling_ignored_during_execution: list[PodAffinityTerm] = []
    preferred_during_scheduling_ignored_during_execution: list[WeightedPodAffinityTerm] = []


class Affinity(Object):
    node_affinity: Any = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, kw_only=True):
    """A taint that the pod bears; without a `key` every taint, without an `effect` every effect."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class SchedulingGate(Object):
    name: str = ""


class PodSpec(Object):
    node_name: str = ""
    scheduler_name: str = ""
    runtime_class_name: str | None = None
    priority: int | None = None
    priority_class_name: str = ""
    active_deadline_seconds: int | None = None
    termination_grace_period_seconds: int | None = None
    affinity: Affinity | None = None
    node_selector: dict[str, str] = {}
    topology_spread_constraints: tuple[Any, ...] = ()
    resources: Resources | None = None
    """Resources of all containers together, for cpu, memory and huge pages."""
    scheduling_group: SchedulingGroup | None = None
    workload_ref: WorkloadReference | None = None
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    """No scheduler looks at the pod before they are removed."""
    tolerations: tuple[Toleration, ...] = ()
    preemption_policy: str = ""
    """The preemption policy: with `Never`, no other pod may be evicted for this one."""
    restart_policy: str = ""
    init_containers: list[Container] = []
    containers: list[Container] = []

    @property
    def lasts(self) -> float:
        """Returns the seconds after which kubelet has ended it, grace included; infinite without a deadline."""
        if self.active_deadline_seconds is None:
            return inf
        return self.active_deadline_seconds + max(self.termination_grace_period_seconds or 0, 0)


def version_number(version: str) -> int:
    """Returns a resourceVersion for comparison; 0 for one that is no number of etcd's, which have 64 bits.

    Versions of one kind grow (Kubernetes 1.35 promises it).
    """
    return int(version) if version.isascii() and version.isdigit() and len(version) < 20 else 0


class ContainerStateTerminated(Object):
    exit_code: int = 0
    reason: str = ""


class ContainerState(Object):
    waiting: dict[str, Any] | None = None
    running: dict[str, Any] | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(Object):
    name: str = ""
    container_id: str = msgspec.field(name="containerID", default="")
    state: ContainerState = msgspec.field(default_factory=ContainerState)


class Condition(Object):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


POD_SCHEDULED = "PodScheduled"
"""The type of a condition, and its reason where no node was found."""
UNSCHEDULABLE = "Unschedulable"
STATIC_UID = "kubernetes.io/config.mirror"
"""The annotation of a static pod's mirror: the pod's own UID, a hash of its file."""
_OF_A_FILE = re.compile(r"[0-9a-f]{32}")
"""No UID of the API server has this form, so no author of a pod names another one by it, unless that is static."""
TOPOLOGY_AFFINITY_ERROR = "TopologyAffinityError"
"""The reason in the status of a pod that kubelet's Topology Manager refused."""


class PodStatus(Object):
    phase: str = ""
    reason: str = ""
    message: str = ""
    nominated_node_name: str = ""
    """The node on which kube-scheduler has evicted pods for it, or is about to bind it."""
    start_time: str | None = None
    conditions: list[Condition] = []
    init_container_statuses: list[ContainerStatus] = []
    container_statuses: list[ContainerStatus] = []

    @property
    def unscheduled(self) -> Condition | None:
        """Returns the condition that kube-scheduler sets on a pod that it could not place."""
        return next((each for each in self.conditions if (each.type, each.status) == (POD_SCHEDULED, "False")), None)


class Pod(Object):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def kubelet_uid(self) -> str:
        """Returns the UID under which kubelet and the control groups have the pod."""
        written = self.metadata.annotations.get(STATIC_UID, "")
        return written if _OF_A_FILE.fullmatch(written) else self.metadata.uid

    @property
    def full_name(self) -> str:
        """Returns `namespace/name`; of a pod that names no namespace, that of `default`."""
        return f"{self.metadata.namespace or 'default'}/{self.metadata.name}"

    @property
    def reference(self) -> "ObjectReference":
        """Returns what events name as their object."""
        metadata = self.metadata
        return ObjectReference(
            api_version="v1", kind="Pod", namespace=metadata.namespace, name=metadata.name, uid=metadata.uid
        )

    @property
    def all_containers(self) -> tuple[Container, ...]:
        """Returns containers in the order of the device annotations: init containers, then app containers."""
        return (*self.spec.init_containers, *self.spec.containers)

    @property
    def all_statuses(self) -> tuple[ContainerStatus, ...]:
        """Returns the statuses of the containers that have one, in the same order."""
        return (*self.status.init_container_statuses, *self.status.container_statuses)

    def container_id(self, container: str) -> str:
        """Returns the id in the container's status, `containerd://…`; empty before its first start."""
        return next((each.container_id for each in self.all_statuses if each.name == container), "")

    @property
    def is_pending(self) -> bool:
        """Returns whether some of its containers have not been started yet."""
        return self.status.phase in ("", "Pending")

    @property
    def is_running(self) -> bool:
        """Returns whether its init containers have ended and its app containers have been started."""
        return self.status.phase == "Running"

    @property
    def has_failed(self) -> bool:
        return self.status.phase == "Failed"

    @property
    def end(self) -> str:
        """Returns the phase of a pod that has ended, with the reason in its status if it failed."""
        status = self.status
        reason = ": ".join(filter(None, (status.reason, " ".join(status.message.split()))))
        return f"{status.phase}: {reason}" if self.has_failed and reason else status.phase

    @property
    def has_ended(self) -> bool:
        """Returns whether all its containers ended and none starts again: it holds no GPU.

        The garbage collector of pods writes the phase Failed beside containers that kubelet last reported as running.
        """
        if self.status.phase not in ("Succeeded", "Failed"):
            return False
        return all(status.state.running is None for status in self.all_statuses)


class NodeInfo(Object):
    kubelet_version: str = ""
    container_runtime_version: str = ""


class NodeStatus(Object):
    capacity: dict[str, str | int | float] = {}
    allocatable: dict[str, str | int | float] = {}
    conditions: list[Condition] = []
    node_info: NodeInfo = msgspec.field(default_factory=NodeInfo)


class NodeSpec(Object):
    unschedulable: bool = False
    """True on a cordoned node."""
    taints: list[dict[str, Any]] = []
    """All fields, because a patch of one writes the whole list."""


class Node(Object):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class ScopedResourceSelectorRequirement(Object):
    scope_name: str = ""
    operator: str = ""
    values: list[str] = []


class ScopeSelector(Object):
    match_expressions: list[ScopedResourceSelectorRequirement] = []


class ResourceQuotaSpec(Object):
    """`scopes` and `scope_selector` limit the quota to some of the namespace's pods."""

    hard: dict[str, str | int | float] = {}
    scopes: list[str] = []
    scope_selector: ScopeSelector | None = None


class ResourceQuota(Object):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: ResourceQuotaSpec = msgspec.field(default_factory=ResourceQuotaSpec)


class LabelSelectorRequirement(Object):
    key: str = ""
    operator: str = ""
    values: list[str] = []


class LabelSelector(Object):
    """A selector: every rule must match; one without rules selects everything."""

    match_labels: dict[str, str] = {}
    match_expressions: list[LabelSelectorRequirement] = []


class PodDisruptionBudgetSpec(Object):
    selector: LabelSelector | None = None
    """The selector; None selects no pod."""


class PodDisruptionBudgetStatus(Object):
    disruptions_allowed: int = 0
    disrupted_pods: dict[str, str] = {}
    """Times by pod name: evictions that are granted and counted, but whose pod still exists."""


class PodDisruptionBudget(Object):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: PodDisruptionBudgetSpec = msgspec.field(default_factory=PodDisruptionBudgetSpec)
    status: PodDisruptionBudgetStatus = msgspec.field(default_factory=PodDisruptionBudgetStatus)


class GangPolicy(Object):
    min_count: int = 0


class GroupSchedulingPolicy(Object):
    """A policy; with `gang` the pods of a group start together."""

    gang: GangPolicy | None = None


class TopologyConstraint(Object):
    key: str = ""
    """A label of nodes: all pods of the group get nodes with one value of it."""


class GroupConstraints(Object):
    topology: tuple[TopologyConstraint, ...] = ()


class PodGroupSpec(Object):
    scheduling_policy: GroupSchedulingPolicy | None = None
    scheduling_constraints: GroupConstraints | None = None
    min_member: int = 0
    """The number of pods that start together, in the groups of coscheduling and of Volcano."""

    @property
    def together(self) -> int:
        """Returns the number of pods that start together; 0 if each may start alone."""
        gang = self.scheduling_policy.gang if self.scheduling_policy is not None else None
        return self.min_member if gang is None else gang.min_count


class PodGroup(Object):
    """A group of pods, of Kubernetes itself."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: PodGroupSpec = msgspec.field(default_factory=PodGroupSpec)


class CoschedulingPodGroup(PodGroup):
    """A group of kubernetes-sigs/scheduler-plugins."""


class VolcanoPodGroup(PodGroup):
    """A group of Volcano."""


class LeaseSpec(Object):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None


class Lease(Object):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


class Secret(Object):
    type: str = ""
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    data: dict[str, str] = {}
    """The values, in base64."""


class ConfigMap(Object):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    data: dict[str, str] = {}


class MutatingWebhookConfiguration(Object):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    webhooks: list[dict[str, Any]] = []
    """Webhooks as JSON, because a patch of one writes the whole list."""


class ObjectReference(Object):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""


class Binding(Object):
    """A Binding, posted to `pods/<name>/binding`; its annotations are merged into the pod in the same write."""

    metadata: ObjectMeta
    target: ObjectReference


class EventSource(Object):
    component: str = ""
    host: str = ""


class Event(Object, omit_defaults=False):
    """An Event; all fields are written, because the API server's defaults of `type` and `count` differ."""

    metadata: ObjectMeta
    involved_object: ObjectReference
    reason: str = ""
    message: str = ""
    type: str = "Normal"
    count: int = 1
    source: EventSource = msgspec.field(default_factory=EventSource)
    first_timestamp: str | None = None
    last_timestamp: str | None = None


class Status(Object):
    """The answer of the API server instead of an object."""

    status: str = ""
    reason: str = ""
    message: str = ""
    code: int = 0


class ResourceAttributes(Object):
    """The action to check. The empty group is the core one; the empty namespace means all."""

    verb: str = ""
    resource: str = ""
    subresource: str = ""
    group: str = ""
    namespace: str = ""
    name: str = ""
    """The object's name; empty for all."""


class AccessReviewSpec(Object):
    resource_attributes: ResourceAttributes = msgspec.field(default_factory=ResourceAttributes)


class AccessReviewStatus(Object):
    allowed: bool = False
    reason: str = ""


class SelfSubjectAccessReview(Object):
    """The question whether we may do it; it is created for its answer, never stored."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: AccessReviewSpec = msgspec.field(default_factory=AccessReviewSpec)
    status: AccessReviewStatus = msgspec.field(default_factory=AccessReviewStatus)


class UserInfo(Object):
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class TokenReviewSpec(Object):
    token: str = ""


class TokenReviewStatus(Object):
    authenticated: bool = False
    user: UserInfo = msgspec.field(default_factory=UserInfo)
    error: str = ""


class TokenReview(Object):
    """The question whose token this is; it is created for its answer, never stored."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: TokenReviewSpec = msgspec.field(default_factory=TokenReviewSpec)
    status: TokenReviewStatus = msgspec.field(default_factory=TokenReviewStatus)


class NonResourceAttributes(Object):
    path: str = ""
    verb: str = ""


class UserAccessReviewSpec(Object):
    """The user, as a TokenReview names it."""

    user: str = ""
    groups: list[str] = []
    uid: str = ""
    extra: dict[str, list[str]] = {}
    non_resource_attributes: NonResourceAttributes = msgspec.field(default_factory=NonResourceAttributes)


class SubjectAccessReview(Object):
    """The question whether a user may do it; it is created for its answer, never stored."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: UserAccessReviewSpec = msgspec.field(default_factory=UserAccessReviewSpec)
    status: AccessReviewStatus = msgspec.field(default_factory=AccessReviewStatus)


T = TypeVar("T", bound=Object)


class ObjectList(Object, Generic[T]):
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[T] = []


class Resource(msgspec.Struct, Generic[T], frozen=True):
    """The place of objects of one kind on the API server."""

    group_version: str
    plural: str
    namespaced: bool
    type: type[T]

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Returns the URL path; without `namespace`, that of all namespaces."""
        root = "/api" if self.group_version == "v1" else "/apis"
        parts = [root, self.group_version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/".join(parts)


PODS = Resource("v1", "pods", True, Pod)
NODES = Resource("v1", "nodes", False, Node)
RESOURCE_QUOTAS = Resource("v1", "resourcequotas", True, ResourceQuota)
POD_DISRUPTION_BUDGETS = Resource("policy/v1", "poddisruptionbudgets", True, PodDisruptionBudget)
POD_GROUPS: tuple[Resource[PodGroup], ...] = (
    Resource("scheduling.k8s.io/v1", "podgroups", True, PodGroup),
    Resource("scheduling.k8s.io/v1beta1", "podgroups", True, PodGroup),
    Resource("scheduling.k8s.io/v1alpha2", "podgroups", True, PodGroup),
    Resource("scheduling.x-k8s.io/v1alpha1", "podgroups", True, CoschedulingPodGroup),
    Resource("scheduling.volcano.sh/v1beta1", "podgroups", True, VolcanoPodGroup),
)
"""Groups of pods by API, of each the version that is tried first before the others."""
EVENTS = Resource("v1", "events", True, Event)
LEASES = Resource("coordination.k8s.io/v1", "leases", True, Lease)
CONFIG_MAPS = Resource("v1", "configmaps", True, ConfigMap)
SECRETS = Resource("v1", "secrets", True, Secret)
MUTATING_WEBHOOK_CONFIGURATIONS = Resource(
    "admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", False, MutatingWebhookConfiguration
)
SELF_SUBJECT_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io/v1", "selfsubjectaccessreviews", False, SelfSubjectAccessReview
)
TOKEN_REVIEWS = Resource("authentication.k8s.io/v1", "tokenreviews", False, TokenReview)
SUBJECT_ACCESS_REVIEWS = Resource("authorization.k8s.io/v1", "subjectaccessreviews", False, SubjectAccessReview)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One notice for the events of a pod or node."""

    reason: str
    message: str
    warning: bool = True
    distinct: bool = False
    """True if another message counts as a new event, even right after one with the same reason."""
