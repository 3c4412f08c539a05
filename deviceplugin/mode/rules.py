"""Chooses between slots and immediate. Slots need a kubelet and a runtime that apply CDI devices, pod-resources, and a
folder.
"""

from dataclasses import dataclass

from deviceplugin.runtimes import Runtime, doubt, why_no_cdi
from deviceplugin.settings import HamiScheduler, RequestedAllocation
from proto.annotations.node_allocation import AllocationMode


class SlotsUnsupported(Exception):
    """Slots were configured for a node that does not support them; one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAbilities(Runtime):
    """The facts of the Node object, and the results of trying; a problem is empty if there is none."""

    cdi_problem: str = ""
    """The reason why no spec can be written, as a clause; empty if one can."""
    pod_resources_problem: str = ""
    """The reason why kubelet does not report which container holds what, as a clause; empty if it does."""
    by_slots: bool = False
    """The Node's annotation records that containers were given slots before."""


def choose(
    requested: RequestedAllocation, node: NodeAbilities, scheduler: HamiScheduler = HamiScheduler.NONE
) -> tuple[AllocationMode, str]:
    """Returns the mode, and the reason for it as one sentence. Raises SlotsUnsupported.

    A temporary problem does not end slots that are in use: otherwise their containers could not start again, whereas
    kubelet retries until the problem has passed. Nor does doubt about a switch that is on by default: a container
    without its slot sees no GPU.
    """
    if requested is RequestedAllocation.IMMEDIATE:
        return AllocationMode.IMMEDIATE, "Allocation is immediate, as configured."
    forced = requested is RequestedAllocation.SLOTS
    lasting, passing = _lasting_problem(node, scheduler, forced=forced), node.pod_resources_problem or node.cdi_problem
    if node.by_slots and passing and not lasting:
        return AllocationMode.SLOTS, f"Allocation stays by slots, but no container can start at the moment: {passing}."
    problem = lasting or passing
    if problem and forced:
        raise SlotsUnsupported(f"Allocation by slots is not possible on this node: {problem}.")
    if problem:
        return AllocationMode.IMMEDIATE, f"Allocation is immediate: {problem}."
    if forced:
        return AllocationMode.SLOTS, "Allocation is by slots, as configured."
    versions = f"kubelet {node.kubelet} and {node.runtime} apply CDI devices"
    return AllocationMode.SLOTS, f"Allocation is by slots: {versions}, and pod-resources answers."


def _lasting_problem(node: NodeAbilities, scheduler: HamiScheduler, *, forced: bool) -> str:
    """Returns why slots cannot work, or nothing. A user who forces slots answers for the runtime."""
    if scheduler is not HamiScheduler.NONE:
        return "HAMi's scheduler locks the node for every pod and waits until the pod is marked as served"
    problem = why_no_cdi(node)
    open_question = None if problem or forced else doubt(node)
    if open_question is None or (open_question.likely and node.by_slots):
        return problem
    return open_question.clause
