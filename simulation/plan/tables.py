"""A report for terminals."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from program.tables import Column, FittingTable
from simulation.plan.compare import columns, summaries
from simulation.plan.outcome import Outcome, Report, Waiting

MOST_KINDS = 12
MOST_STUCK = 20
REFUSED = ("pods", "ask for", "nodes, and why not")


def report_text(report: Report) -> RenderableType:
    outcomes = first_of_each(report.outcomes)
    moved = [_moved(outcome) for outcome in outcomes if outcome.moved or outcome.stuck]
    refused = [_refused(title, kinds) for title, kinds in refusals(outcomes)]
    parts: list[RenderableType] = [Text(report.question, "bold"), comparison(report), *moved, *refused]
    return Group(*(line for part in parts for line in (part, Text(""))))


def comparison(report: Report) -> FittingTable:
    found = summaries(report.outcomes)
    wanted = columns(found, largest(report))
    return FittingTable(
        columns=[
            Column(title=column.title, rank=number, right=number > 0, wraps=False)
            for number, column in enumerate(wanted)
        ],
        rows=[[column.text(one) for column in wanted] for one in found],
        more="A wider terminal and --html show them.",
    )


def largest(report: Report) -> int:
    """GPUs of the largest pods."""
    return max((size.gpus for outcome in report.outcomes for size in outcome.sizes), default=0)


def first_of_each(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The first run of each policy."""
    found: dict[str, Outcome] = {}
    for outcome in outcomes:
        found.setdefault(outcome.run.policy, outcome)
    return list(found.values())


def refusals(outcomes: Sequence[Outcome]) -> list[tuple[str, Sequence[Waiting]]]:
    """A title and the kinds of pods that found no room; policies that refuse the same share them."""
    found: list[tuple[list[Outcome], Sequence[Waiting]]] = []
    for outcome in outcomes:
        alike = next((several for several, kinds in found if kinds == outcome.waiting), None)
        if alike is None:
            found.append(([outcome], outcome.waiting))
        else:
            alike.append(outcome)
    return [(_title(several), kinds) for several, kinds in found if kinds]


def _title(outcomes: Sequence[Outcome]) -> str:
    first = outcomes[0]
    order = "" if first.run.seed is None else f", seed {first.run.seed}"
    return f"{', '.join(each.run.policy for each in outcomes)}{order}: {first.pods - first.placed} pods found no room"


def refused_rows(kinds: Sequence[Waiting]) -> list[tuple[str, str, str]]:
    """How many pods, what they ask for, and why it is nowhere."""
    rows = [(str(kind.pods), kind.asks, reasons(kind.reasons)) for kind in kinds[:MOST_KINDS]]
    rest = kinds[MOST_KINDS:]
    if rest:
        rows.append((str(sum(kind.pods for kind in rest)), f"{len(rest)} more kinds", "see --output json"))
    return rows


def _refused(title: str, kinds: Sequence[Waiting]) -> FittingTable:
    pods, asks, why = REFUSED
    shown = (Column(title=pods, right=True), Column(title=asks, wraps=True), Column(title=why, wraps=True))
    return FittingTable(columns=shown, rows=refused_rows(kinds), title=title)


def reasons(found: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{number}: {reason}" if number else reason for reason, number in found)


def _moved(outcome: Outcome) -> Text:
    lines = [f"{outcome.run.policy}: {outcome.moved} pods of drained nodes have another node"]
    lines += [f"  cannot be placed again: {pod}" for pod in outcome.stuck[:MOST_STUCK]]
    if len(outcome.stuck) > MOST_STUCK:
        lines.append(f"  and {len(outcome.stuck) - MOST_STUCK} more; see --output json")
    return Text("\n".join(lines))
