"""Findings: the results of checks, in words for an administrator."""

from dataclasses import dataclass
from enum import StrEnum


class FindingState(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result. `explanation` is what was found and what it means, `remedy` what to do; it is empty if nothing is
    wrong.
    """

    title: str
    state: FindingState
    explanation: str
    remedy: str = ""


def ok(title: str, explanation: str) -> Finding:
    return Finding(title, FindingState.OK, explanation)


def warning(title: str, explanation: str, remedy: str) -> Finding:
    return Finding(title, FindingState.WARNING, explanation, remedy)


def problem(title: str, explanation: str, remedy: str) -> Finding:
    return Finding(title, FindingState.PROBLEM, explanation, remedy)


def skipped(title: str, why: str) -> Finding:
    return Finding(title, FindingState.SKIPPED, why)
