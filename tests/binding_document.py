"""The table of a bind in `scheduler_ext/verbs/README.md`, from the code: `python -m tests.binding_document`."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from scheduler_ext.verbs.state_machine import GIVING_UP, TABLE, BindEvent, BindState, Transition
from tests.settings_manual import filled

PAGE = Path(__file__).parents[1] / "scheduler_ext/verbs/README.md"


def document(page: str) -> str:
    """Returns the page with its table."""
    return filled(page, {"binding": "\n".join([*_table(), ""])}, "make docs-binding")


def _table() -> Iterator[str]:
    """Events that a state answers alike share a row, and so do states that answer these alike."""
    yield "| state | what happens | next state | unanswered | what is done |"
    yield "|---|---|---|---|---|"
    events: dict[tuple[BindState, Transition], list[BindEvent]] = {}
    for (state, event), row in TABLE.items():
        events.setdefault((state, row), []).append(event)
    states: dict[tuple[Transition, tuple[BindEvent, ...]], list[BindState]] = {}
    for (state, row), alike in events.items():
        states.setdefault((row, tuple(alike)), []).append(state)
    for (row, happened), where in states.items():
        known = {None: "as before", True: "yes", False: "no"}[row.unanswered]
        done = _listed(row.effects) if row.to else "gives up"
        yield f"| {_listed(where)} | {_listed(happened)} | {' or '.join(_next(row))} | {known} | {done} |"
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
