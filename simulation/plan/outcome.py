"""The findings of a plan: values that are written as JSON and read back."""

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from scheduler_ext.decide.reasons import words_of
from simulation.plan.gauge import Amount, Reading


class PlanRun(Struct, frozen=True, kw_only=True):
    """A policy for nodes and GPUs, and the order of the pods. Without a seed they come as they are given."""

    policy: str
    seed: int | None = None
    before: bool = False
    """True for the cluster without the nodes that are added, and with those that are drained."""

    @property
    def title(self) -> str:
        """Returns the policy, and whether it is about the cluster as it is."""
        return f"{self.policy}, unchanged" if self.before else self.policy


class Sample(Struct, frozen=True, kw_only=True):
    """The cluster after the pods that have come so far."""

    seconds: Amount
    asked: Amount
    """GPUs that all pods so far, also refused ones, request."""
    reading: Reading
    waiting: int
    """Pods that wait at that time."""


class Home(Struct, frozen=True, kw_only=True):
    """The place where a pod went. `gpus` are indices on its node; `waited` is in seconds."""

    pod: str
    node: str
    gpus: Sequence[int] = ()
    waited: float = 0.0
    was: str = ""
    """The drained node on which it was; empty for a new pod."""


class Unplaced(Struct, frozen=True, kw_only=True):
    """Pods of one kind that found no room, with the reasons of the last of them."""

    asks: str
    pods: int
    gpus: int
    """GPUs that one of these pods requests."""
    examples: Sequence[str]
    reasons: Sequence[tuple[str, int]]
    """Reasons and their numbers of nodes, the most frequent first."""


class Delay(Struct, frozen=True, kw_only=True):
    """The time that pods with GPUs waited until they were placed, in seconds; and the pods that never were."""

    mean: float
    p95: float
    longest: float
    at_once: int
    placed: int
    never: int
    allocated: float
    """Percent of all GPUs: the mean over the time in which pods wait, or over all of it if none waits."""


class SeveralGpus(Struct, frozen=True, kw_only=True):
    """Pods of at least one container with several GPUs."""

    pods: int
    placed: int
    gbps: float | None
    """The bandwidth between the GPUs of one container, one direction: the mean over the placed pods."""


class Size(Struct, frozen=True, kw_only=True):
    """Pods by the number of their GPUs."""

    gpus: int
    pods: int
    placed: int


class PlanOutcome(Struct, frozen=True, kw_only=True):
    run: PlanRun
    pods: int
    placed: int
    asked: Amount
    """GPUs that all pods request."""
    at_capacity: float | None
    """Percent of all GPUs that were allocated when pods had requested as many as there are; None if they never did."""
    end: Reading
    several: SeveralGpus
    sizes: Sequence[Size]
    waiting: Sequence[Unplaced]
    moves: Sequence[Home]
    """Pods of drained nodes that found another node."""
    stuck: Sequence[str]
    """Pods of drained nodes that did not, with the reason."""
    delay: Delay | None
    """The means over time, only if pods come and go."""
    samples: Sequence[Sample]
    homes: Sequence[Home] = ()

    @property
    def allocated(self) -> float:
        """Returns percent of all GPUs, at the end."""
        return percent(self.end.allocated, self.end.gpus)

    @property
    def fragmented(self) -> float:
        """Returns percent of all GPUs, at the end."""
        return percent(self.end.fragmented, self.end.gpus)


class PlanReport(Struct, frozen=True, kw_only=True):
    """The answer to one question. Reports with the same `question` can be merged."""

    question: str
    """The question, in words."""
    fingerprint: str
    """The digest of the cluster, the pods and the settings."""
    nodes: int
    gpus: int
    runs: int
    """The runs of the whole question, of which this report may hold some."""
    notes: Sequence[str]
    outcomes: Sequence[PlanOutcome]


def percent(part: float, whole: float) -> float:
    return 100 * part / whole if whole else 0.0


MOST_REASONS = 6
_WORDS: Mapping[str, str] = {
    "Insufficient cpu": "too little CPU",
    "Insufficient memory": "too little memory of the node",
    "Too many pods": "as many pods as the node allows",
}
"""Words for kube-scheduler's own reasons."""


def counted(nodes: Mapping[str, int]) -> Sequence[tuple[str, int]]:
    """Returns the number of nodes for each reason, the most frequent first. A node with several counts for each."""
    found: Counter[str] = Counter()
    for reason, number in nodes.items():
        for words in set(words_of(reason)):
            found[_WORDS.get(words, words)] += number
    ranked = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return ranked[:MOST_REASONS]
