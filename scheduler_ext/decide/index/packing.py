"""Rates how good it is for the cluster to place pods of one shape on a node. Nodes in one state share the result."""

from collections.abc import Callable
from typing import cast

from proto.devices import PodShares
from scheduler_ext.cluster.snapshot import Quota
from scheduler_ext.decide.decision import place
from scheduler_ext.decide.effort import Effort
from scheduler_ext.decide.fgd import Fragmentation, Site
from scheduler_ext.decide.index.best_case import BestCase
from scheduler_ext.decide.index.node_states import Standing
from scheduler_ext.requests import GpuRequest

MOST_KNOWN = 20_000
EFFORT_OF_A_BOUND = 2
EFFORT_OF_A_LEVEL = 20
"""Effort for one node in a new state, in addition to choosing its GPUs."""


class Packing:
    """Rates placements for one shape in one workload. `sites` are by node."""

    def __init__(
        self, request: GpuRequest, quota: Quota | None, fragmentation: Fragmentation, sites: Callable[[str], Site]
    ) -> None:
        self._request = request
        self._quota = quota
        self._fragmentation = fragmentation
        self._sites = sites
        self._best_case = BestCase(request, fragmentation)
        filters = request.filter
        self._named = filters.refused_uuids | (filters.uuids or frozenset())
        self._known: dict[tuple[int, tuple[float, float]], int] = {}

    def most(self, name: str, effort: Effort) -> int:
        """An upper bound of `level`."""
        looking = self._fragmentation.effort
        before = looking.made
        level = self._best_case.level(self._sites(name))
        effort.made += EFFORT_OF_A_BOUND + looking.made - before
        return level

    def level(self, name: str, standing: Standing, effort: Effort) -> int:
        """The level of a node on which the pod fits, from 0 to 100."""
        site = self._sites(name)
        if self._named and any(gpu.device.uuid in self._named for gpu in site.usage.gpus):
            return self._found(site, effort)
        key = standing.state, site.room
        level = self._known.get(key)
        if level is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            level = self._known[key] = self._found(site, effort)
        return level

    def _found(self, site: Site, effort: Effort) -> int:
        effort.made += EFFORT_OF_A_LEVEL
        shares = cast("PodShares", place(self._request, site.usage, self._quota, effort))
        looking = self._fragmentation.effort
        before = looking.made
        level = self._fragmentation.level(self._request, site, shares)
        effort.made += looking.made - before
        return level
