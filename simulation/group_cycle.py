"""The cycle in which kube-scheduler 1.37 schedules a group of pods (pure): domains, what is enough, which one wins.

Source: pkg/scheduler/schedule_one_podgroup.go and plugins/gangscheduling of kubernetes/kubernetes 1.37.1.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from simulation import scheduling_queue as queue

JsonObject = dict[str, Any]


def group_key(pod: JsonObject) -> tuple[str, str] | None:
    """Returns namespace and name of the pod's group; None for a pod without one."""
    name = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")
    return (pod["metadata"]["namespace"], name) if name else None


def group_of(pod: JsonObject, groups: Iterable[JsonObject]) -> JsonObject | None:
    """Returns the pod's group; None for a pod without one, or while the group does not exist."""
    key = group_key(pod)
    return next((each for each in groups if (each["metadata"]["namespace"], each["metadata"]["name"]) == key), None)


def members(pod: JsonObject, pods: Iterable[JsonObject]) -> list[JsonObject]:
    """Returns all pods of the pod's group, in the order of the queue."""
    key = group_key(pod)
    return sorted((each for each in pods if group_key(each) == key), key=queue.order)


def min_count(group: JsonObject) -> int:
    """Returns the number of pods that start together; 1 for a group whose pods may start alone."""
    gang = ((group.get("spec") or {}).get("schedulingPolicy") or {}).get("gang") or {}
    return int(gang.get("minCount", 1))


def domains(group: JsonObject, nodes: Iterable[JsonObject], held: Sequence[str], random: Random) -> list[list[str]]:
    """Returns the names of the nodes of each domain, in random order. Once members have nodes, which `held` names, only
    their domain is left. A group without a constraint has one domain of all nodes.
    """
    constraints = ((group.get("spec") or {}).get("schedulingConstraints") or {}).get("topology") or []
    if not constraints:
        return [sorted(node["metadata"]["name"] for node in nodes)]
    found: dict[str, list[str]] = {}
    for node in nodes:
        value = (node["metadata"].get("labels") or {}).get(constraints[0]["key"])
        if value is not None:
            found.setdefault(value, []).append(node["metadata"]["name"])
    left = [sorted(names) for _, names in sorted(found.items()) if not held or set(held) & set(names)]
    random.shuffle(left)
    return left


@dataclass(slots=True)
class Simulated:
    """One domain as far as it is simulated. `before` members had nodes already, and `waiting` have none."""

    needed: int
    before: int
    waiting: int
    nodes: dict[str, str] = field(default_factory=dict)
    """The node of each member that fits, by UID."""
    tried: int = 0
    problems: dict[str, str] = field(default_factory=dict)
    """The reason of each member that does not fit, by UID."""

    def placed(self, uid: str, node: str) -> None:
        self.tried += 1
        self.nodes[uid] = node

    def refused(self, uid: str, problem: str) -> None:
        self.tried += 1
        self.problems[uid] = problem

    @property
    def is_hopeless(self) -> bool:
        """Returns whether the members that are left cannot be enough: kube-scheduler then ends the simulation."""
        return self.before + len(self.nodes) + self.waiting - self.tried < self.needed

    @property
    def is_enough(self) -> bool:
        return bool(self.nodes) and self.before + len(self.nodes) >= self.needed


def winner(simulated: Iterable[Simulated], random: Random) -> Mapping[str, str] | None:
    """Returns the nodes of the placement with the most pods, one of several at random; None if none is enough."""
    enough = [each.nodes for each in simulated if each.is_enough]
    most = max(map(len, enough), default=0)
    best = [nodes for nodes in enough if len(nodes) == most]
    return random.choice(best) if best else None
