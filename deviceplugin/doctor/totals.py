"""Checks the Node's totals of memory, cores and priority against its GPUs, and the effect of leaving them out."""

from collections.abc import Mapping

from deviceplugin.doctor.finding import Finding, ok, problem, skipped
from deviceplugin.node.desired import Desired, is_met
from deviceplugin.sentences import enumerated
from proto.kubernetes.objects import Node

TOTALS = "Node totals"


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


def _amounts(amounts: Mapping[str, int | str | float]) -> str:
    return enumerated([f"{amount} {name}" for name, amount in amounts.items()], most=len(amounts))
