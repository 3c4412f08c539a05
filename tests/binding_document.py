"""The table of a bind in `docs/architecture.md`, from the machine that binds: `python -m tests.binding_document`."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from scheduler_ext.verbs.state_machine import GIVING_UP, TABLE, BindState, Transition
from tests.settings_manual import filled

PAGE = Path(__file__).parents[1] / "docs/architecture.md"


def document(page: str) -> str:
    """Returns the page with its table."""
    return filled(page, {"binding": "\n".join([*_table(), ""])}, "make docs-binding")


def _table() -> Iterator[str]:
    """Events that a state answers alike, one after another, share a row."""
    yield "| state | what happens | next state | unanswered | what is done |"
    yield "|---|---|---|---|---|"
    for (state, row), alike in groupby(TABLE.items(), lambda entry: (entry[0][0], entry[1])):
        known = {None: "as before", True: "yes", False: "no"}[row.unanswered]
        done = _listed(row.effects) if row.to else "gives up"
        events = _listed(event for (_, event), _ in alike)
        yield f"| {state} | {events} | {' or '.join(_next(row))} | {known} | {done} |"
    for unanswered, (to, effects) in GIVING_UP.items():
        yield f"| any, gives up | | {to} | {'yes' if unanswered else 'no'} | {_listed(effects)} |"


def _next(row: Transition) -> tuple[BindState, ...]:
    if row.to is not None:
        return (row.to,)
    return tuple(to for unanswered, (to, _) in GIVING_UP.items() if row.unanswered in (None, unanswered))


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)


if __name__ == "__main__":
    PAGE.write_text(document(PAGE.read_text()))
