"""Reads several GPUs, so that one that never answers does not delay the others.

NVML may be called by several threads at once (its API reference, "Thread safety"). A call cannot be interrupted: a
thread that waits too long in one is given up until the call returns, and its GPU is not read again before. As long as
all GPUs answer promptly one thread reads them in turn: to wake a thread for each costs more than the calls.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
_Jobs = deque[tuple[Callable[[], Any], "Future[Any]"]]
_Work = queue.SimpleQueue[_Jobs | None]

CALL_SECONDS = 1.0
"""The time that the GPUs that answer wait for those that do not. Longer would delay news of the others."""
PROMPT_SECONDS = 0.05
"""The time after which GPUs that were not read yet get a thread each."""
HANG_SECONDS = 10.0
"""After so long a GPU without an answer counts as lost; a driver that is busy may take seconds."""


@dataclass(frozen=True, slots=True)
class Hangs:
    """The driver has not answered a question about one GPU for `seconds`."""

    seconds: float

    @property
    def is_lasting(self) -> bool:
        return self.seconds >= HANG_SECONDS

    def __str__(self) -> str:
        """Returns two sentences in all, so that nothing is reported again because a second has passed."""
        return f"the driver has not answered for {HANG_SECONDS if self.is_lasting else CALL_SECONDS:g} s"


@dataclass(frozen=True, slots=True)
class _Call(Generic[T]):
    question: str
    answer: "Future[T]"
    at: float


class Lanes:
    """Used by one thread. The functions run on threads of their own; they end with the process and are never joined."""

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, *, prompt_seconds: float = PROMPT_SECONDS
    ) -> None:
        self._monotonic = monotonic
        self._prompt_seconds = prompt_seconds
        self._work: _Work = queue.SimpleQueue()
        self._threads = 0
        self._unanswered: dict[Hashable, _Call[Any]] = {}
        self._late: dict[tuple[str, Hashable], Future[Any]] = {}

    def ask(
        self, question: str, functions: Mapping[K, Callable[[], T]], seconds: float = CALL_SECONDS
    ) -> dict[K, T | Hangs]:
        """Returns what each function returns; Hangs for those that have not returned after `seconds`.

        The next caller of the same function gets an answer that comes late. Raises what a function raises.
        """
        jobs: _Jobs = deque()
        calls: dict[K, _Call[T] | Hangs] = {
            lane: self._begin(lane, question, function, jobs) for lane, function in functions.items()
        }
        self._finish(jobs, [each.answer for each in calls.values() if isinstance(each, _Call)], seconds)
        answers: dict[K, T | Hangs] = {}
        for lane, each in calls.items():
            if isinstance(each, Hangs):
                answers[lane] = each
            elif each.answer.done():
                answers[lane] = each.answer.result()
            else:
                self._unanswered[lane] = each
                answers[lane] = Hangs(self._monotonic() - each.at)
        return answers

    @property
    def any_hangs(self) -> bool:
        return bool(self._hanging())

    def close(self) -> None:
        """The threads end, each once its call has returned."""
        for _ in range(self._threads):
            self._work.put(None)
        self._work, self._threads = queue.SimpleQueue(), 0

    def _begin(self, lane: Hashable, question: str, function: Callable[[], T], jobs: _Jobs) -> "_Call[T] | Hangs":
        unanswered = self._unanswered.get(lane)
        if unanswered is not None:
            if not unanswered.answer.done():
                return Hangs(self._monotonic() - unanswered.at)
            del self._unanswered[lane]
            self._late[unanswered.question, lane] = unanswered.answer
        answer: Future[T] | None = self._late.pop((question, lane), None)
        if answer is None:
            answer = Future()
            jobs.append((function, answer))
        return _Call(question, answer, self._monotonic())

    def _finish(self, jobs: _Jobs, answers: "list[Future[T]]", seconds: float) -> None:
        """Returns once all are answered, at the latest after `seconds`."""
        prompt = min(self._prompt_seconds, seconds / 2)
        busy = self._hanging()
        if jobs:
            self._hand_out(jobs, 1, busy)
        if wait(answers, timeout=prompt).not_done:
            self._hand_out(jobs, len(jobs), busy + 1)
            wait(answers, timeout=seconds - prompt)

    def _hand_out(self, jobs: _Jobs, threads: int, busy: int) -> None:
        """Grows to so many threads beside those that are busy."""
        for _ in range(threads):
            self._work.put(jobs)
        while self._threads < threads + busy:
            self._threads += 1
            threading.Thread(target=_run, args=(self._work,), name=f"nvml {self._threads}", daemon=True).start()

    def _hanging(self) -> int:
        return sum(not call.answer.done() for call in self._unanswered.values())


def _run(work: _Work) -> None:
    while (jobs := work.get()) is not None:
        while jobs:
            try:
                function, answer = jobs.popleft()
            except IndexError:  # another thread was quicker
                break
            try:
                answer.set_result(function())
            except BaseException as error:
                answer.set_exception(error)
