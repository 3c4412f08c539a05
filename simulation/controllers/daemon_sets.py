"""The stand-in for the controller of DaemonSets (pure). Source: Kubernetes documentation, "DaemonSet"."""

from collections.abc import Iterator, Sequence

from proto.decoding import converted
from proto.kubernetes.objects import Node
from proto.kubernetes.taints import NO_SCHEDULE
from simulation.controllers.steps import (
    REVISION,
    Create,
    Delete,
    JsonObject,
    Step,
    digest_of,
    has_ended,
    is_leaving,
    is_ready,
    labels_of,
    living,
    name_of,
    part_of,
    status_written,
    templated,
)
from simulation.plan.objects import WholePod, constraints_of
from simulation.plan.offers import node_problem

_TOLERATIONS = [
    {"key": f"node.kubernetes.io/{problem}", "operator": "Exists", "effect": effect}
    for problem, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("not-ready", NO_SCHEDULE),
        ("disk-pressure", NO_SCHEDULE),
        ("memory-pressure", NO_SCHEDULE),
        ("pid-pressure", NO_SCHEDULE),
        ("unschedulable", NO_SCHEDULE),
    )
]
_NAMED_NODE = (
    *("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms", 0),
    *("matchFields", 0, "values", 0),
)
"""The place of the node's name in a pod that waits."""
_STAYS = {"operator": "Exists", "effect": NO_SCHEDULE}
"""A pod that runs stays on a node that gets a taint which only keeps new pods away."""


def daemon_set_steps(daemon_set: JsonObject, pods: list[JsonObject], nodes: Sequence[JsonObject]) -> Iterator[Step]:
    """Keeps one pod on each node that its template allows, and replaces those of an older template."""
    spec, there = daemon_set["spec"], list[JsonObject]()
    newest = digest_of(spec["template"])
    allowed = {name_of(node) for node in nodes if _may_run(daemon_set, node)}
    may_stay = {name_of(node) for node in nodes if _may_run(daemon_set, node, _STAYS)}
    taken: set[str] = set()
    for pod in pods:
        node = _node_of(pod)
        if is_leaving(pod):
            taken.add(node)
        elif has_ended(pod) or node not in may_stay or node in taken:
            yield Delete("pods", pod)
        else:
            taken.add(node)
            there.append(pod)
    for node in sorted(allowed - taken):
        yield Create(_pod(daemon_set, node, newest))
    yield from _status(daemon_set, living(there), allowed, newest)
    if spec["updateStrategy"]["type"] == "RollingUpdate":
        yield from _replaced(daemon_set, there, len(allowed), newest)


def _replaced(daemon_set: JsonObject, there: list[JsonObject], wanted: int, newest: str) -> Iterator[Step]:
    """Deletes pods of an older template: those that are not ready, and as many others as may be unavailable."""
    old = [pod for pod in there if labels_of(pod).get(REVISION) != newest]
    rolling = daemon_set["spec"]["updateStrategy"].get("rollingUpdate") or {}
    most = max(part_of(rolling.get("maxUnavailable", 1), wanted, up=True), 1)
    spare = max(most - (wanted - sum(map(is_ready, there))), 0)
    ready = [pod for pod in old if is_ready(pod)]
    for pod in [*(pod for pod in old if not is_ready(pod)), *ready[:spare]]:
        yield Delete("pods", pod)


def _may_run(daemon_set: JsonObject, node: JsonObject, *more: JsonObject) -> bool:
    template = daemon_set["spec"]["template"]
    tolerations = [*(template["spec"].get("tolerations") or []), *_TOLERATIONS, *more]
    pod = {"metadata": {"name": ""}, "spec": template["spec"] | {"tolerations": tolerations}}
    return not node_problem(converted(node, Node), constraints_of(converted(pod, WholePod)))


def _pod(daemon_set: JsonObject, node: str, revision: str) -> JsonObject:
    """Returns a pod that kube-scheduler places on one node only."""
    template = daemon_set["spec"]["template"]
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    affinity = template["spec"].get("affinity") or {}
    spec = {
        "affinity": affinity | {"nodeAffinity": (affinity.get("nodeAffinity") or {}) | required},
        "tolerations": [*(template["spec"].get("tolerations") or []), *_TOLERATIONS],
    }
    return templated(daemon_set, spec, name=f"{name_of(daemon_set)}-", labels={REVISION: revision})


def _node_of(pod: JsonObject) -> str:
    """Returns the node for which the pod was made; empty for an adopted pod that waits."""
    if pod["spec"].get("nodeName"):
        return str(pod["spec"]["nodeName"])
    found: object = pod["spec"]
    for part in _NAMED_NODE:
        try:
            found = found[part]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return ""
    return str(found)


def _status(daemon_set: JsonObject, there: list[JsonObject], allowed: set[str], newest: str) -> Iterator[Step]:
    right = [pod for pod in there if _node_of(pod) in allowed]
    ready = sum(map(is_ready, right))
    status = {
        "observedGeneration": daemon_set["metadata"]["generation"],
        "desiredNumberScheduled": len(allowed),
        "currentNumberScheduled": len(right),
        "numberMisscheduled": len(there) - len(right),
        "numberReady": ready,
    }
    counts = {
        "numberAvailable": ready,
        "numberUnavailable": len(allowed) - ready,
        "updatedNumberScheduled": sum(labels_of(pod).get(REVISION) == newest for pod in right),
    }
    counted = {name: count for name, count in counts.items() if count}
    yield from status_written("daemonsets", daemon_set, status | counted)
