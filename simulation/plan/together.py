"""Places the waiting pods as a batch: the order that gives them most, beside the order in which they would come."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from random import Random

from msgspec import Struct

from simulation.plan.engine import Engine, Placed
from simulation.plan.groups import gathered
from simulation.plan.objects import Arrival
from simulation.plan.outcome import Home, PlanRun
from simulation.plan.question import Kinds, Question
from simulation.plan.runs import home_of, in_order
from simulation.plan.trial import PlanTrial

MOST_ORDERS = 40
MOST_PLACEMENTS = 20_000
"""Pods that are placed in all orders together; the first orders are always tried."""
LEAST_ORDERS = 4

Progress = Callable[[float], None]
"""Called with the part that is done, from 0 to 1."""


class Batch(Struct, frozen=True, kw_only=True):
    """The pods that find room in one order, in this order. `gpus` is what they get, in whole GPUs."""

    gpus: float
    homes: Sequence[Home]
    refused: Sequence[str]


class Joint(Struct, frozen=True, kw_only=True):
    """The waiting pods one by one as they come, and the best batch that was found."""

    question: str
    policy: str
    pods: int
    one_by_one: Batch
    together: Batch
    orders: int
    """Orders that were tried. The batch is proven to be the best only if it has all pods."""
    notes: Sequence[str]

    @property
    def gain(self) -> float:
        """Returns GPUs that the batch gets more."""
        return self.together.gpus - self.one_by_one.gpus


def place_together(question: Question, run: PlanRun, words: str, progress: Progress = lambda _: None) -> Joint:
    """Raises PolicyError for an unknown policy, and TooManyPods."""
    kinds, cluster = Kinds(question), question.cluster
    engine = Engine(cluster, question.under(run.policy), question.hosts)
    pods = in_order(question, run, kinds)
    batches = _Batches(engine, kinds, pods)
    most = min(MOST_ORDERS, max(MOST_PLACEMENTS // max(len(pods), 1), LEAST_ORDERS))
    found: list[Batch] = []
    for order in islice(batches.orders(), most):
        found.append(batches.tried(order))
        progress(len(found) / most)
        if not found[-1].refused:
            break
    best = max(found, key=lambda batch: (batch.gpus, len(batch.homes)))
    progress(1.0)
    return Joint(
        question=words,
        policy=run.policy,
        pods=len(pods),
        one_by_one=found[0],
        together=best,
        orders=len(found),
        notes=cluster.notes,
    )


class _Batches:
    """Tries orders on one cluster, each from its beginning."""

    def __init__(self, engine: Engine, kinds: Kinds, pods: Sequence[Arrival]) -> None:
        self._engine = engine
        self._pods = pods
        self._asking = [kinds.asking(each) for each in pods]
        self._refused: Sequence[int] = ()
        """The pods that found no room in the order that was tried last."""

    def orders(self) -> Iterator[list[int]]:
        """Yields the pods as they come; the largest first; those with the most GPUs and the fewest nodes first. Then
        each pod that found no room in the order before comes earlier, by a draw that is the same in every run.
        """
        pods, asking = range(len(self._pods)), self._asking
        yield list(pods)
        yield sorted(pods, key=lambda at: -asking[at].amount)
        order = sorted(pods, key=lambda at: (-asking[at].gpus, self._open(at)))
        yield order
        draw = Random(0)
        while True:
            order = list(order)
            for at in self._refused:
                place = order.index(at)
                order.insert(draw.randint(0, place), order.pop(place))
            yield order

    def _open(self, at: int) -> int:
        """Returns the number of nodes that kube-scheduler would offer."""
        offers, each = self._engine.offers, self._pods[at]
        return len(offers.offered(each.constraints, offers.request_of(each.pod(each.name))))

    def tried(self, order: Sequence[int]) -> Batch:
        order = gathered(order, lambda at: self._pods[at].group)
        trial, homes, refused = PlanTrial(self._engine), list[Home](), list[int]()
        amount = 0.0
        for at in order:
            each = self._pods[at]
            found = trial.place(each, f"batch-{at}")
            if isinstance(found, Placed):
                amount += self._asking[at].amount
                homes.append(home_of(self._engine, each, found))
            else:
                refused.append(at)
        trial.undo()
        self._refused = refused
        return Batch(gpus=round(amount, 6), homes=homes, refused=[_name(self._pods[at]) for at in refused])


def _name(arrival: Arrival) -> str:
    return f"{arrival.namespace}/{arrival.name}"
