"""Sentences for messages, and parts of them."""

from collections.abc import Sequence


def enumerated(words: Sequence[str], most: int = 4) -> str:
    """Returns `a, b and c`, or `a, b, c, d and 5 more`. Kubelet cuts an event's message at 1024 bytes."""
    shown, more = list(words[:most]), len(words) - most
    if more > 0:
        shown.append(f"{more} more")
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1]))) if shown else "nothing"


def capital(clause: str) -> str:
    """Returns the clause with a capital letter."""
    return clause[:1].upper() + clause[1:]


def as_sentence(clause: str) -> str:
    """Returns the clause with a capital letter and a full stop."""
    return capital(clause).rstrip(".") + "."
