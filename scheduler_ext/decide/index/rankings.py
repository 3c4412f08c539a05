"""The rankings of the pod shapes requested last, and what a change of the cluster makes of them."""

from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.decide.index.node_states import NodeStates
from scheduler_ext.decide.index.ranking import Ranking
from scheduler_ext.decide.index.verdicts import PodShape
from scheduler_ext.policies import NodePolicy
from scheduler_ext.requests import GpuRequest

MOST_SHAPES = 32
"""Rankings kept. Each takes about 1 MB at 5 000 nodes, up to 3 MB for pods with several containers."""


class Rankings:
    """A ranking for each of these shapes."""

    def __init__(self, ledger: Ledger, states: NodeStates, most_shapes: int | None) -> None:
        self._ledger = ledger
        self._states = states
        self._most_shapes = MOST_SHAPES if most_shapes is None else most_shapes
        self._by_shape: dict[PodShape, Ranking] = {}
        """The ranking used last comes last. An `OrderedDict` would compare shapes three times where this compares once.
        """
        self.changes = 0
        """A number that grows when a node changes: the best node of before may not be the best any more."""

    def shape(self, request: GpuRequest) -> PodShape:
        """Returns the shape of the pod, with what its quota leaves now."""
        self.catch_up()
        quota = self._ledger.quotas.left(request.namespace, request.quota_class)
        covered = quota is None or quota.admits(*self._states.largest.taken(request.needs))
        return PodShape(request=request, quota=None if covered else quota)

    def of(self, shape: PodShape) -> Ranking:
        """Returns the ranking of this shape, without what was found out about nodes that changed since."""
        ranking = self._by_shape.pop(shape, None)
        if ranking is None:
            ranking = Ranking(shape, self._states)
        ranking.update()
        self._by_shape[shape] = ranking
        if len(self._by_shape) > self._most_shapes:
            del self._by_shape[next(iter(self._by_shape))]
        return ranking

    def catch_up(self) -> None:
        """Learns what has changed in the ledger."""
        changes = self._states.catch_up()
        if changes is None:
            return
        self.changes += 1
        if changes.larger_gpu:
            self._by_shape.clear()
        if changes.workload:
            self._by_shape = {shape: each for shape, each in self._by_shape.items() if not _packs(shape)}
        for shape, ranking in self._by_shape.items():
            ranking.outdate(changes.nodes)
            if _packs(shape):
                ranking.outdate(changes.hosts)

    def look_ahead(self) -> None:
        """Finds out what the next pod of the shape requested last would have to wait for."""
        if self._by_shape:
            next(reversed(self._by_shape.values())).look_ahead()


def _packs(shape: PodShape) -> bool:
    return shape.request.policies.node is NodePolicy.FGD
