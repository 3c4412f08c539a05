"""Slots or immediate? Slots need a kubelet and a runtime that know CDI, pod-resources, and a folder for the specs.

Kubelet hands CDI names of device plugins to the runtime since 1.29 (feature gate DevicePluginCDIDevices, beta).
containerd resolves them since 1.7 where `enable_cdi` is set and by default since 2.0, CRI-O since 1.28.
"""

import re
from dataclasses import dataclass

from deviceplugin.reporting import AllocationMode
from deviceplugin.settings import HamiScheduler, RequestedAllocation

Version = tuple[int, int]
_KUBELET: Version = (1, 29)
_CONTAINERD: Version = (2, 0)
_CONTAINERD_WITH_SWITCH: Version = (1, 7)
_CRIO: Version = (1, 28)
_VERSION = re.compile(r"v?(\d+)\.(\d+)")


class SlotsUnsupported(Exception):
    """Slots were demanded of a node that cannot have them; one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAbilities:
    """What the Node object tells, and what was tried; a problem is empty where there is none."""

    kubelet_version: str
    runtime_version: str
    """`containerd://2.1.4`, `cri-o://1.31.0`."""
    cdi_problem: str = ""
    """Why no spec can be written."""
    pod_resources_problem: str = ""
    """Why kubelet cannot be asked who holds what."""
    by_slots: bool = False
    """The Node says that containers were given slots before."""


def choose(
    requested: RequestedAllocation, node: NodeAbilities, scheduler: HamiScheduler = HamiScheduler.NONE
) -> tuple[AllocationMode, str]:
    """The mode, and one sentence that says why. Raises SlotsUnsupported.

    A problem that may pass does not end slots that are in use: their containers could not be started again, while
    kubelet tries again until it has passed.
    """
    if requested is RequestedAllocation.IMMEDIATE:
        return AllocationMode.IMMEDIATE, "Allocation is immediate, as configured."
    forced = requested is RequestedAllocation.SLOTS
    lasting, passing = _lasting_problem(node, scheduler, forced=forced), node.pod_resources_problem or node.cdi_problem
    if node.by_slots and passing and not lasting:
        return AllocationMode.SLOTS, f"Allocation stays by slots, but no container can start for now: {passing}."
    problem = lasting or passing
    if problem and forced:
        raise SlotsUnsupported(f"Allocation by slots is not possible on this node: {problem}.")
    if problem:
        return AllocationMode.IMMEDIATE, f"Allocation is immediate: {problem}."
    if forced:
        return AllocationMode.SLOTS, "Allocation is by slots, as configured."
    versions = f"kubelet {node.kubelet_version} and {node.runtime_version} know CDI"
    return AllocationMode.SLOTS, f"Allocation is by slots: {versions}, and pod-resources answers."


def _lasting_problem(node: NodeAbilities, scheduler: HamiScheduler, *, forced: bool) -> str:
    if scheduler is not HamiScheduler.NONE:
        return "HAMi's scheduler locks the node for every pod and waits until the pod is told that it was served"
    return _kubelet_problem(node.kubelet_version) or _runtime_problem(node.runtime_version, forced=forced)


def _kubelet_problem(text: str) -> str:
    version = _version(text)
    if version is None:
        return "the Node does not tell its kubelet's version"
    return "" if version >= _KUBELET else f"kubelet is {text}, CDI devices need 1.29"


def _runtime_problem(text: str, *, forced: bool) -> str:
    """Whoever demands slots vouches for a switch that nobody can see from here."""
    name, _, number = text.partition("://")
    version = _version(number)
    if version is None:
        return "the Node does not tell its container runtime's version"
    if name == "containerd":
        if version >= (_CONTAINERD_WITH_SWITCH if forced else _CONTAINERD):
            return ""
        needed = "containerd 2.0, or 1.7 with enable_cdi and slots configured"
        return f"the container runtime is {text}, CDI devices need {needed}"
    if name == "cri-o":
        return "" if version >= _CRIO else f"the container runtime is {text}, CDI devices need CRI-O 1.28"
    return "" if forced else f"the container runtime {text} is not known to resolve CDI devices"


def _version(text: str) -> Version | None:
    found = _VERSION.match(text)
    return None if found is None else (int(found[1]), int(found[2]))
