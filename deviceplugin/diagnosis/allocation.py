"""How Allocate learns which pod it serves, and whether that is what this node can do."""

from deviceplugin.allocation.mode import NodeAbilities, SlotsUnsupported, choose
from deviceplugin.diagnosis.finding import Finding, ok, problem, warning
from deviceplugin.settings import HamiScheduler, RequestedAllocation
from proto.annotations.node_allocation import AllocationMode

ALLOCATION = "Allocation"


def judge_allocation(
    requested: RequestedAllocation, node: NodeAbilities, scheduler: HamiScheduler, published: AllocationMode | None
) -> Finding:
    """`published` is what the daemon wrote on the Node; None while it has written nothing."""
    try:
        mode, why = choose(requested, node, scheduler)
    except SlotsUnsupported as error:
        return problem(ALLOCATION, str(error), "Cure that, or leave the choice to the daemon.")
    if published not in (None, mode):
        return warning(
            ALLOCATION,
            f"{why} But the Node says {published.value}, which the daemon chose when it started.",
            "Restart the daemon to let it choose again.",
        )
    return ok(ALLOCATION, why)
