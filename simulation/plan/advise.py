"""Finds the fewest pods to move so that a waiting pod finds room, and pods without GPUs that should leave GPU nodes.

It moves nothing. To move a pod is to delete it and to create it again, and the extender decides where it goes then.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from msgspec import Struct

from program.words import counted
from proto.kubernetes.objects import Pod
from proto.kubernetes.requests import host_requested
from scheduler_ext.cluster.workload import Workload
from scheduler_ext.decide.fgd import Fragmentation
from scheduler_ext.decide.preempt import EvictionTrial
from scheduler_ext.requests import GpuRequest, pod_key, read_request
from simulation.plan.engine import Engine, Placed
from simulation.plan.objects import Arrival, WholePod, arrival_of
from simulation.plan.outcome import PlanRun
from simulation.plan.question import Kinds, Question
from simulation.plan.runs import in_order

MOST_MOVES = 8
"""More moves are not proposed for one pod."""
MOST_LOOKS = 20_000
"""Sets of pods that are tried for one kind of waiting pods, to see whether it would fit without them."""
MOST_TRIALS = 500
"""Of those, sets for which it is tried where the pods would go."""
MOST_KINDS = 20
MOST_LEAVING = 100
LEAST_GAIN = 0.05
"""GPUs; less is not worth a move."""
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
    gain: float
    """The GPUs that the pod would get, in whole GPUs."""
    search: str
    """The extent to which the result is proven."""


class Leaving(Struct, frozen=True, kw_only=True):
    """A pod without GPUs that should leave its GPU node. `gain` is in GPUs that pods with GPUs could use then."""

    pod: str
    node: str
    to: str
    gain: float


class Advice(Struct, frozen=True, kw_only=True):
    question: str
    policy: str
    placed: int
    """Waiting pods that find room without any move."""
    remedies: Sequence[PodRemedy]
    leaving: Sequence[Leaving]
    """In this order: each gain is what the pod adds after those before it have left."""
    notes: Sequence[str]


def advise(question: Question, run: PlanRun, words: str) -> Advice:
    """Raises PolicyError for an unknown policy."""
    kinds, cluster = Kinds(question), question.cluster
    engine = Engine(cluster.nodes, question.under(run.policy), question.hosts, cluster.quotas)
    engine.hold(cluster.held)
    arrivals = in_order(question, run, kinds)
    waiting: dict[bytes, list[Arrival]] = {}
    for number, arrival in enumerate(arrivals):
        if not isinstance(engine.place(arrival, f"new-{number}", 0.0), Placed) and kinds.asking(arrival).gpus:
            waiting.setdefault(arrival.kind, []).append(arrival)
    search = _MoveSearch(engine, kinds, cluster.held)
    remedies = [search.remedy(several) for several in list(waiting.values())[:MOST_KINDS]]
    more = len(waiting) - len(remedies)
    workload = kinds.workload((*map(arrival_of, cluster.held), *arrivals))
    leaving, note = _leaving(engine, kinds, workload, cluster.held)
    notes = (*cluster.notes, f"{more} more kinds of pods wait" if more else "", note)
    return Advice(
        question=words,
        policy=run.policy,
        placed=len(arrivals) - sum(map(len, waiting.values())),
        remedies=remedies,
        leaving=leaving,
        notes=[each for each in notes if each],
    )


@dataclass(frozen=True, slots=True)
class _Set:
    """Pods of one node without which the waiting pod fits there. `weight` are the GPUs that they take."""

    node: str
    uids: tuple[str, ...]
    weight: float


class _Fitting:
    """Returns whether a waiting pod would fit on a node without some of its pods, as the cluster is now."""

    def __init__(self, engine: Engine, arrival: Arrival, request: GpuRequest) -> None:
        self._engine = engine
        self._constraints = arrival.constraints
        self._pod = arrival.pod(_TRIAL)
        self._request = request
        self._asked = engine.offers.asked_by(self._pod)
        self._looks: dict[str, EvictionTrial] = {}

    def fits(self, node: str, gone: Collection[str]) -> bool:
        engine = self._engine
        if not engine.offers.has_room(node, self._constraints, self._asked, map(engine.asked, gone)):
            return False
        look = self._looks.get(node)
        if look is None:
            look = self._looks[node] = EvictionTrial(engine.state.ledger, self._request, _ABOVE_ALL, node)
        return look.fits(frozenset(gone)) and not engine.state.ledger.kubelet.refusing(self._pod, [node], gone)


class _SearchEnded(Exception):
    """The limits are reached."""


class _MoveSearch:
    """Searches on one cluster. Each trial is undone."""

    def __init__(self, engine: Engine, kinds: Kinds, held: Iterable[Pod]) -> None:
        self._engine = engine
        self._kinds = kinds
        self._movable: dict[str, list[str]] = {}
        for pod in held:
            if is_movable(pod):
                self._movable.setdefault(pod.spec.node_name, []).append(pod_key(pod))
        self._weights: dict[str, float] = {}
        self._looks = self._trials = self._proven = 0

    def remedy(self, waiting: Sequence[Arrival]) -> PodRemedy:
        """Finds remedies for one of these pods, which request the same."""
        arrival = waiting[0]
        asking = self._kinds.asking(arrival)
        found: tuple[_Set, Sequence[Move]] | None = None
        self._looks = self._trials = self._proven = 0
        request = read_request(arrival.pod(_TRIAL), self._engine.state.requests)
        if request is None:
            raise ValueError(f"pod {arrival.name} asks for no GPU")
        fits = _Fitting(self._engine, arrival, request).fits
        nodes = [node for node, uids in self._movable.items() if fits(node, uids)]
        if not nodes:
            search = "no node would have room for it, even without all pods that can be moved"
        else:
            try:
                found = self._fewest(arrival, nodes, fits)
                search = "proven: fewer moves from one node are not enough"
                if found is None:
                    search = f"proven: moving up to {MOST_MOVES} pods of one node does not help"
            except _SearchEnded:
                found = self._some(arrival, nodes, fits)
                least = counted(self._proven + 1, "move")
                search = f"not proven: at least {least} needed; {MOST_LOOKS} sets of pods were tried, not all"
        return PodRemedy(
            asks=asking.text,
            pods=len(waiting),
            example=f"{arrival.namespace}/{arrival.name}",
            node="" if found is None else found[0].node,
            moves=() if found is None else found[1],
            gain=asking.amount if found is not None else 0.0,
            search=search,
        )

    def _fewest(self, arrival: Arrival, nodes: Sequence[str], fits: _Fits) -> tuple[_Set, Sequence[Move]] | None:
        """Tries all sets, the smallest first; of equally many pods those first that take the fewest GPUs. Raises
        _SearchEnded.
        """
        for size in range(1, MOST_MOVES + 1):
            sets = [each for node in nodes for each in self._sets(node, size, fits)]
            for each in sorted(sets, key=lambda one: (one.weight, one.node, one.uids)):
                moves = self._tried(arrival, each)
                if moves is not None:
                    return each, moves
            self._proven = size
        return None

    def _sets(self, node: str, size: int, fits: _Fits) -> Iterator[_Set]:
        for uids in combinations(self._movable[node], size):
            self._looks += 1
            if self._looks > MOST_LOOKS:
                raise _SearchEnded
            if fits(node, uids):
                yield self._set(node, uids)

    def _some(self, arrival: Arrival, nodes: Sequence[str], fits: _Fits) -> tuple[_Set, Sequence[Move]] | None:
        """Returns one set for each node: without all pods it fits, and each pod that fits beside it stays, the largest
        first.
        """
        self._trials = 0
        sets = []
        for node in nodes:
            gone = set(self._movable[node])
            for uid in sorted(gone, key=lambda uid: (-self._weight(uid), uid)):
                if fits(node, gone - {uid}):
                    gone.remove(uid)
            sets.append(self._set(node, tuple(sorted(gone))))
        for each in sorted(sets, key=lambda one: (len(one.uids), one.weight, one.node))[:MOST_TRIALS]:
            moves = self._tried(arrival, each)
            if moves is not None:
                return each, moves
        return None

    def _tried(self, arrival: Arrival, candidate: _Set) -> Sequence[Move] | None:
        """Returns places for the pods beside the waiting one; None if one of them finds none. Raises _SearchEnded."""
        self._trials += 1
        if self._trials > MOST_TRIALS:
            raise _SearchEnded
        engine = self._engine
        gone = [engine.end(uid, 0.0) for uid in sorted(candidate.uids, key=lambda uid: (-self._weight(uid), uid))]
        moves, placed = list[Move](), list[str]()
        if isinstance(engine.place(arrival, _TRIAL, 0.0, only=[candidate.node]), Placed):
            placed.append(_TRIAL)
            for pod in gone:
                found = engine.place(arrival_of(pod), pod_key(pod), 0.0)
                if not isinstance(found, Placed):
                    break
                placed.append(pod_key(pod))
                moves.append(self._move(pod, found.node))
        for uid in reversed(placed):
            engine.end(uid, 0.0)
        for pod in gone:
            engine.put_back(pod, 0.0)
        return moves if placed and len(moves) == len(gone) else None

    def _move(self, pod: Pod, to: str) -> Move:
        return Move(
            pod=_name(pod),
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


def _leaving(engine: Engine, kinds: Kinds, workload: Workload, held: Iterable[Pod]) -> tuple[list[Leaving], str]:
    """Returns the pods without GPUs that should leave, and a note. The one that helps most goes first."""
    ledger = engine.state.ledger
    without = [name for name in engine.offers if ledger.nodes.usage(name) is None]
    candidates = {
        pod_key(pod): pod
        for pod in held
        if is_movable(pod)
        and ledger.nodes.usage(pod.spec.node_name) is not None
        and not kinds.asking(arrival_of(pod)).gpus
    }
    if candidates and not without:
        return [], "pods without GPUs cannot leave GPU nodes: there is no other node"
    # A type of GPU that is in demand is worth more where the pod goes, but the pods that leave do not change that.
    stranding = Fragmentation(Workload(classes=workload.classes, per_gpu=workload.per_gpu))
    gains: dict[str, float] = {}
    leaving: list[Leaving] = []
    while candidates and len(leaving) < MOST_LEAVING and workload.classes:
        for uid, pod in candidates.items():
            if uid not in gains:
                gains[uid] = _gain(engine, stranding, pod)
        best = max(candidates, key=lambda uid: (gains[uid], uid))
        gain, pod = gains[best], candidates.pop(best)
        if gain < LEAST_GAIN:
            break
        engine.end(best, 0.0)
        found = engine.place(arrival_of(pod), best, 0.0, only=without)
        if not isinstance(found, Placed):
            engine.put_back(pod, 0.0)
            continue
        node = pod.spec.node_name
        leaving.append(Leaving(pod=_name(pod), node=node, to=found.node, gain=gain))
        gains = {uid: known for uid, known in gains.items() if uid in candidates and _node(candidates[uid]) != node}
    return leaving, ""


def _gain(engine: Engine, stranding: Fragmentation, pod: Pod) -> float:
    """Returns GPUs that the usual pods could use if this one left."""
    ledger, node = engine.state.ledger, pod.spec.node_name
    usage, room = ledger.nodes.usage(node), ledger.hosts.left(node)
    if usage is None or room is None:
        return 0.0
    return stranding.stranded(usage, room) - stranding.stranded(usage, room.plus(host_requested(pod)))


def _node(pod: Pod) -> str:
    return pod.spec.node_name


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace or 'default'}/{pod.metadata.name}"
