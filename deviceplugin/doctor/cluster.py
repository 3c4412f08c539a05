"""Checks the API server: whether it can be reached, and whether the daemon has the rights that it needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from deviceplugin.doctor.annotations import LockHolder
from deviceplugin.doctor.finding import Finding, ok, problem, skipped
from deviceplugin.settings import REMEDIATION_LEASE, RemediationSettings
from program.words import as_sentence, enumerated
from proto.kubernetes.errors import ApiError, ApiServerUnconfigured, ApiUnreachable, Forbidden, NotFound, Unauthorized
from proto.kubernetes.objects import Node, Pod

API_SERVER = "API server"
NODE = "Node"
RBAC = "RBAC"

_CORE = '""'
NoAnswer = ApiError | ApiUnreachable | ApiServerUnconfigured
"""The reason why the API server gave no usable answer."""
_SERVICE_ACCOUNT = "the daemon's service account (or the user of the kubeconfig)"


@dataclass(frozen=True, slots=True)
class Right:
    """One verb on one resource, as a rule of a ClusterRole writes them, or of a Role in `namespace`."""

    verb: str
    resource: str
    namespace: str = ""
    group: str = ""
    name: str = ""
    """The object's name; empty for all."""

    def __str__(self) -> str:
        what = f"{self.verb} {self.resource}" + (f" {self.name}" if self.name else "")
        return what + (f" in namespace {self.namespace}" if self.namespace else "")


DAEMON_RIGHTS = (
    *(Right(verb, "nodes") for verb in ("get", "list", "watch", "patch")),
    Right("patch", "nodes/status"),
    *(Right(verb, "pods") for verb in ("get", "list", "watch", "patch")),
    Right("create", "events"),
)
"""The rights that every daemon needs."""


def daemon_rights(remediation: RemediationSettings) -> tuple[Right, ...]:
    """Returns the rights that a daemon with these settings needs."""
    if not remediation.evicts:
        return DAEMON_RIGHTS
    namespace = remediation.lease_namespace
    leases = (Right(verb, "leases", namespace, "coordination.k8s.io", REMEDIATION_LEASE) for verb in ("get", "patch"))
    return (*DAEMON_RIGHTS, Right("create", "pods/eviction"), *leases)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The answers of the API server; missing parts are empty."""

    url: str = ""
    refusal: NoAnswer | None = None
    """The error of reading the Node."""
    node: Node | None = None
    pods: tuple[Pod, ...] = ()
    """Pods bound to the node."""
    rights: Mapping[Right, bool] = field(default_factory=dict)
    holder: LockHolder = field(default_factory=LockHolder)
    """The pod that the node lock names."""


def judge_api(refusal: NoAnswer | None, url: str) -> Finding:
    """Checks the connection. `refusal` is the error of reading the Node. Any answer but Unauthorized shows that the API
    server can be reached.
    """
    if refusal is None or isinstance(refusal, Forbidden | NotFound):
        return ok(API_SERVER, f"{url} answers.")
    if isinstance(refusal, ApiServerUnconfigured):
        return problem(
            API_SERVER, str(refusal), "Give --kubeconfig or set KUBECONFIG; in a pod, mount its service account."
        )
    if isinstance(refusal, Unauthorized):
        return problem(
            API_SERVER,
            f"{url} does not accept our credentials: {refusal}.",
            "Renew the kubeconfig's token or certificate; in a pod, check that its service account exists.",
        )
    return problem(
        API_SERVER,
        as_sentence(str(refusal)),
        "Check the address in the kubeconfig, the network of this node, and that the API server runs.",
    )


def judge_node(refusal: NoAnswer | None, name: str) -> Finding:
    if not name:
        return skipped(NODE, "The name of this node is not known.")
    if refusal is None:
        return ok(NODE, f"The cluster has node {name}.")
    if isinstance(refusal, NotFound):
        return problem(
            NODE,
            f"The cluster has no node {name}, so nothing can be registered.",
            "Give --node-name (or NODE_NAME) the name that kubectl get nodes shows for this machine.",
        )
    if isinstance(refusal, Forbidden):
        return problem(NODE, f"There is no permission to read Node {name}: {refusal}.", _grant([Right("get", "nodes")]))
    return skipped(NODE, "The API server does not answer.")


def judge_rights(allowed: Mapping[Right, bool]) -> Finding:
    """Checks each right; those without an answer are missing."""
    if not allowed:
        return skipped(RBAC, "The API server was not asked, or does not answer such questions.")
    denied = [right for right, may in allowed.items() if not may]
    if denied:
        return problem(
            RBAC,
            f"Not allowed: {enumerated(list(map(str, denied)), most=len(denied))}.",
            _grant(denied),
        )
    return ok(RBAC, f"All {len(allowed)} rights that the daemon needs are granted.")


def _grant(rights: Sequence[Right]) -> str:
    by_role: dict[str, dict[tuple[str, str], list[str]]] = {}
    for right in rights:
        role = f"Role in namespace {right.namespace}" if right.namespace else "ClusterRole"
        by_role.setdefault(role, {}).setdefault((right.group, right.resource), []).append(right.verb)
    return "; ".join(f"Add to the {role} of {_SERVICE_ACCOUNT}: {_rules(verbs)}" for role, verbs in by_role.items())


def _rules(verbs_by_resource: Mapping[tuple[str, str], Sequence[str]]) -> str:
    return ", ".join(
        f"{{apiGroups: [{group or _CORE}], resources: [{resource}], verbs: [{', '.join(verbs)}]}}"
        for (group, resource), verbs in verbs_by_resource.items()
    )
