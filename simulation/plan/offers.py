"""The part of kube-scheduler in a plan: the nodes that it sends to the extender, and where pods without GPUs go.

It knows CPU, memory, the number of pods, other resources, taints, node selectors and required node affinity. It does
not know affinity between pods, topology spread constraints and volumes.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import NamedTuple

from proto.annotations.keys import SUMS
from proto.kubernetes.objects import Node, Pod
from proto.kubernetes.requests import host_amount, host_requested, requested, requested_resources
from proto.kubernetes.taints import CORDON, NO_SCHEDULE, Taint, repelling, untolerated
from proto.quantity import readable_quantity
from scheduler_ext.requests import ResourceNames
from simulation.plan.objects import Constraints, SelectorRule, SelectorTerm
from simulation.words import HostPolicy

NOT_READY = Taint("node.kubernetes.io/not-ready", "", NO_SCHEDULE)
"""The taint of a node that is not ready."""
_UNLIMITED = 1 << 40
"""The amount of a resource for which a node states none."""


class HostRequest(NamedTuple):
    """The amounts that a pod takes of a node beside GPUs."""

    cpu_milli: int
    memory_mib: int
    others: tuple[tuple[str, int], ...]


class _Left(NamedTuple):
    cpu_milli: int
    memory_mib: int
    pods: int


def left_to_extender(names: ResourceNames) -> frozenset[str]:
    """Returns the resources that kube-scheduler ignores, as shipped."""
    return frozenset((*astuple(names), *SUMS))


def request_of(pod: Pod, managed: Collection[str]) -> HostRequest:
    """`managed` resources are left to the extender."""
    host = host_requested(pod)
    names = sorted(name for name in requested_resources(pod) if "/" in name and name not in managed)
    return HostRequest(*host, others=tuple((name, requested(pod, name)) for name in names))


class NodeOffers:
    """Nodes, and what is left of each beside GPUs."""

    def __init__(self, nodes: Sequence[Node], managed: Collection[str], policy: HostPolicy) -> None:
        """`managed` resources are left to the extender."""
        self._managed = frozenset(managed)
        self._policy = policy
        self._nodes = {node.metadata.name: node for node in nodes}
        self._total = {name: _total(node) for name, node in self._nodes.items()}
        self._left = dict(self._total)
        self._other_left: dict[str, Counter[str]] = {}
        self._open: dict[Constraints, tuple[Sequence[str], Mapping[str, str]]] = {}
        """The nodes that pods allow, and why not the others, by their constraints."""

    def __iter__(self) -> Iterator[str]:
        """Yields the names of the nodes."""
        return iter(self._nodes)

    def request_of(self, pod: Pod) -> HostRequest:
        return request_of(pod, self._managed)

    def offered(self, constraints: Constraints, request: HostRequest, only: Collection[str] | None = None) -> list[str]:
        """Returns the nodes with enough beside GPUs, in the order of their list; of those in `only` if given."""
        left, (cpu, memory, others) = self._left, request
        allowed, _ = self._allowed(constraints)
        # Nearly every pod allows all nodes, and then no node has to be looked up.
        known = left.items() if len(allowed) == len(left) else [(name, left[name]) for name in allowed]
        if only is not None:
            known = [(name, left[name]) for name in allowed if name in only]
        fitting = [name for name, (c, m, pods) in known if c >= cpu and m >= memory and pods > 0]
        return [name for name in fitting if not self._short_of(name, others)] if others else fitting

    def has_room(self, node: str, constraints: Constraints, request: HostRequest, gone: Iterable[HostRequest]) -> bool:
        """Returns whether the node would be offered if these pods of it were gone."""
        left = self._left.get(node)
        if left is None or node_problem(self._nodes[node], constraints):
            return False
        freed = list(gone)
        others = Counter[str]()
        for each in freed:
            others.update(dict(each.others))
        return (
            left.cpu_milli + sum(each.cpu_milli for each in freed) >= request.cpu_milli
            and left.memory_mib + sum(each.memory_mib for each in freed) >= request.memory_mib
            and left.pods + len(freed) > 0
            and all(self._others_of(node)[name] + others[name] >= amount for name, amount in request.others)
        )

    def refusals(self, constraints: Constraints, request: HostRequest) -> Counter[str]:
        """Returns how many nodes are not offered for which reason, in kube-scheduler's words."""
        return Counter(self.problems(constraints, request).values())

    def problems(self, constraints: Constraints, request: HostRequest) -> Mapping[str, str]:
        """Returns the nodes that are not offered, each with the reason in kube-scheduler's words."""
        allowed, refused = self._allowed(constraints)
        found = dict(refused)
        for name in allowed:
            left = self._left[name]
            if left.pods <= 0:
                found[name] = "Too many pods"
            elif left.cpu_milli < request.cpu_milli:
                found[name] = "Insufficient cpu"
            elif left.memory_mib < request.memory_mib:
                found[name] = "Insufficient memory"
            elif short := self._short_of(name, request.others):
                found[name] = f"Insufficient {short}"
        return found

    def best_for_hosts(self, offered: Iterable[str]) -> str | None:
        """Returns the node for a pod without GPUs. Of equal nodes the first by name; kube-scheduler would draw one."""
        sign = 1 if self._policy is HostPolicy.MOST_ALLOCATED else -1

        def free(name: str) -> tuple[float, str]:
            left, total = self._left[name], self._total[name]
            parts = left.cpu_milli / max(total.cpu_milli, 1) + left.memory_mib / max(total.memory_mib, 1)
            return sign * parts, name

        return min(offered, key=free, default=None)

    def take(self, node: str, request: HostRequest) -> None:
        self._add(node, request, -1)

    def give(self, node: str, request: HostRequest) -> None:
        self._add(node, request, 1)

    def _add(self, node: str, request: HostRequest, sign: int) -> None:
        """A pod may be on a node that was not recorded."""
        left = self._left.get(node)
        if left is None:
            return
        cpu, memory, others = request
        self._left[node] = _Left(left.cpu_milli + sign * cpu, left.memory_mib + sign * memory, left.pods + sign)
        for name, amount in others:
            self._others_of(node)[name] += sign * amount

    def _short_of(self, node: str, others: Iterable[tuple[str, int]]) -> str:
        """Returns a resource that the node has too little of; empty if there is none."""
        return next((name for name, amount in others if amount > self._others_of(node)[name]), "")

    def _others_of(self, node: str) -> Counter[str]:
        left = self._other_left.get(node)
        if left is None:
            allocatable = self._nodes[node].status.allocatable
            left = self._other_left[node] = Counter(
                {name: readable_quantity(amount) for name, amount in allocatable.items()}
            )
        return left

    def _allowed(self, constraints: Constraints) -> tuple[Sequence[str], Mapping[str, str]]:
        found = self._open.get(constraints)
        if found is None:
            problems = {name: node_problem(node, constraints) for name, node in self._nodes.items()}
            allowed = [name for name, problem in problems.items() if not problem]
            found = allowed, {name: problem for name, problem in problems.items() if problem}
            self._open[constraints] = found
        return found


def node_problem(node: Node, constraints: Constraints) -> str:
    """Returns why kube-scheduler refuses the node whatever runs there, in its words; empty if it does not."""
    named = _named(constraints.terms or ())
    if named is not None and node.metadata.name not in named:
        return "node(s) didn't satisfy plugin(s) [NodeAffinity]"
    ready = all(each.status == "True" for each in node.status.conditions if each.type == "Ready")
    taint = untolerated((*repelling(node), *([] if ready else [NOT_READY])), constraints.tolerations)
    if taint == CORDON:
        return "node(s) were unschedulable"
    if taint == NOT_READY:
        return "node(s) were not ready"
    if taint is not None:
        return f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
    labels = node.metadata.labels
    selected = all(labels.get(key) == value for key, value in constraints.selector)
    if not selected or (constraints.terms is not None and not any(_matches(node, each) for each in constraints.terms)):
        return "node(s) didn't match Pod's node affinity/selector"
    return ""


def _named(terms: Sequence[SelectorTerm]) -> frozenset[str] | None:
    """Returns the nodes to which all terms limit a pod by their names; None if one does not. kube-scheduler looks at no
    other node. Source: PreFilter of plugins/nodeaffinity, kubernetes/kubernetes 1.37.
    """
    names = []
    for term in terms:
        rules = [frozenset(each.values) for each in term.match_fields if each.operator == "In"]
        if not rules:
            return None
        names.append(frozenset.intersection(*rules))
    return frozenset().union(*names) if names else None


def _matches(node: Node, term: SelectorTerm) -> bool:
    """An empty term selects no node."""
    if not (term.match_expressions or term.match_fields):
        return False
    fields = {"metadata.name": node.metadata.name}
    return all(_holds(node.metadata.labels, each) for each in term.match_expressions) and all(
        _holds(fields, each) for each in term.match_fields
    )


def _holds(labels: Mapping[str, str], rule: SelectorRule) -> bool:
    """Returns whether the terms match. Source: nodeaffinity of k8s.io/component-helpers."""
    found = labels.get(rule.key)
    checks: Mapping[str, Callable[[], bool]] = {
        "In": lambda: found in rule.values,
        "NotIn": lambda: found not in rule.values,
        "Exists": lambda: found is not None,
        "DoesNotExist": lambda: found is None,
        "Gt": lambda: _number(found) > _number(next(iter(rule.values), None)),
        "Lt": lambda: _number(found) < _number(next(iter(rule.values), None)),
    }
    return rule.operator in checks and checks[rule.operator]()


def _number(text: str | None) -> float:
    """Without one NaN, which compares with nothing. kube-scheduler reads 64 bits."""
    digits = (text or "").removeprefix("-")
    return int(text or "") if digits.isascii() and digits.isdigit() and len(digits) < 20 else float("nan")


def _total(node: Node) -> _Left:
    amounts = node.status.allocatable
    host = host_amount(amounts)
    return _Left(
        host.cpu_milli if "cpu" in amounts else _UNLIMITED,
        host.memory_mib if "memory" in amounts else _UNLIMITED,
        readable_quantity(amounts["pods"]) if "pods" in amounts else _UNLIMITED,
    )
