"""A report for terminals."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from program.tables import Column, FittingTable
from program.words import counted
from simulation.plan.advise import Advice, Leaving, PodRemedy
from simulation.plan.compare import columns, summaries
from simulation.plan.outcome import PlanOutcome, PlanReport, Unplaced

MOST_KINDS = 12
MOST_STUCK = 20
REFUSED = ("pods", "ask for", "nodes, and why not")


def report_text(report: PlanReport) -> RenderableType:
    outcomes = first_of_each(report.outcomes)
    moved = [_moved(outcome) for outcome in outcomes if outcome.moved or outcome.stuck]
    refused = [_refused(title, kinds) for title, kinds in refusals(outcomes)]
    parts: list[RenderableType] = [Text(report.question, "bold"), comparison(report), *moved, *refused]
    return Group(*(line for part in parts for line in (part, Text(""))))


def comparison(report: PlanReport) -> FittingTable:
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


def largest(report: PlanReport) -> int:
    """Returns GPUs of the largest pods."""
    return max((size.gpus for outcome in report.outcomes for size in outcome.sizes), default=0)


def first_of_each(outcomes: Sequence[PlanOutcome]) -> list[PlanOutcome]:
    """Returns the first run of each policy."""
    found: dict[str, PlanOutcome] = {}
    for outcome in outcomes:
        found.setdefault(outcome.run.policy, outcome)
    return list(found.values())


def refusals(outcomes: Sequence[PlanOutcome]) -> list[tuple[str, Sequence[Unplaced]]]:
    """Returns a title and the kinds of pods that found no room; policies that refuse the same share them."""
    found: list[tuple[list[PlanOutcome], Sequence[Unplaced]]] = []
    for outcome in outcomes:
        alike = next((several for several, kinds in found if kinds == outcome.waiting), None)
        if alike is None:
            found.append(([outcome], outcome.waiting))
        else:
            alike.append(outcome)
    return [(_title(several), kinds) for several, kinds in found if kinds]


def _title(outcomes: Sequence[PlanOutcome]) -> str:
    first = outcomes[0]
    order = "" if first.run.seed is None else f", seed {first.run.seed}"
    return f"{', '.join(each.run.policy for each in outcomes)}{order}: {first.pods - first.placed} pods found no room"


def refused_rows(kinds: Sequence[Unplaced]) -> list[tuple[str, str, str]]:
    """Returns how many pods, what they request, and why it is nowhere."""
    rows = [(str(kind.pods), kind.asks, reasons(kind.reasons)) for kind in kinds[:MOST_KINDS]]
    rest = kinds[MOST_KINDS:]
    if rest:
        rows.append((str(sum(kind.pods for kind in rest)), f"{len(rest)} more kinds", "see --output json"))
    return rows


def _refused(title: str, kinds: Sequence[Unplaced]) -> FittingTable:
    pods, asks, why = REFUSED
    shown = (Column(title=pods, right=True), Column(title=asks, wraps=True), Column(title=why, wraps=True))
    return FittingTable(columns=shown, rows=refused_rows(kinds), title=title)


def reasons(found: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{number}: {reason}" if number else reason for reason, number in found)


def _moved(outcome: PlanOutcome) -> Text:
    lines = [f"{outcome.run.policy}: {outcome.moved} pods of drained nodes have another node"]
    lines += [f"  cannot be placed again: {pod}" for pod in outcome.stuck[:MOST_STUCK]]
    if len(outcome.stuck) > MOST_STUCK:
        lines.append(f"  and {len(outcome.stuck) - MOST_STUCK} more; see --output json")
    return Text("\n".join(lines))


def advice_text(advice: Advice) -> RenderableType:
    parts: list[RenderableType] = [Text(f"{advice.question}; policy {advice.policy}", "bold")]
    if advice.placed:
        parts.append(Text(f"find room without any move: {counted(advice.placed, 'pod')}"))
    parts += map(_remedy, advice.remedies)
    if advice.leaving:
        parts.append(_leaving(advice.leaving))
    if len(parts) == 1:
        parts.append(Text("nothing would be gained by moving pods"))
    return Group(*(line for part in parts for line in (part, Text(""))))


def _remedy(remedy: PodRemedy) -> RenderableType:
    pods = remedy.example if remedy.pods == 1 else f"{remedy.example} and {remedy.pods - 1} more"
    asks = f"{pods}: {remedy.asks}"
    if not remedy.node:
        return Text(f"{asks}\n  no moves were found that help; {remedy.search}")
    title = f"{asks}\nfits on {remedy.node} after {counted(len(remedy.moves), 'move')} ({remedy.search})"
    shown = (Column(title="delete"), Column(title="from"), Column(title="goes to"), Column(title="GPUs", right=True))
    rows = [
        (f"{move.pod}{' (create it again by hand)' * move.by_hand}", move.node, move.to, f"{move.gpus:.2f}")
        for move in remedy.moves
    ]
    return FittingTable(columns=shown, rows=rows, title=title)


def _leaving(leaving: Sequence[Leaving]) -> FittingTable:
    total = sum(each.gain for each in leaving)
    title = f"pods without GPUs that should leave GPU nodes: together they free {total:.2f} GPUs for other pods"
    shown = (Column(title="delete"), Column(title="from"), Column(title="goes to"), Column(title="gain", right=True))
    rows = [(each.pod, each.node, each.to, f"{each.gain:.2f} GPUs") for each in leaving]
    return FittingTable(columns=shown, rows=rows, title=title)
