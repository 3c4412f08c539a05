"""A report for terminals."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from program.tables import Column, FittingTable
from program.words import counted, ranges
from simulation.plan.advise import Advice, Leaving
from simulation.plan.compare import columns, summaries
from simulation.plan.moves import PodRemedy
from simulation.plan.outcome import PlanOutcome, PlanReport, Unplaced
from simulation.plan.runs import MOST_EXAMPLES
from simulation.plan.together import Joint
from simulation.plan.verdict import verdict

MOST_KINDS = 12
MOST_STUCK = 20
REFUSED = ("pods", "ask for", "nodes, and why not", "such as")
MOVED = ("pod", "from", "goes to", "GPUs")


def report_text(report: PlanReport) -> RenderableType:
    outcomes = first_of_each(report.outcomes)
    moved = [_moved(outcome) for outcome in outcomes if outcome.moves or outcome.stuck]
    refused = [_refused(title, kinds) for title, kinds in refusals(outcomes)]
    first = Group(Text(verdict(report.outcomes), "bold"), Text(report.question))
    return _apart(first, comparison(report), *moved, *refused)


def _apart(*parts: RenderableType) -> RenderableType:
    """Returns the parts with an empty line behind each."""
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
        found.setdefault(outcome.run.title, outcome)
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
    return f"{', '.join(each.run.title for each in outcomes)}{order}: {first.pods - first.placed} pods found no room"


def refused_rows(kinds: Sequence[Unplaced]) -> list[tuple[str, str, str, str]]:
    """Returns how many pods, what they request, why it is nowhere, and names of pods."""
    rows = [(str(kind.pods), kind.asks, reasons(kind.reasons), _named(kind)) for kind in kinds[:MOST_KINDS]]
    rest = kinds[MOST_KINDS:]
    if rest:
        rows.append((str(sum(kind.pods for kind in rest)), f"{len(rest)} more kinds", "see --output json", ""))
    return rows


def _named(kind: Unplaced) -> str:
    more = kind.pods - len(kind.examples) if len(kind.examples) == MOST_EXAMPLES else 0
    return f"{', '.join(kind.examples)}{f' and {more} more' if more else ''}"


def moved_rows(outcome: PlanOutcome) -> list[tuple[str, str, str, str]]:
    """Returns pods of drained nodes: where they were, and where they go."""
    rows = [(each.pod, each.was, each.node, ranges(each.gpus)) for each in outcome.moves[:MOST_STUCK]]
    rest = len(outcome.moves) - MOST_STUCK
    return rows if rest <= 0 else [*rows, (f"and {rest} more; see --output json", "", "", "")]


def _refused(title: str, kinds: Sequence[Unplaced]) -> FittingTable:
    pods, asks, why, names = REFUSED
    shown = (
        Column(title=pods, right=True),
        Column(title=asks, wraps=True),
        Column(title=why, wraps=True),
        Column(title=names, rank=1, wraps=True),
    )
    return FittingTable(columns=shown, rows=refused_rows(kinds), title=title)


def reasons(found: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{number}: {reason}" if number else reason for reason, number in found)


def moved_title(outcome: PlanOutcome) -> str:
    return f"{outcome.run.policy}: {counted(len(outcome.moves), 'pod')} of drained nodes find another node"


def _moved(outcome: PlanOutcome) -> RenderableType:
    lines = [f"  cannot be placed again: {pod}" for pod in outcome.stuck[:MOST_STUCK]]
    if len(outcome.stuck) > MOST_STUCK:
        lines.append(f"  and {len(outcome.stuck) - MOST_STUCK} more; see --output json")
    columns = [Column(title=title, rank=title == "GPUs") for title in MOVED]
    table = FittingTable(columns=columns, rows=moved_rows(outcome), title=moved_title(outcome))
    return Group(table if outcome.moves else Text(moved_title(outcome), "bold"), *map(Text, lines))


def advice_text(advice: Advice) -> RenderableType:
    first = Group(Text(_gained(advice), "bold"), Text(f"{advice.question}; policy {advice.policy}"))
    leaving = [_leaving(advice.leaving)] if advice.leaving else []
    return _apart(first, *map(_remedy, advice.remedies), *leaving)


def _gained(advice: Advice) -> str:
    """Returns what moving pods gains, in a sentence."""
    kinds = len(advice.remedies)
    helped = [each for each in advice.remedies if each.node]
    parts = [f"room without any move for {counted(advice.placed, 'pod')}"] * bool(advice.placed)
    if helped:
        least = min(helped, key=lambda each: len(each.moves))
        which = "" if kinds == 1 else f" for {len(helped)} of {counted(kinds, 'kind')} of waiting pods"
        first = f"{counted(len(least.moves), 'move')} for {least.example} ({least.gain:g} GPUs)"
        parts.append(f"moving pods makes room{which}: {first}")
    elif kinds:
        parts.append(
            f"no moves were found that make room for {advice.remedies[0].example}{' or the others' * (kinds > 1)}"
        )
    if advice.leaving:
        parts.append(f"{counted(len(advice.leaving), 'pod')} without GPUs should leave GPU nodes")
    return "; ".join(parts) or "nothing would be gained by moving pods"


def joint_text(joint: Joint) -> RenderableType:
    first = Group(Text(_joint_gain(joint), "bold"), Text(f"{joint.question}; policy {joint.policy}"))
    columns = (Column(title="pod"), Column(title="goes to"), Column(title="GPUs", rank=1))
    rows = [(each.pod, each.node, ranges(each.gpus)) for each in joint.together.homes]
    parts: list[RenderableType] = [FittingTable(columns=columns, rows=rows, title="in this order")] if rows else []
    if joint.together.refused:
        names = joint.together.refused[:MOST_STUCK]
        more = len(joint.together.refused) - len(names)
        parts.append(Text(f"no room: {', '.join(names)}{f' and {more} more' if more else ''}"))
    return _apart(first, *parts)


def _joint_gain(joint: Joint) -> str:
    """Returns what the batch gains, and how sure it is that no other gains more."""
    alone, together = joint.one_by_one, joint.together
    if not alone.refused:
        return f"all {counted(joint.pods, 'pod')} find room one by one; placing them together gains nothing"
    sure = (
        "no batch is better" if not together.refused else f"best of {counted(joint.orders, 'order')}, not proven best"
    )
    if joint.gain <= 0 and len(together.homes) == len(alone.homes):
        return f"together as one by one {len(alone.homes)} of {counted(joint.pods, 'pod')} find room; {sure}"
    return (
        f"together {len(together.homes)} of {counted(joint.pods, 'pod')} get {together.gpus:g} GPUs, "
        f"one by one {len(alone.homes)} get {alone.gpus:g}: {joint.gain:+.2f}; {sure}"
    )


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
