"""Checks the Node's totals of memory, cores and priority against its GPUs, and the effect of leaving them out."""

from collections.abc import Mapping, Sequence

from deviceplugin.doctor.finding import Finding, ok, problem, skipped, warning
from deviceplugin.node.desired import Desired, is_met
from deviceplugin.node.totals import hazardous, present_totals
from deviceplugin.sentences import enumerated
from deviceplugin.settings import TotalNames
from proto.kubernetes.objects import DeviceClass, Node

TOTALS = "Node totals"
_ON = "Set node_totals to true (--node-totals true)"


def judge_totals(node: Node, totals: Mapping[str, int], *, daemon_serves: bool) -> Finding:
    """Checks the totals. `totals` are what the daemon would write."""
    if is_met(node, Desired(totals=totals)):
        return ok(TOTALS, f"The Node has {_amounts(totals)} in all.")
    if not daemon_serves:
        return skipped(TOTALS, "The daemon does not run, so they are not written.")
    said = {name: node.status.capacity.get(name, "none") for name in totals}
    return problem(
        TOTALS,
        f"The Node's capacity has {_amounts(said)} where its GPUs have {_amounts(totals)}.",
        "Run this with the daemon's own settings (--device-memory-scaling, --config). If they are the same, read the "
        "daemon's log: it must be allowed to patch nodes/status, by its ClusterRole and by the policies.",
    )


def judge_without_totals(
    node: Node, names: TotalNames, resource: str, classes: Sequence[DeviceClass] | None
) -> Finding:
    """Checks a Node without totals. `classes` is None if they could not be read."""
    left = present_totals(node, names)
    if left:
        return problem(
            TOTALS,
            f"They are off, and the capacity still has {enumerated(left)}: kubelet refuses pods that ask for more.",
            "Read the daemon's log: it must be allowed to patch nodes/status. Or remove them by hand.",
        )
    if classes is None:
        return warning(
            TOTALS,
            f"They are off, and whether a DeviceClass for {resource} keeps pods off this node could not be read.",
            f"{_ON}, or let the daemon list deviceclasses in resource.k8s.io.",
        )
    found = hazardous(classes, resource, names)
    if found:
        return problem(
            TOTALS,
            f"They are off, and because of DeviceClass {enumerated(found)} kube-scheduler (from 1.36 on) looks for "
            f"{enumerated(tuple(names))} on the Node: pods that ask for one of them are refused here (cannot fit "
            "resource).",
            f"{_ON}, or remove extendedResourceName from the DeviceClass.",
        )
    return ok(TOTALS, f"They are off, and no DeviceClass is for {resource}.")


def _amounts(amounts: Mapping[str, int | str | float]) -> str:
    return enumerated([f"{amount} {name}" for name, amount in amounts.items()], most=len(amounts))
