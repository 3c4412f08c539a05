"""Compares policies: means over the seeds of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from simulation.plan.outcome import PlanOutcome, percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One policy. Percentages are of all GPUs; None where nothing was measured."""

    policy: str
    runs: int = 0
    placed: float | None = None
    """Percent of the pods."""
    at_capacity: float | None = None
    allocated: float
    deviation: float | None = None
    """Standard deviation of `allocated` over the seeds."""
    fragmented: float
    whole_gpus: float
    whole_islands: float
    islands: int
    large_refused: float | None = None
    """Pods with the most GPUs that found no room."""
    gbps: float | None = None
    wait_hours: float | None = None
    p95_hours: float | None = None
    allocated_while_waiting: float | None = None
    never: float | None = None


def summaries(outcomes: Sequence[PlanOutcome]) -> list[Summary]:
    """Returns one for each policy, in the order of their first outcomes; first the cluster as it is now, if it
    has pods.
    """
    by_policy: dict[str, list[PlanOutcome]] = {}
    for outcome in outcomes:
        by_policy.setdefault(outcome.run.title, []).append(outcome)
    return [*_now(outcomes), *(_summary(policy, several) for policy, several in by_policy.items())]


def _now(outcomes: Sequence[PlanOutcome]) -> list[Summary]:
    """Returns the cluster before any pod comes: unchanged if nodes are added or drained."""
    first = next((one for one in outcomes if one.run.before), outcomes[0] if outcomes else None)
    if first is None or first.delay is not None or not first.samples[0].reading.allocated:
        return []
    now = first.samples[0].reading
    return [
        Summary(
            policy="now",
            allocated=percent(now.allocated, now.gpus),
            fragmented=percent(now.fragmented, now.gpus),
            whole_gpus=now.whole,
            whole_islands=now.whole_islands,
            islands=now.islands,
        )
    ]


def _summary(policy: str, runs: Sequence[PlanOutcome]) -> Summary:
    allocated = [run.allocated for run in runs]
    delays = [run.delay for run in runs if run.delay is not None]
    return Summary(
        policy=policy,
        runs=len(runs),
        placed=mean(percent(run.placed, run.pods) for run in runs),
        at_capacity=_mean([run.at_capacity for run in runs if run.at_capacity is not None]),
        allocated=mean(allocated),
        deviation=stdev(allocated) if len(allocated) > 1 else None,
        fragmented=mean(run.fragmented for run in runs),
        whole_gpus=mean(run.end.whole for run in runs),
        whole_islands=mean(run.end.whole_islands for run in runs),
        islands=runs[0].end.islands,
        large_refused=mean(_large_refused(run) for run in runs),
        gbps=_mean([run.several.gbps for run in runs if run.several.gbps is not None]),
        wait_hours=_mean([delay.mean / 3600 for delay in delays]),
        p95_hours=_mean([delay.p95 / 3600 for delay in delays]),
        allocated_while_waiting=_mean([delay.allocated for delay in delays]),
        never=_mean([float(delay.never) for delay in delays]),
    )


def _large_refused(run: PlanOutcome) -> int:
    largest = max(run.sizes, key=lambda size: size.gpus, default=None)
    return 0 if largest is None or largest.gpus < 2 else largest.pods - largest.placed


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Columns of the table that compares policies."""

    title: str
    text: Callable[[Summary], str]


def columns(found: Sequence[Summary], largest: int) -> list[Measure]:
    """Returns the columns for which there are figures. `largest` is the number of GPUs of the largest pods."""
    wanted = [
        Measure(title="policy (nodes/GPUs)", text=lambda one: one.policy),
        Measure(title="runs", text=lambda one: str(one.runs or "")),
        Measure(title="pods placed", text=lambda one: "" if one.placed is None else f"{one.placed:.1f} %"),
        Measure(title="allocated at 100 %", text=lambda one: _percent(one.at_capacity)),
        Measure(title="allocated at the end", text=lambda one: _percent(one.allocated)),
        Measure(title="±", text=lambda one: "" if one.deviation is None else f"{one.deviation:.2f}"),
        Measure(title="fragmented", text=lambda one: _percent(one.fragmented)),
        Measure(title="whole GPUs free", text=lambda one: f"{one.whole_gpus:.0f}"),
        Measure(
            title="NVLink islands free",
            text=lambda one: f"{one.whole_islands:.0f} of {one.islands}" if one.islands else "",
        ),
        Measure(
            title=f"{largest}-GPU pods refused",
            text=lambda one: "" if largest < 2 or one.large_refused is None else f"{one.large_refused:.1f}",
        ),
        Measure(title="GB/s between GPUs", text=lambda one: "" if one.gbps is None else f"{one.gbps:.0f}"),
        Measure(title="mean wait h", text=lambda one: _hours(one.wait_hours)),
        Measure(title="p95 wait h", text=lambda one: _hours(one.p95_hours)),
        Measure(title="allocated while pods wait", text=lambda one: _percent(one.allocated_while_waiting)),
        Measure(title="never placed", text=lambda one: "" if one.never is None else f"{one.never:.1f}"),
    ]
    replays = any(one.wait_hours is not None for one in found)
    ends = {"allocated at the end", "fragmented", "whole GPUs free", "NVLink islands free", "±"}
    return [
        column for column in wanted if any(column.text(one) for one in found) and not (replays and column.title in ends)
    ]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} %"


def _hours(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
