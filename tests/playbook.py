"""Dialogues with a pure machine: an event goes in, commands come out, and a failure shows the difference."""

import difflib
from collections.abc import Callable, Iterable
from typing import Any

Turn = tuple[float, object, Iterable[object]]
"""A time, an event, and the commands that must follow it."""


def converse(machine: Callable[[float, Any], Iterable[object]], *turns: Turn) -> None:
    """Plays the turns, and compares the whole dialogue."""
    expected, played = list[str](), list[str]()
    for at, event, commands in turns:
        line = f"{at:g}: {event if isinstance(event, str) else type(event).__name__}"
        expected += [line, *(f"{at:g}:   → {command}" for command in commands)]
        played += [line, *(f"{at:g}:   → {command}" for command in machine(at, event))]
    assert played == expected, "\n".join(difflib.ndiff(expected, played))
