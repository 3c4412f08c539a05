"""A report as one HTML page that needs nothing from elsewhere."""

from collections.abc import Callable, Iterable, Sequence
from html import escape

from simulation.plan.chart import Axes, Point, bar_chart, line_chart
from simulation.plan.compare import columns, summaries
from simulation.plan.outcome import PlanOutcome, PlanReport, Sample, percent
from simulation.plan.tables import (
    MOST_STUCK,
    MOVED,
    REFUSED,
    first_of_each,
    largest,
    moved_rows,
    moved_title,
    refusals,
    refused_rows,
)
from simulation.plan.verdict import verdict

_STYLE = "\n".join(
    (
        ":root { color-scheme: light dark; }",
        "body { font: 15px/1.5 sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }",
        "table { border-collapse: collapse; margin: 1rem 0; }",
        "th, td { padding: 0.25rem 0.75rem; text-align: left; border-bottom: 1px solid #80808040; }",
        "td { vertical-align: top; }",
        "svg { width: 100%; max-width: 48rem; height: auto; display: block; margin: 1rem 0; }",
        ".note { color: #808080; }",
    )
)


def page(report: PlanReport) -> str:
    outcomes = first_of_each(report.outcomes)
    parts = [
        f"<h1>What would these policies do?</h1><p><strong>{escape(verdict(report.outcomes))}</strong></p>",
        f"<p>{escape(report.question)}.</p>",
        *(f'<p class="note">{escape(note)}</p>' for note in report.notes),
        _comparison(report),
        *charts(report),
        *(_moved(outcome) for outcome in outcomes if outcome.moves or outcome.stuck),
        *(f"<h2>{escape(title)}</h2>{_table(REFUSED, refused_rows(kinds))}" for title, kinds in refusals(outcomes)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>TopoGPU: plan</title>'
        f"<style>{_STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def chart_of(report: PlanReport) -> str:
    """Returns the chart that compares policies."""
    return charts(report)[0]


def charts(report: PlanReport) -> list[str]:
    """Returns the comparison first. Lines are the first run of each policy."""
    outcomes = first_of_each(report.outcomes)
    if any(outcome.delay is not None for outcome in outcomes):
        return [_waits(report), _lines(_OVER_TIME, outcomes, _hours, _allocated), *_over(_TIME, outcomes, _hours)]
    return [_lines(_OVER_ARRIVALS, outcomes, _demand, _allocated), *_over(_ARRIVALS, outcomes, _demand)]


_ARRIVALS, _TIME = "asked for so far, percent of all GPUs", "hours"
_OVER_ARRIVALS = Axes(title="Allocated GPUs", x=_ARRIVALS, y="percent of all GPUs", high=100)
_OVER_TIME = Axes(title="Allocated GPUs", x=_TIME, y="percent of all GPUs", low=0, high=100)


def _over(x: str, outcomes: Sequence[PlanOutcome], across: Callable[[Sample], float]) -> list[str]:
    found = [
        _lines(Axes(title="Fragmented GPUs", x=x, y="percent of all GPUs", low=0), outcomes, across, _fragmented),
        _lines(Axes(title="GPUs that no pod uses", x=x, y="GPUs", low=0), outcomes, across, _whole),
    ]
    if any(outcome.end.islands for outcome in outcomes):
        axes = Axes(title="NVLink islands that no pod uses", x=x, y="islands", low=0)
        found.append(_lines(axes, outcomes, across, lambda sample: sample.reading.whole_islands))
    return found


def _lines(
    axes: Axes, outcomes: Sequence[PlanOutcome], across: Callable[[Sample], float], up: Callable[[Sample], float]
) -> str:
    lines: dict[str, list[Point]] = {
        outcome.run.title: [(across(sample), up(sample)) for sample in outcome.samples] for outcome in outcomes
    }
    return line_chart(axes, lines)


def _waits(report: PlanReport) -> str:
    found = [one for one in summaries(report.outcomes) if one.wait_hours is not None]
    bars = [(one.policy, one.wait_hours or 0.0, f"{one.wait_hours:.2f} h") for one in found]
    return bar_chart("Mean time for which pods with GPUs wait", bars)


def _hours(sample: Sample) -> float:
    return sample.seconds / 3600


def _demand(sample: Sample) -> float:
    return percent(sample.asked, sample.reading.gpus)


def _allocated(sample: Sample) -> float:
    return percent(sample.reading.allocated, sample.reading.gpus)


def _fragmented(sample: Sample) -> float:
    return percent(sample.reading.fragmented, sample.reading.gpus)


def _whole(sample: Sample) -> float:
    return sample.reading.whole


def _comparison(report: PlanReport) -> str:
    found = summaries(report.outcomes)
    wanted = columns(found, largest(report))
    rows = [[column.text(one) for column in wanted] for one in found]
    return _table([column.title for column in wanted], rows)


def _moved(outcome: PlanOutcome) -> str:
    items = "".join(f"<li>{escape(pod)}</li>" for pod in outcome.stuck[:MOST_STUCK])
    more = len(outcome.stuck) - MOST_STUCK
    rest = f"<p>And {more} more.</p>" if more > 0 else ""
    stuck = f"<p>These cannot be placed again:</p><ul>{items}</ul>{rest}" if items else ""
    moved = _table(MOVED, moved_rows(outcome)) if outcome.moves else ""
    return f"<h2>{escape(moved_title(outcome))}</h2>{moved}{stuck}"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
