"""Containers of one pod that kubelet gives the same device ids, on nodes whose daemon knows them by those ids.

Kubelet takes an ordinary init container's ids for later containers of its pod before it takes free ones
(devicesToReuse of pkg/kubelet/cm/devicemanager). What shares ids shares a slot, and with it GPUs and limits: such
containers are placed together, each with the larger of what they ask.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from scheduler_ext.requests import ContainerKind, ContainerNeed, GpuRequest

Sharing = Mapping[int, int]
"""By position of an ordinary init container: the container whose GPUs it has."""


@lru_cache(maxsize=1024)
def with_shared_slots(request: GpuRequest) -> tuple[GpuRequest, Sharing]:
    """The request with equal needs for what shares a slot."""
    sharing = {position: heir for position in _inits(request) if (heir := _heir(request, position)) is not None}
    needs = list(request.needs)
    # An init container may itself share with an earlier one: from the last to the first, then back, all are equal.
    for position in (*reversed(sharing), *sharing):
        needs[position] = needs[sharing[position]] = _larger(needs[position], needs[sharing[position]])
    return replace(request, needs=tuple(needs)), sharing


def _inits(request: GpuRequest) -> list[int]:
    kinds = enumerate(request.kinds)
    return [position for position, kind in kinds if kind is ContainerKind.INIT and request.needs[position] is not None]


def _heir(request: GpuRequest, position: int) -> int | None:
    """The first container after it that lasts and asks for as many; without one the first init container that does."""
    inits = _inits(request)
    later = (n for n in range(position + 1, len(request.needs)) if n not in inits)
    earlier = (n for n in inits if n < position and not _is_taken(request, n, position))
    return next((n for n in (*later, *earlier) if _count(request, n) == _count(request, position)), None)


def _is_taken(request: GpuRequest, init: int, position: int) -> bool:
    """Whether a sidecar between the two keeps the init container's ids."""
    heir = _heir(request, init)
    return heir is not None and init < heir < position and heir not in _inits(request)


def _count(request: GpuRequest, position: int) -> int:
    need = request.needs[position]
    return 0 if need is None else need.count


def _larger(one: ContainerNeed | None, other: ContainerNeed | None) -> ContainerNeed | None:
    if one is None or other is None or one == other:
        return one
    return replace(one, cores=max(one.cores, other.cores), beside=(one, other))
