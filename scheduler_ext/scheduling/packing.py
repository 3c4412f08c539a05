"""Rates how good it is for the cluster to place pods of one shape on a node. Nodes in one state share the result."""

from collections.abc import Callable
from typing import cast

from proto.devices import PodShares
from proto.kubernetes.requests import HostAmount
from scheduler_ext.cluster.snapshot import Quota
from scheduler_ext.requests import GpuRequest
from scheduler_ext.scheduling.decide import place
from scheduler_ext.scheduling.effort import Effort
from scheduler_ext.scheduling.fragmentation import Fragmentation
from scheduler_ext.scheduling.states import Standing

MOST_KNOWN = 20_000
EFFORT_OF_A_LEVEL = 20
"""Effort for one node in a new state, in addition to choosing its GPUs."""


class Packing:
    """Rates placements for one shape in one workload. `room` says what is left of a node's CPU and memory."""

    def __init__(
        self,
        request: GpuRequest,
        quota: Quota | None,
        fragmentation: Fragmentation,
        room: Callable[[str], HostAmount | None],
    ) -> None:
        self._request = request
        self._quota = quota
        self._fragmentation = fragmentation
        self._room = room
        filters = request.filter
        self._named = filters.refused_uuids | (filters.uuids or frozenset())
        self._known: dict[tuple[int, HostAmount | None], int] = {}

    def level(self, name: str, standing: Standing, effort: Effort) -> int:
        """The level of a node on which the pod fits, from 0 to 100."""
        usage, room = standing.usage, self._room(name)
        if self._named and any(gpu.device.uuid in self._named for gpu in usage.gpus):
            return self._found(standing, room, effort)
        key = standing.state, room
        level = self._known.get(key)
        if level is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            level = self._known[key] = self._found(standing, room, effort)
        return level

    def _found(self, standing: Standing, room: HostAmount | None, effort: Effort) -> int:
        effort.made += EFFORT_OF_A_LEVEL
        shares = cast("PodShares", place(self._request, standing.usage, self._quota, effort))
        looking = self._fragmentation.effort
        before = looking.made
        level = self._fragmentation.level(self._request, standing.usage, shares, room)
        effort.made += looking.made - before
        return level
