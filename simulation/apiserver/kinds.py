"""The kinds that the embedded API server serves, and their places (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServedKind:
    """One served kind; `fields` are its field selectors beside metadata.*, with the value that an absent field has."""

    kind: str
    plural: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    has_status: bool = False
    unconditional: bool = True
    """May be replaced by who does not name the version that is replaced."""
    scales: bool = False
    """Has the subresource `scale`, for `kubectl scale`."""
    counts_changes: bool = False
    """Has metadata.generation, which each change of the spec raises; `kubectl rollout status` waits by it."""
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        """Returns the URL path of the kind's group and version."""
        return f"/apis/{self.group_version}" if self.group else f"/api/{self.version}"

    @property
    def qualified_plural(self) -> str:
        """Returns the plural as error messages write it: `leases.coordination.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


def _fields(*paths: str, **defaults: str) -> Mapping[str, str]:
    return dict.fromkeys(paths, "") | defaults


POD = ServedKind(
    kind="Pod",
    plural="pods",
    short_names=("po",),
    has_status=True,
    fields=_fields(
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
)
NODE = ServedKind(
    kind="Node",
    plural="nodes",
    namespaced=False,
    short_names=("no",),
    has_status=True,
    fields={"spec.unschedulable": "false"},
)
NAMESPACE = ServedKind(
    kind="Namespace",
    plural="namespaces",
    namespaced=False,
    short_names=("ns",),
    has_status=True,
    fields=_fields("status.phase"),
)
EVENT = ServedKind(
    kind="Event",
    plural="events",
    short_names=("ev",),
    fields=_fields(
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
)
CLAIM = ServedKind(kind="PersistentVolumeClaim", plural="persistentvolumeclaims", short_names=("pvc",), has_status=True)
QUOTA = ServedKind(kind="ResourceQuota", plural="resourcequotas", short_names=("quota",), has_status=True)
SECRET = ServedKind(kind="Secret", plural="secrets", fields=_fields("type"))
LEASE = ServedKind(kind="Lease", plural="leases", group="coordination.k8s.io", unconditional=False)
WEBHOOK = ServedKind(
    kind="MutatingWebhookConfiguration",
    plural="mutatingwebhookconfigurations",
    group="admissionregistration.k8s.io",
    namespaced=False,
    unconditional=False,
)
BUDGET = ServedKind(
    kind="PodDisruptionBudget", plural="poddisruptionbudgets", group="policy", short_names=("pdb",), has_status=True
)
PRIORITY_CLASS = ServedKind(
    kind="PriorityClass",
    plural="priorityclasses",
    group="scheduling.k8s.io",
    namespaced=False,
    short_names=("pc",),
)
POD_GROUP = ServedKind(
    kind="PodGroup", plural="podgroups", group="scheduling.k8s.io", version="v1beta1", has_status=True
)
DEPLOYMENT = ServedKind(
    kind="Deployment",
    plural="deployments",
    group="apps",
    short_names=("deploy",),
    has_status=True,
    scales=True,
    counts_changes=True,
)
REPLICA_SET = ServedKind(
    kind="ReplicaSet",
    plural="replicasets",
    group="apps",
    short_names=("rs",),
    has_status=True,
    scales=True,
    counts_changes=True,
)
JOB = ServedKind(kind="Job", plural="jobs", group="batch", has_status=True, counts_changes=True)
STATEFUL_SET = ServedKind(
    kind="StatefulSet",
    plural="statefulsets",
    group="apps",
    short_names=("sts",),
    has_status=True,
    scales=True,
    counts_changes=True,
)
DAEMON_SET = ServedKind(
    kind="DaemonSet", plural="daemonsets", group="apps", short_names=("ds",), has_status=True, counts_changes=True
)
CRON_JOB = ServedKind(
    kind="CronJob", plural="cronjobs", group="batch", short_names=("cj",), has_status=True, counts_changes=True
)
WORKLOADS = (DEPLOYMENT, REPLICA_SET, STATEFUL_SET, DAEMON_SET, JOB, CRON_JOB)
KINDS: tuple[ServedKind, ...] = (
    POD,
    NODE,
    NAMESPACE,
    EVENT,
    QUOTA,
    ServedKind(kind="ConfigMap", plural="configmaps", short_names=("cm",)),
    SECRET,
    ServedKind(kind="ServiceAccount", plural="serviceaccounts", short_names=("sa",)),
    ServedKind(kind="Service", plural="services", short_names=("svc",), has_status=True),
    CLAIM,
    LEASE,
    WEBHOOK,
    BUDGET,
    PRIORITY_CLASS,
    POD_GROUP,
    *WORKLOADS,
)
BY_PLURAL: Mapping[str, ServedKind] = {kind.plural: kind for kind in KINDS}
BY_NAME: Mapping[str, ServedKind] = {kind.kind: kind for kind in KINDS}
"""The subresources that can be written."""
GROUP_VERSIONS: tuple[str, ...] = tuple(dict.fromkeys(kind.group_version for kind in KINDS))
