"""Places containers of one pod together if kubelet gives them the same device ids.

Kubelet gives an ordinary init container's ids to later containers of its pod before it takes free ones (devicesToReuse
of pkg/kubelet/cm/devicemanager). Such containers are placed together, each with the larger of their requests, so that
kubelet's records name the GPUs that they have.

Where counts differ, the ids that kubelet combines cannot be predicted. That does no harm: the daemon knows each
container by a slot of its own. A daemon of an earlier release gave containers with the same ids one slot, and so the
same GPUs and limits. Kubelet keeps such a slot for as long as its pod lives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from scheduler_ext.requests import ContainerKind, ContainerNeed, GpuRequest

Sharing = Mapping[int, int]
"""Maps the position of an ordinary init container to the container whose GPUs it shares, which has its own."""


@lru_cache(maxsize=1024)
def with_shared_slots(request: GpuRequest) -> tuple[GpuRequest, Sharing]:
    """Returns the request with equal needs for containers that share a slot. It reads each container a fixed number of
    times.
    """
    sharing = heirs(request.needs, request.kinds)
    groups: dict[int, list[int]] = {}
    for position, heir in sharing.items():
        groups.setdefault(heir, [heir]).append(position)
    needs = list(request.needs)
    for group in groups.values():
        members = [need for position in group if (need := needs[position]) is not None]
        for position, need in zip(group, _largest(members), strict=True):
            needs[position] = need
    return replace(request, needs=tuple(needs)), sharing


def heirs(needs: Sequence[ContainerNeed | None], kinds: Sequence[ContainerKind]) -> Sharing:
    """Returns for the position of each init container the one whose GPUs it shares. That is the first later container
    that lasts and requests as many GPUs. If there is none, it is the first init container that requests as many and
    shares with no other. A container that lasts keeps the ids it took over.
    """
    found: dict[int, int] = {}
    lasting: dict[int, int] = {}
    alone: dict[int, int] = {}
    for position, need in reversed(list(enumerate(needs))):
        if need is None:
            continue
        if kinds[position] is not ContainerKind.INIT:
            lasting[need.count] = position
        elif need.count in lasting:
            found[position] = lasting[need.count]
        else:
            alone[need.count] = position
    for position, need in enumerate(needs):
        if need is not None and kinds[position] is ContainerKind.INIT and position not in found:
            first = alone[need.count]
            if first != position:
                found[position] = first
    return found


def _largest(needs: Sequence[ContainerNeed]) -> Sequence[ContainerNeed]:
    """Returns the largest need for each amount; the needs themselves if all are the same."""
    if all(need == needs[0] for need in needs):
        return needs
    # The larger amount is larger on every GPU, and so is the larger percentage: two needs are enough for all.
    amounts = max((need for need in needs if not need.is_relative), key=lambda need: need.memory_mib, default=None)
    parts = max((need for need in needs if need.is_relative), key=lambda need: need.memory_percent or 0, default=None)
    beside = tuple(need for need in (amounts, parts) if need is not None)
    cores = max(need.cores for need in needs)
    lifted_by = max(need.lifted_by for need in needs)
    return [replace(need, cores=cores, beside=beside, lifted_by=lifted_by) for need in needs]
