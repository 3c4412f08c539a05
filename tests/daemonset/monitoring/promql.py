"""What a PromQL expression asks for, as far as names go; whether it is PromQL at all is promtool's to say."""

import re
from dataclasses import dataclass

_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_MATCHERS = re.compile(r"(\w+)?\s*\{([^}]*)\}")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_RANGE = re.compile(r"\[[^\]]*\]")
_NAME = re.compile(r"(?<![\w.])[a-zA-Z_:][\w:]*(?!\w)(?!\s*\()")
_WORDS = {"and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring", "group_left", "group_right"}


@dataclass(frozen=True, slots=True)
class Asked:
    metrics: frozenset[str]
    labels: frozenset[str]


def asked(expression: str) -> Asked:
    """Metrics and labels it names."""
    plain = _TEXT.sub('""', expression)
    matched = {label for _, inside in _MATCHERS.findall(plain) for label in _LABEL.findall(inside)}
    grouped = {label.strip() for inside in _GROUPING.findall(plain) for label in inside.split(",") if label.strip()}
    bare = _RANGE.sub("", _GROUPING.sub("", _MATCHERS.sub(r"\1", plain)))
    metrics = frozenset(name for name in _NAME.findall(bare) if name not in _WORDS)
    return Asked(metrics, frozenset(matched | grouped))
