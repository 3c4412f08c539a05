"""Taints of nodes and tolerations of pods, as kube-scheduler compares them (pure).

Source: ToleratesTaint of k8s.io/api/core/v1, and the filters NodeUnschedulable and TaintToleration of kube-scheduler.
"""

from collections.abc import Iterable
from typing import NamedTuple

from proto.kubernetes.objects import Node, Toleration

NO_SCHEDULE = "NoSchedule"
_REPELLING = (NO_SCHEDULE, "NoExecute")


class Taint(NamedTuple):
    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


CORDON = Taint("node.kubernetes.io/unschedulable", "", NO_SCHEDULE)
"""The taint that `kubectl cordon` amounts to."""


def repelling(node: Node) -> tuple[Taint, ...]:
    """Returns the taints that keep pods away which do not tolerate them. A cordon comes first."""
    written = (Taint(*(str(each.get(name) or "") for name in Taint._fields)) for each in node.spec.taints)
    found = (each for each in written if each.effect in _REPELLING and each[::2] != CORDON[::2])
    cordoned = node.spec.unschedulable or any(each.get("key") == CORDON.key for each in node.spec.taints)
    return (*([CORDON] if cordoned else ()), *found)


def toleration_of(resource: str) -> Toleration:
    """Returns the one that the admission plugin ExtendedResourceToleration gives to pods that request the resource."""
    return Toleration(key=resource, operator="Exists", effect=NO_SCHEDULE)


def untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> Taint | None:
    """Returns the first taint that none of the tolerations covers; None if all are covered."""
    borne = tuple(tolerations)
    return next((taint for taint in taints if not any(_bears(each, taint) for each in borne)), None)


def _bears(toleration: Toleration, taint: Taint) -> bool:
    exists = toleration.operator == "Exists"
    same_key = toleration.key == taint.key or (exists and not toleration.key)
    same_effect = toleration.effect in ("", taint.effect)
    return same_key and same_effect and (exists or toleration.value == taint.value)
