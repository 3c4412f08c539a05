"""Checks how Allocate finds the pod that it serves, and whether this node supports that."""

from deviceplugin.doctor.finding import Finding, ok, problem, warning
from deviceplugin.mode.rules import NodeAbilities, SlotsUnsupported, choose
from deviceplugin.settings import HamiScheduler, RequestedAllocation
from proto.annotations.node_allocation import AllocationMode

ALLOCATION = "Allocation"


def judge_allocation(
    requested: RequestedAllocation, node: NodeAbilities, scheduler: HamiScheduler, published: AllocationMode | None
) -> Finding:
    """Checks the mode. `published` is what the daemon wrote on the Node; None if it has written nothing."""
    try:
        mode, why = choose(requested, node, scheduler)
    except SlotsUnsupported as error:
        return problem(ALLOCATION, str(error), "Correct that, or let the daemon choose.")
    if published not in (None, mode):
        return warning(
            ALLOCATION,
            f"{why} But the Node has {published.value}, which the daemon chose when it started.",
            "Restart the daemon to let it choose again.",
        )
    return ok(ALLOCATION, why)
