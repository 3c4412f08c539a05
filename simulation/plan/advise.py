"""Finds the fewest pods to move so that a waiting pod finds room, and pods without GPUs that should leave GPU nodes.

It moves nothing. To move a pod is to delete it and to create it again, and the extender decides where it goes then.
"""

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from program.words import counted
from proto.kubernetes.objects import Pod
from proto.kubernetes.requests import host_requested
from scheduler_ext.decide.fgd import Fragmentation
from scheduler_ext.requests import pod_key
from scheduler_ext.workload import Workload
from simulation.plan.engine import Engine, Placed
from simulation.plan.moves import MoveSearch, PodRemedy, is_movable
from simulation.plan.objects import Arrival, arrival_of
from simulation.plan.outcome import PlanRun
from simulation.plan.question import Kinds, Question
from simulation.plan.runs import in_order

MOST_KINDS = 20
MOST_LEAVING = 100
LEAST_GAIN = 0.05
"""GPUs; less is not worth a move."""

Progress = Callable[[float], None]
"""Called with the part that is done, from 0 to 1."""


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
    """Pods in their order: each gain is what the pod adds after those before it have left."""
    notes: Sequence[str]


def advise(question: Question, run: PlanRun, words: str, progress: Progress = lambda _: None) -> Advice:
    """Raises PolicyError for an unknown policy."""
    kinds, cluster = Kinds(question), question.cluster
    engine = Engine(cluster, question.under(run.policy), question.hosts)
    arrivals = in_order(question, run, kinds)
    waiting: dict[bytes, list[Arrival]] = {}
    refused: list[Arrival] = []
    for number, arrival in enumerate(arrivals):
        if not isinstance(engine.place(arrival, f"new-{number}", 0.0), Placed):
            refused.append(arrival)
    for arrival in refused:
        if kinds.asking(arrival).gpus:
            waiting.setdefault(arrival.kind, []).append(arrival)
    search, remedies = MoveSearch(engine, kinds, cluster.held), list[PodRemedy]()
    for several in list(waiting.values())[:MOST_KINDS]:
        remedies.append(search.remedy(several))
        progress(len(remedies) / (min(len(waiting), MOST_KINDS) + 1))
    more = len(waiting) - len(remedies)
    workload = kinds.workload((*map(arrival_of, cluster.held), *arrivals))
    leaving, note = _leaving(engine, kinds, workload, cluster.held)
    progress(1.0)
    others = [each for each in refused if not kinds.asking(each).gpus]
    without = f"no room for {counted(len(others), 'pod')} without GPUs, such as {others[0].name}" if others else ""
    notes = (*cluster.notes, f"{more} more kinds of pods wait" if more else "", without, note)
    return Advice(
        question=words,
        policy=run.policy,
        placed=len(arrivals) - len(refused),
        remedies=remedies,
        leaving=leaving,
        notes=[each for each in notes if each],
    )


def _leaving(engine: Engine, kinds: Kinds, workload: Workload, held: Iterable[Pod]) -> tuple[list[Leaving], str]:
    """Returns the pods without GPUs that should leave, and a note. The one that helps most goes first."""
    ledger = engine.state.ledger
    without = [name for name in engine.offers if name not in ledger.nodes.usages()]
    candidates = {
        pod_key(pod): pod
        for pod in held
        if is_movable(pod) and pod.spec.node_name in ledger.nodes.usages() and not kinds.asking(arrival_of(pod)).gpus
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
        leaving.append(Leaving(pod=pod.full_name, node=node, to=found.node, gain=gain))
        gains = {uid: known for uid, known in gains.items() if uid in candidates and _node(candidates[uid]) != node}
    return leaving, ""


def _gain(engine: Engine, stranding: Fragmentation, pod: Pod) -> float:
    """Returns GPUs that the usual pods could use if this one left."""
    ledger, node = engine.state.ledger, pod.spec.node_name
    usage, room = ledger.nodes.usages().get(node), ledger.hosts.left(node)
    if usage is None or room is None:
        return 0.0
    return stranding.stranded(usage, room) - stranding.stranded(usage, room.plus(host_requested(pod)))


def _node(pod: Pod) -> str:
    return pod.spec.node_name
