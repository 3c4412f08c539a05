"""`docs/binding.md`, from the table of the machine that binds: `python -m tests.binding_document`."""

from collections.abc import Iterable, Iterator

from scheduler_ext.verbs.state_machine import GIVING_UP, OVER, TABLE, BindEvent, BindState, Transition

_INTRODUCTION = """\
# How a pod is bound

The steps of one bind, for reading the extender's log. `make docs-binding` writes this page from the table in
`scheduler_ext/verbs/state_machine.py`, which the extender runs. kube-scheduler gets its answer once the attempt is
bound, refused or settling.

An attempt is *unanswered* while the API server may still carry out a Binding that was sent. Its GPUs are reserved then.
An attempt that gives up while it is unanswered settles: the pod is read once the API server can no longer carry the
Binding out. Each Binding is a file (`--binding-directory`) until it is answered, so the next process can go on with it.
"""


def document() -> str:
    return "\n".join([_INTRODUCTION, "```mermaid", "stateDiagram-v2", *_arrows(), "```", "", *_table(), ""])


def _arrows() -> Iterator[str]:
    yield f"    [*] --> {BindState.DECIDING}"
    yield f"    [*] --> {BindState.RECOVERING}: after a restart"
    labels: dict[tuple[BindState, BindState], list[BindEvent]] = {}
    for (state, event), row in TABLE.items():
        for to in _next(row):
            labels.setdefault((state, to), []).append(event)
    for (state, to), happened in labels.items():
        yield f"    {state} --> {to}: {_listed(happened)}"
    yield from (f"    {state} --> [*]" for state in BindState if state in OVER)


def _table() -> Iterator[str]:
    yield "| state | what happens | next state | unanswered | what is done |"
    yield "|---|---|---|---|---|"
    for (state, event), row in TABLE.items():
        known = {None: "as before", True: "yes", False: "no"}[row.unanswered]
        done = _listed(row.effects) if row.to else "gives up"
        yield f"| {state} | {event} | {' or '.join(_next(row))} | {known} | {done} |"
    for unanswered, (to, effects) in GIVING_UP.items():
        yield f"| any, gives up | | {to} | {'yes' if unanswered else 'no'} | {_listed(effects)} |"


def _next(row: Transition) -> tuple[BindState, ...]:
    if row.to is not None:
        return (row.to,)
    return tuple(to for unanswered, (to, _) in GIVING_UP.items() if row.unanswered in (None, unanswered))


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)


if __name__ == "__main__":
    print(document(), end="")
