"""Merges the reports of slices of one question."""

from pathlib import Path

import msgspec

from proto.decoding import decoded
from simulation.plan.outcome import PlanOutcome, PlanReport, PlanRun


class MergeError(ValueError):
    """The message names the file, and what does not fit."""


def read_reports(folder: str) -> PlanReport:
    """Returns all `*.json` of the folder as one report. Raises MergeError."""
    paths = sorted(Path(folder).glob("*.json"))
    if not paths:
        raise MergeError(f"{folder}: there is no *.json; it holds the reports of plan --slice --output json")
    return merged({str(path): _read(path) for path in paths})


def merged(reports: dict[str, PlanReport]) -> PlanReport:
    """Returns the reports by file. Slices of different questions do not fit together. Raises MergeError."""
    first_file, first = next(iter(reports.items()))
    found: dict[PlanRun, tuple[str, PlanOutcome]] = {}
    for file, report in reports.items():
        if (report.fingerprint, report.runs) != (first.fingerprint, first.runs):
            raise MergeError(
                f"{file}: is about another question ({report.question}; {report.runs} runs) than {first_file} "
                f"({first.question}; {first.runs} runs)"
            )
        for outcome in report.outcomes:
            other = found.setdefault(outcome.run, (file, outcome))
            if other[1] != outcome:
                raise MergeError(f"{file}: has another result for {outcome.run.policy} than {other[0]}")
    outcomes = sorted((outcome for _, outcome in found.values()), key=lambda one: one.run.seed or 0)
    notes = list(first.notes)
    if len(outcomes) < first.runs:
        notes.append(f"{first.runs - len(outcomes)} of {first.runs} runs are missing")
    return msgspec.structs.replace(first, outcomes=outcomes, notes=notes)


def _read(path: Path) -> PlanReport:
    try:
        return decoded(path.read_bytes(), PlanReport)
    except OSError as error:
        raise MergeError(f"{path}: cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise MergeError(f"{path}: is not a report of plan --output json: {error}") from error
