"""Records what kube-scheduler was answered: in metrics, in the pods' events, and in the log."""

import logging
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Protocol

from proto.extender import FilterResult
from proto.kubernetes.objects import Notice, ObjectReference
from scheduler_ext.cluster.pod_index import PodName

log = logging.getLogger(__name__)


class AnswerOutcome(StrEnum):
    OK = "ok"
    REFUSED = "refused"
    """No node fits, or no eviction would help."""
    FAILED = "failed"
    """Answered with an error."""


class AnswerCounts(Protocol):
    """The metrics of answers."""

    def answered(self, verb: str, outcome: AnswerOutcome, seconds: float) -> None: ...

    def misfits(self, reasons: Iterable[str]) -> None: ...


class AnswerLog:
    """`record_event` gets the notices for pods."""

    def __init__(
        self,
        counts: AnswerCounts,
        record_event: Callable[[ObjectReference, Notice], None],
        monotonic: Callable[[], float],
    ) -> None:
        self.now = monotonic
        self._counts = counts
        self._record_event = record_event

    def answered(self, verb: str, outcome: AnswerOutcome, began: float) -> None:
        self._counts.answered(verb, outcome, self.now() - began)

    def misfits(self, result: FilterResult) -> None:
        self._counts.misfits((result.failed_nodes or {}).values())
        self._counts.misfits((result.failed_and_unresolvable_nodes or {}).values())

    def events(self, pod: ObjectReference, notices: Iterable[Notice]) -> None:
        for notice in notices:
            self._record_event(pod, notice)

    def trace(self, verb: str, pod: PodName, began: float, words: str) -> None:
        log.debug("/%s of pod %s took %.1f ms: %s", verb, pod, (self.now() - began) * 1000, words)
