"""Writes the extender's metrics (edge of prometheus_client). Events are counted as they happen; state is read per
scrape.
"""

import re
from collections import Counter as Counted
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import chain, islice

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from scheduler_ext.decide.reasons import Reason
from scheduler_ext.metrics.families import MetricsInput, families
from scheduler_ext.verbs.answer_log import AnswerOutcome

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0)
_WORD = re.compile("|".join(sorted(set(Reason) - {Reason.UNREGISTERED}, key=len, reverse=True)))
_NOT_OFFERED = "NodeUnregistered"
_LINES = 256
"""The lines in a piece of the page: below 64 KiB where names are not much longer than usual."""


class Admission(StrEnum):
    """The result for a new pod."""

    ALLOWED = "allowed"
    """The webhook let the pod in without changes."""
    PATCHED = "patched"
    DENIED = "denied"
    FAILED = "failed"
    """The webhook failed to judge it."""


class ExtenderMetrics:
    """All metrics of one extender."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # one more series per counter, without use
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._calls = Histogram(
            "topogpu_extender_call_duration_seconds",
            "Time to answer kube-scheduler.",
            ("verb",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._answers = Counter(
            "topogpu_extender_answers", "Answers to kube-scheduler by how they ended.", ("verb", "outcome"),
            registry=registry,
        )  # fmt: skip
        self._answered: dict[tuple[str, AnswerOutcome], tuple[Histogram, Counter]] = {}
        self._misfits = Counter(
            "topogpu_fit_failures",
            "Nodes that did not fit a pod that fitted nowhere, by the reason.",
            ("reason",),
            registry=registry,
        )
        self._lock_waits = Histogram(
            "topogpu_node_lock_wait_duration_seconds",
            "Time a bind waited for the lock of a node that needs one, until it had it or gave up.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._requeued = Counter(
            "topogpu_nudges", "Waiting pods that the extender made kube-scheduler consider again.", registry=registry
        )

        self._admissions = Counter(
            "topogpu_webhook_admissions", "Answers about new pods, by result and reason.",
            ("outcome", "reason"), registry=registry,
        )  # fmt: skip
        self._admission_seconds = Histogram(
            "topogpu_webhook_duration_seconds", "Time to answer the API server about a new pod.",
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip

    def answered(self, verb: str, outcome: AnswerOutcome, seconds: float) -> None:
        """Counts an answer. `verb` is `filter`, `prioritize`, `preempt` or `bind`."""
        counted = self._answered.get((verb, outcome))
        if counted is None:
            # To look a series up by its labels takes longer than to count.
            counted = self._calls.labels(verb), self._answers.labels(verb, outcome.value)
            self._answered[verb, outcome] = counted
        seconds_of, answers = counted
        seconds_of.observe(seconds)
        answers.inc()

    def misfits(self, reasons: Iterable[str]) -> None:
        """Counts the nodes' reasons, in HAMi's words. Numbers and additions beside the words do not count."""
        for reason, nodes in Counted(reasons).items():
            for word in set(_WORD.findall(reason)) or {_NOT_OFFERED}:
                self._misfits.labels(word).inc(nodes)

    def lock_waited(self, seconds: float) -> None:
        self._lock_waits.observe(seconds)

    def requeued(self) -> None:
        self._requeued.inc()

    def admitted(self, outcome: Admission, reason: str, seconds: float) -> None:
        """Counts a verdict. `reason` is the answer's word."""
        self._admissions.labels(outcome.value, reason).inc()
        self._admission_seconds.observe(seconds)

    def exposition(self, seen: MetricsInput) -> Iterator[bytes]:
        """Yields the page for Prometheus in pieces. It takes long on a large cluster, and may run on another thread."""
        lines = chain.from_iterable(family.text() for family in families(seen))
        while piece := "".join(islice(lines, _LINES)):
            yield piece.encode()
        yield generate_latest(self._registry)
