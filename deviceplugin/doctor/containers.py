"""Checks what containers need besides the GPUs: something that holds them to their parts, and CDI."""

from collections.abc import Sequence
from dataclasses import dataclass

from deviceplugin.container.cdi import missing_sentence
from deviceplugin.container.edits import CDI_STRATEGIES, DeviceListStrategy, HamiCore, NoHamiCore
from deviceplugin.container.limits import Backends
from deviceplugin.doctor.finding import Finding, ok, problem, skipped, warning
from deviceplugin.mode.rules import NodeAbilities, SlotsUnsupported, choose
from deviceplugin.runtimes import APPLY_FOR_SURE, Runtime, doubt, why_no_cdi
from deviceplugin.settings import HamiScheduler, RequestedAllocation
from program.words import capital
from proto.annotations.node_allocation import AllocationMode
from proto.annotations.node_limits import Backend

LIMITS = "Limits"
"""The finding about the backends that hold containers to their parts of GPUs."""
CDI = "CDI"
CDI_SPECS = "CDI specifications"
ALLOCATION = "Allocation"
"""The finding about how Allocate finds the pod that it serves."""

_DRIVER_NEEDS = (
    "Use a driver of release 615 or newer, control groups of version 2 and allocation by slots, or set limits to auto "
    "or hami-core."
)


def judge_limits(found: Backends, requested: frozenset[Backend], unenforced: bool, containers_per_gpu: int) -> Finding:
    """Checks what holds containers to parts of GPUs. Nodes that give out only whole GPUs need nothing."""
    if Backend.DRIVER in found.there & requested:
        return _judge_driver(found.only(requested).hami_core, unenforced)
    if requested == {Backend.DRIVER}:
        why = f"limits is driver, but the driver limits no GPU memory: {found.no_driver}"
        return problem(LIMITS, f"{why}; pods that ask for a part of a GPU are refused here.", _DRIVER_NEEDS)
    return _judge_hami_core(found.only(requested).hami_core, unenforced, containers_per_gpu)


def _judge_driver(hami_core: HamiCore | NoHamiCore, unenforced: bool) -> Finding:
    memory = "The driver holds containers to their part of GPU memory"
    if isinstance(hami_core, HamiCore):
        return ok(LIMITS, f"{memory}, and HAMi-core to their part of one GPU's cores.")
    if unenforced:
        cores = "Nothing holds containers to their part of cores, which is given out too: limits has unenforced."
        return warning(LIMITS, f"{memory}. {cores}", "Install HAMi-core, or take unenforced out of limits.")
    return ok(LIMITS, f"{memory}. Pods that ask for a part of a GPU's cores are refused here: {hami_core.problem}.")


def _judge_hami_core(found: HamiCore | NoHamiCore, unenforced: bool, containers_per_gpu: int) -> Finding:
    if isinstance(found, HamiCore):
        installed = f"{found.library} is installed"
        if not unenforced:
            return ok(LIMITS, f"{installed}.")
        return warning(
            LIMITS,
            f"{installed}, but it may not hold containers to parts of several GPUs, which are given out too: "
            "limits has unenforced.",
            "Take unenforced out of limits, and containers get whole GPUs or a part of one.",
        )
    why, install = (
        capital(found.problem),
        "Install HAMi-core: set hamiCore.enabled of the chart, or run topogpu-device-plugin install-hami-core --from "
        "DIR, DIR holding libvgpu.so.",
    )
    if unenforced:
        return warning(
            LIMITS,
            f"{why}, so no limit of memory or cores holds in containers, although up to {containers_per_gpu} share a "
            "GPU: limits has unenforced.",
            f"{install} Or take unenforced out of limits, and only whole GPUs are given out.",
        )
    refused = "so pods that ask for a part of a GPU are refused here; whole GPUs are given out."
    if found.is_damaged:
        return problem(LIMITS, f"{why}, {refused}", install)
    return ok(LIMITS, f"{why}, {refused}")


def judge_cdi(node: Runtime, strategies: Sequence[DeviceListStrategy], mode: AllocationMode) -> Finding:
    by_strategy = not CDI_STRATEGIES.isdisjoint(strategies)
    if not node.runtime:
        return skipped(CDI, "The versions of kubelet and the container runtime are not known without the Node.")
    off, open_question = why_no_cdi(node), doubt(node)
    if not off and open_question is not None:
        remedy = f"Let the daemon read the Node, or use {APPLY_FOR_SURE}."
        return warning(CDI, f"{capital(open_question.clause)}.", remedy)
    if not off:
        return ok(CDI, f"Kubelet {node.kubelet} and {node.runtime} apply CDI devices.")
    off = capital(off)
    if by_strategy or mode is AllocationMode.SLOTS:
        user = f"--device-list-strategy is {', '.join(strategies)}" if by_strategy else "allocation is by slots"
        return problem(
            CDI,
            f"{off}, but {user}: containers start without GPUs or not at all.",
            "Turn CDI on, or set --device-list-strategy to envvar and --allocation to immediate.",
        )
    return warning(
        CDI,
        f"{off}. Allocation is immediate and needs the node lock; containers get GPUs by --device-list-strategy "
        f"{', '.join(strategies)}.",
        f"To serve without the node lock, use kubelet 1.29, and {APPLY_FOR_SURE}.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiFolderFacts:
    directories: tuple[str, ...]
    missing: tuple[str, ...]
    """CDI names that containers will get but no specification defines."""
    writable: bool
    """The last folder, in which the daemon generates, is writable."""


def judge_cdi_specs(facts: CdiFolderFacts, strategies: Sequence[DeviceListStrategy]) -> Finding:
    if not CDI_STRATEGIES.intersection(strategies):
        return ok(CDI_SPECS, f"None are needed for --device-list-strategy {', '.join(strategies)}.")
    if facts.missing:
        return problem(
            CDI_SPECS,
            missing_sentence(facts.missing, facts.directories, "no program has generated one."),
            "Generate it with nvidia-ctk cdi generate, with UUIDs as names and --vendor k8s.device-plugin.nvidia.com.",
        )
    if not facts.writable:
        return warning(
            CDI_SPECS,
            f"{facts.directories[-1]} cannot be written, so specifications of GPUs that come later are not generated.",
            f"Mount {facts.directories[-1]} of the host into the daemon's container, writable.",
        )
    return ok(CDI_SPECS, f"Every GPU is defined in {' or '.join(facts.directories)}.")


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
