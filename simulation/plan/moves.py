"""Finds the pods to move so that a waiting pod finds room: the fewest of one node, else a chain over several nodes.

It moves nothing. To move a pod is to delete it and to create it again, and the extender decides where it goes then.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import combinations

from msgspec import Struct

from program.words import counted
from proto.kubernetes.objects import Pod
from scheduler_ext.decide.preempt import EvictionTrial
from scheduler_ext.requests import GpuRequest, pod_key, read_request
from simulation.plan.bound import RoomBound, bound_of
from simulation.plan.engine import Engine, Placed
from simulation.plan.objects import Arrival, WholePod, arrival_of
from simulation.plan.question import Kinds
from simulation.plan.trial import PlanTrial

MOST_MOVES = 8
"""More moves are not proposed for one pod."""
MOST_LOOKS = 60_000
"""Sets of pods that are tried for all kinds of waiting pods together, to see whether one would fit without them."""
LEAST_LOOKS = 10_000
"""Sets that are tried for a kind even if the kinds before it took all."""
MOST_TRIALS = 500
"""Of those, sets for which it is tried where the pods would go."""
MOST_CHAINS = 40
"""Sets of one node from which a chain over several nodes may begin, and of each node on its way."""
LONGEST_CHAIN = 2
"""Further nodes from which pods move to make room for pods that move."""
CHAIN_LOOKS = 5_000
"""Sets of pods that are looked at for the chains of one kind."""
_TRIAL = "trial"
_ABOVE_ALL = 2**31
"""A priority: no room is kept against it."""

_Fits = Callable[[str, Collection[str]], bool]
"""True if the waiting pod fits on a node without these of its pods."""


class Move(Struct, frozen=True, kw_only=True):
    """Delete this pod. Created again, it goes to the node `to`."""

    pod: str
    node: str
    to: str
    gpus: float
    """The amount that it takes, in whole GPUs."""
    by_hand: bool
    """True if nothing creates it again: no controller owns it."""


class PodRemedy(Struct, frozen=True, kw_only=True):
    """What lets one of these waiting pods run. Each remedy begins with the cluster as it is."""

    asks: str
    pods: int
    example: str
    node: str
    """The place where the pod would go; empty if no remedy was found."""
    moves: Sequence[Move]
    """One after the other, in this order."""
    gain: float
    """The GPUs that the pod would get, in whole GPUs."""
    search: str
    """The extent to which the result is proven."""


@dataclass(frozen=True, slots=True)
class _Set:
    """Pods of one node without which the waiting pod fits there. `weight` are the GPUs that they take."""

    node: str
    uids: tuple[str, ...]
    weight: float


class _Fitting:
    """Returns whether a pod would fit on a node without some of its pods, as the cluster is now."""

    def __init__(self, engine: Engine, arrival: Arrival, request: GpuRequest) -> None:
        self._engine = engine
        self._constraints = arrival.constraints
        self._pod = arrival.pod(_TRIAL)
        self._request = request
        self._host_request = engine.offers.request_of(self._pod)
        self._looks: dict[str, EvictionTrial] = {}
        self._bounds: dict[str, RoomBound] = {}

    def fits(self, node: str, gone: Collection[str]) -> bool:
        engine = self._engine
        bound = self._bounds.get(node)
        if bound is None:
            bound = self._bounds[node] = bound_of(engine.state.ledger.alone(node), self._request)
        if not bound.allows(gone):
            return False
        if not engine.offers.has_room(node, self._constraints, self._host_request, map(engine.request_of, gone)):
            return False
        look = self._looks.get(node)
        if look is None:
            alone = engine.state.ledger.alone(node, self._request.namespace)
            look = self._looks[node] = EvictionTrial(alone, self._request, _ABOVE_ALL)
        return look.fits(frozenset(gone)) and not engine.state.ledger.kubelet.refusing(self._pod, [node], gone)


class _SearchEnded(Exception):
    """The limits are reached."""


class MoveSearch:
    """Searches on one cluster. Each trial is undone."""

    def __init__(self, engine: Engine, kinds: Kinds, held: Iterable[Pod]) -> None:
        self._engine = engine
        self._kinds = kinds
        self._movable: dict[str, list[str]] = {}
        for pod in held:
            if is_movable(pod):
                self._movable.setdefault(pod.spec.node_name, []).append(pod_key(pod))
        self._weights: dict[str, float] = {}
        self._left = MOST_LOOKS
        self._tried = self._looks = self._trials = self._proven = 0

    def remedy(self, waiting: Sequence[Arrival]) -> PodRemedy:
        """Finds remedies for one of these pods, which request the same."""
        arrival = waiting[0]
        asking = self._kinds.asking(arrival)
        request = read_request(arrival.pod(_TRIAL), self._engine.state.requests)
        if request is None:
            raise ValueError(f"pod {arrival.name} asks for no GPU")
        node, moves, search = self._found(arrival, _Fitting(self._engine, arrival, request).fits)
        return PodRemedy(
            asks=asking.text,
            pods=len(waiting),
            example=f"{arrival.namespace}/{arrival.name}",
            node=node,
            moves=moves,
            gain=asking.amount if node else 0.0,
            search=search,
        )

    def _found(self, arrival: Arrival, fits: _Fits) -> tuple[str, Sequence[Move], str]:
        """Returns the node, the moves, and the extent to which they are proven; no node if none were found."""
        nodes = [node for node, uids in self._movable.items() if fits(node, uids)]
        if not nodes:
            return "", (), "proven: no node would have room for it, even without all pods that can be moved"
        self._trials = self._proven = self._tried = 0
        self._looks = max(self._left, LEAST_LOOKS)
        try:
            found = self._fewest(arrival, nodes, fits)
            if found is not None:
                return found[0].node, found[1], "proven: fewer moves from one node are not enough"
            why = f"moving up to {MOST_MOVES} pods of one node does not help"
        except _SearchEnded:
            found = self._some(arrival, nodes, fits)
            why = f"at least {counted(self._proven + 1, 'move')} needed; {self._tried} sets of pods were tried, not all"
            if found is not None:
                return found[0].node, found[1], f"not proven: {why}"
        finally:
            self._left -= self._tried
        chain = self._chain(arrival, nodes, fits)
        if chain is not None:
            return chain[0].node, chain[1], f"not proven to be the fewest: pods of several nodes move, and {why}"
        return "", (), f"not proven beyond one node: {why}, and no chain over {LONGEST_CHAIN + 1} nodes was found"

    def _fewest(self, arrival: Arrival, nodes: Sequence[str], fits: _Fits) -> tuple[_Set, Sequence[Move]] | None:
        """Tries all sets, the smallest first; of equally many pods those first that take the fewest GPUs. Raises
        _SearchEnded.
        """
        for size in range(1, MOST_MOVES + 1):
            sets = [each for node in nodes for each in self._sets(node, self._movable[node], size, fits)]
            for each in sorted(sets, key=lambda one: (one.weight, one.node, one.uids)):
                moves = self._moves(arrival, each)
                if moves is not None:
                    return each, moves
            self._proven = size
        return None

    def _sets(self, node: str, pods: Sequence[str], size: int, fits: _Fits) -> Iterator[_Set]:
        for uids in combinations(pods, size):
            if self._tried >= self._looks:
                raise _SearchEnded
            self._tried += 1
            if fits(node, uids):
                yield self._set(node, uids)

    def _some(self, arrival: Arrival, nodes: Sequence[str], fits: _Fits) -> tuple[_Set, Sequence[Move]] | None:
        """Returns one set for each node: without all pods it fits, and each pod that fits beside it stays, the largest
        first.
        """
        self._trials = 0
        sets = [self._least(node, self._movable[node], fits) for node in nodes]
        for each in nsmallest(MOST_TRIALS, sets, key=lambda one: (len(one.uids), one.weight, one.node)):
            moves = self._moves(arrival, each)
            if moves is not None:
                return each, moves
        return None

    def _least(self, node: str, pods: Iterable[str], fits: _Fits) -> _Set:
        """Returns a set of these pods that must all go. Without all of them the waiting pod fits."""
        gone = set(pods)
        for uid in sorted(gone, key=lambda uid: (-self._weight(uid), uid)):
            if fits(node, gone - {uid}):
                gone.remove(uid)
        return self._set(node, tuple(sorted(gone)))

    def _moves(self, arrival: Arrival, candidate: _Set) -> Sequence[Move] | None:
        """Returns places for the pods beside the waiting one; None if one of them finds none. Raises _SearchEnded."""
        self._trials += 1
        if self._trials > MOST_TRIALS:
            raise _SearchEnded
        trial = PlanTrial(self._engine)
        moves = self._cleared(trial, arrival, _TRIAL, candidate, 0)
        trial.undo()
        return moves

    def _chain(self, arrival: Arrival, nodes: Sequence[str], fits: _Fits) -> tuple[_Set, Sequence[Move]] | None:
        """Lets pods move that make room for the pods that move."""
        self._tried, self._looks = 0, CHAIN_LOOKS
        sets = [self._least(node, self._movable[node], fits) for node in nodes]
        for each in nsmallest(MOST_CHAINS, sets, key=lambda one: (len(one.uids), one.weight, one.node)):
            trial = PlanTrial(self._engine)
            moves = self._cleared(trial, arrival, _TRIAL, each, LONGEST_CHAIN)
            trial.undo()
            if moves is not None:
                return each, moves
        return None

    def _cleared(self, trial: PlanTrial, arrival: Arrival, uid: str, candidate: _Set, deeper: int) -> list[Move] | None:
        """Puts the pod in the place of a set, and finds places for the pods of the set. Pods of `deeper` further nodes
        may move for them, but none twice. None if a pod finds no place.
        """
        gone = [trial.end(each) for each in sorted(candidate.uids, key=lambda each: (-self._weight(each), each))]
        if not isinstance(trial.place(arrival, uid, only=[candidate.node]), Placed):
            return None
        moves: list[Move] = []
        for pod in gone:
            found = self._settled(trial, pod, deeper)
            if found is None:
                return None
            moves += found
        return moves

    def _settled(self, trial: PlanTrial, pod: Pod, deeper: int) -> list[Move] | None:
        """Returns the move of a pod that was taken away, and before it those that make room for it."""
        arrival, uid = arrival_of(pod), pod_key(pod)
        found = trial.place(arrival, uid)
        if isinstance(found, Placed):
            return [self._move(pod, found.node)]
        request = read_request(arrival.pod(uid), self._engine.state.requests)
        if not deeper or request is None:
            return None
        for each in self._lightest(_Fitting(self._engine, arrival, request).fits, trial):
            before = trial.done
            further = self._cleared(trial, arrival, uid, each, deeper - 1)
            if further is not None:
                return [*further, self._move(pod, each.node)]
            trial.undo(before)
        return None

    def _lightest(self, fits: _Fits, trial: PlanTrial) -> Sequence[_Set]:
        """Returns sets of one or two pods in whose place a pod fits, those with the fewest GPUs first."""
        sets: list[_Set] = []
        moved = trial.moved
        try:
            for size in (1, 2):
                for node, pods in self._movable.items():
                    there = [uid for uid in pods if uid not in moved]
                    sets += self._sets(node, there, size, fits)
        except _SearchEnded:
            pass
        return nsmallest(MOST_CHAINS, sets, key=lambda one: (one.weight, len(one.uids), one.node, one.uids))

    def _move(self, pod: Pod, to: str) -> Move:
        return Move(
            pod=pod.full_name,
            node=pod.spec.node_name,
            to=to,
            gpus=self._weight(pod_key(pod)),
            by_hand=isinstance(pod, WholePod) and not any(each.controller for each in pod.metadata.owner_references),
        )

    def _set(self, node: str, uids: tuple[str, ...]) -> _Set:
        return _Set(node, uids, sum(map(self._weight, uids)))

    def _weight(self, uid: str) -> float:
        weight = self._weights.get(uid)
        if weight is None:
            weight = self._weights[uid] = self._kinds.asking(arrival_of(self._engine.pod(uid))).amount
        return weight


def is_movable(pod: Pod) -> bool:
    """Whether the pod, deleted, comes back and may go elsewhere."""
    bound = isinstance(pod, WholePod) and pod.stays_with_its_node
    return not bound and pod.metadata.deletion_timestamp is None
