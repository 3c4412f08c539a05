"""Finds nodes on which no eviction helps: the pod would not fit there even if nothing else ran."""

from collections.abc import Mapping
from typing import NamedTuple

from proto.devices import MIG_MODE
from scheduler_ext.cluster.snapshot import GpuUsage
from scheduler_ext.decide.misfit import Misfit, NotOffered
from scheduler_ext.decide.reasons import Reason, joined
from scheduler_ext.requests import ContainerNeed

_LASTING = frozenset({Reason.NOT_HEALTHY, Reason.CORDONED, Reason.TYPE, Reason.UUID, Reason.LIMITS})


class NodeRefusal(NamedTuple):
    """A node's line in the answer of `/filter`. If it is `unresolvable`, evicting other pods does not help. `words` are
    the reasons for people.
    """

    reason: str
    unresolvable: bool
    words: str


def unfit_of(misfit: Misfit | NotOffered) -> NodeRefusal:
    return NodeRefusal(misfit.brief, is_unresolvable(misfit), joined(misfit.words()))


def refusals_of(misfits: Mapping[str, Misfit | NotOffered]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns reasons by node: first of the nodes on which eviction may help, then of the unresolvable ones."""
    unfit = {name: unfit_of(misfit) for name, misfit in misfits.items()}
    failed = {name: each.reason for name, each in unfit.items() if not each.unresolvable}
    return failed, {name: each.reason for name, each in unfit.items() if each.unresolvable}


def is_unresolvable(misfit: Misfit | NotOffered) -> bool:
    """Returns whether the node is unknown, has too few GPUs at all, or too few that could ever serve the container."""
    if isinstance(misfit, NotOffered) or not misfit.verdicts:
        return True
    # One GPU in MIG mode may serve every instance that the container requests.
    needed = 1 if any(gpu.device.mode == MIG_MODE for gpu, _ in misfit.verdicts) else misfit.need.count
    lost = sum(_is_lost(gpu, reason, misfit.need) for gpu, reason in misfit.verdicts)
    return misfit.cards - lost < needed


def _is_lost(gpu: GpuUsage, reason: Reason, need: ContainerNeed) -> bool:
    """Returns whether the GPU can never serve the container: for this reason, or because even the whole GPU is too
    small. The second may hide behind a reason that was found before it.
    """
    device = gpu.device
    too_small = need.reserved_mib(device.memory_mib) > device.memory_mib or need.reserved_cores > device.cores
    return too_small or reason in _LASTING
