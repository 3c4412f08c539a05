"""The first line of a report: which policy does best, by how much, and how sure that is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev

from msgspec.structs import replace

from program.words import counted, spaced
from simulation.plan.outcome import PlanOutcome

_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t for 95 %, two-sided, with 1 to 15 degrees of freedom; 2.131 is a safe bound for more."""

Values = Mapping[str, Sequence[float]]
"""A value for each order of the pods, by policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A difference between two policies over the same orders, with its 95 % interval if there are several."""

    middle: float
    low: float | None = None
    high: float | None = None
    orders: int = 1

    @property
    def is_clear(self) -> bool:
        """Returns whether one policy is better whatever the order. Of one order that is not known."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def interval(differences: Sequence[float]) -> Interval:
    """Returns the mean with its 95 % interval by Student's t."""
    middle, orders = mean(differences), len(differences)
    if orders < 2:
        return Interval(middle=middle, orders=orders)
    around = _T95[min(orders - 1, len(_T95)) - 1] * stdev(differences) / sqrt(orders)
    return Interval(middle=middle, low=middle - around, high=middle + around, orders=orders)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Criterion:
    """A figure by which policies are compared, and `more`, a difference in words."""

    value: Callable[[PlanOutcome], float]
    says: Callable[[float], str]
    """Returns the value in words."""
    more: Callable[[float], str]
    title: str
    sign: int = 1
    """The sign is -1 if less is better."""
    digits: int = 1


_WAITING = _Criterion(
    value=lambda run: 0.0 if run.delay is None else float(run.delay.never),
    says=lambda pods: f"{pods:.1f} pods are never placed",
    more=lambda pods: f"{pods:.1f} fewer",
    title="leaves the fewest pods without a node",
    sign=-1,
)
_HOURS = _Criterion(
    value=lambda run: 0.0 if run.delay is None else run.delay.mean / 3600,
    says=lambda hours: f"{hours:.2f} h on average",
    more=lambda hours: f"{hours:.2f} h less",
    title="lets pods with GPUs wait least",
    sign=-1,
    digits=2,
)
_GIVEN = _Criterion(
    value=lambda run: run.allocated,
    says=lambda percent: f"{percent:.1f} % of all GPUs",
    more=lambda points: f"{points:.1f} points more",
    title="gives most to pods",
)
_WHOLE = _Criterion(
    value=lambda run: float(run.end.whole),
    says=lambda gpus: f"{gpus:.1f} whole GPUs stay free",
    more=lambda gpus: f"{gpus:.1f} more",
    title="keeps most for large pods, where all find room",
)
_LINKED = _Criterion(
    value=lambda run: run.several.gbps or 0.0,
    says=lambda speed: f"{speed:.0f} GB/s between the GPUs of a pod",
    more=lambda speed: f"{speed:.0f} GB/s more",
    title="connects GPUs best, where all find room",
    digits=0,
)


def verdict(outcomes: Sequence[PlanOutcome]) -> str:
    """Returns the sentence about these runs, which are of one question."""
    after = [outcome for outcome in outcomes if not outcome.run.before]
    if not after:
        return "no run was performed"
    for criterion in _criteria(after):
        values = {policy: [criterion.value(run) for run in runs] for policy, runs in _by_policy(after).items()}
        if len(_equal(criterion, values)) < len(values):
            return f"{_compared(criterion, values)}.{_change(outcomes)}"
    policies = list(_by_policy(after))
    who = policies[0] if len(policies) == 1 else f"all {len(policies)} policies do the same here"
    same = [run for run in after if run.run.policy == policies[0]]
    placed, given = mean(run.placed for run in same), mean(run.allocated for run in same)
    orders = f", mean of {len(same)} orders of the pods" if len(same) > 1 else ""
    words = f"{_number(placed)} of {counted(after[0].pods, 'pod')} placed, {given:.1f} % of all GPUs given to pods"
    return f"{who}: {words}{orders}.{_change(outcomes)}"


def _criteria(runs: Sequence[PlanOutcome]) -> Sequence[_Criterion]:
    """Returns what decides, the most important first. Pods are no measure: many small ones count more than a large
    one.
    """
    if any(run.delay is not None for run in runs):
        return _WAITING, _HOURS
    # The same pods take different parts of different GPUs.
    everywhere = all(run.placed == run.pods for run in runs)
    return (_WHOLE, _LINKED) if everywhere else (_GIVEN, _WHOLE, _LINKED)


def _compared(criterion: _Criterion, values: Values) -> str:
    best = _equal(criterion, values)
    other = max(values.keys() - set(best), key=lambda policy: criterion.sign * mean(values[policy]))
    found = interval([criterion.sign * (a - b) for a, b in zip(values[best[0]], values[other], strict=True)])
    ours, theirs = criterion.says(mean(values[best[0]])), criterion.says(mean(values[other]))
    names = f"{best[0]} (like {', '.join(best[1:])})" if len(best) > 1 else best[0]
    sure = _sure(criterion, found)
    if found.orders > 1 and not found.is_clear:
        return f"not clear which policy {criterion.title}: {names} ({ours}) or {other} ({theirs}); {sure}"
    return f"{names} {criterion.title}: {ours}, {criterion.more(found.middle)} than {other}; {sure}"


def _equal(criterion: _Criterion, values: Values) -> Sequence[str]:
    """Returns the best policy, and those whose mean is the same as far as it is shown."""
    means = {policy: criterion.sign * mean(each) for policy, each in values.items()}
    best = max(means, key=lambda policy: means[policy])
    return [
        best,
        *(policy for policy in values if policy != best and not round(means[best] - means[policy], criterion.digits)),
    ]


def _sure(criterion: _Criterion, found: Interval) -> str:
    if found.low is None or found.high is None:
        return "one order of the pods, --seeds 1-10 shows how sure that is"
    low, high = (f"{edge:.{criterion.digits}f}".replace("-", "−") for edge in (found.low, found.high))
    return f"95 % sure of {low} to {high}, {found.orders} orders of the pods"


def _by_policy(outcomes: Sequence[PlanOutcome]) -> Mapping[str, Sequence[PlanOutcome]]:
    """Returns the runs of each policy in the order of seeds. Seeds that some policy lacks are left out."""
    found: dict[str, dict[int | None, PlanOutcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.run.policy, {})[outcome.run.seed] = outcome
    shared = set.intersection(*(set(runs) for runs in found.values()))
    if not shared:
        return {policy: list(runs.values())[:1] for policy, runs in found.items()}
    return {
        policy: [runs[seed] for seed in sorted(shared, key=lambda each: each or 0)] for policy, runs in found.items()
    }


def _number(pods: float) -> str:
    """Returns a mean of numbers of pods."""
    return spaced(round(pods)) if abs(pods - round(pods)) < 0.05 else f"{pods:.1f}"


def _change(outcomes: Sequence[PlanOutcome]) -> str:
    """Returns what nodes that are added or drained change, by the first policy; empty if none are."""
    runs = {each.run: each for each in outcomes}
    pairs = [
        (each, runs[now]) for each in outcomes if (now := replace(each.run, before=True)) in runs and now != each.run
    ]
    pairs = [(after, before) for after, before in pairs if after.run.policy == pairs[0][0].run.policy]
    if not pairs:
        return ""
    one, _ = pairs[0]
    moved = len(one.moves) + len(one.stuck)
    new = one.pods - moved
    parts = []
    if moved:
        found = mean(len(after.moves) for after, _ in pairs)
        parts.append(f"{_number(found)} of {counted(moved, 'pod')} of drained nodes find another")
    if new:
        room = _number(mean(after.placed - len(after.moves) for after, _ in pairs))
        without = _number(mean(before.placed for _, before in pairs))
        parts.append(f"{room} of {counted(new, 'new pod')} find room, without the change {without}")
    return f" With {one.run.policy} {'; '.join(parts)}." if parts else ""
