"""Cuts texts of authors who are not trusted: they must not fill logs, events and answers (pure)."""

NAME = 64
"""The most characters of a name or number within a sentence: as long as a label."""


def shortened(text: str, most: int = NAME) -> str:
    """Returns at most `most` characters; a text that was cut ends with `…`."""
    return text if len(text) <= most else text[: most - 1] + "…"
