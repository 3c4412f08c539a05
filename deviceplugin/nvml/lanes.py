"""One thread for each GPU, so that a call into the driver that never returns holds up no other GPU.

NVML may be called by several threads at once (its API reference, "Thread safety"). A call cannot be interrupted: a
thread that waits too long in one is given up until the call returns, and its GPU is not asked again before.
"""

import queue
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
_Work = queue.SimpleQueue[tuple[Callable[[], Any], "Future[Any]"] | None]

CALL_SECONDS = 1.0
"""How long the GPUs that answer wait for those that do not. Longer would delay news of the others."""
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
        """Two sentences in all, so that nothing is reported again because a second has passed."""
        return f"the driver has not answered for {HANG_SECONDS if self.is_lasting else CALL_SECONDS:g} s"


@dataclass(frozen=True, slots=True)
class _Asked(Generic[T]):
    question: str
    answer: "Future[T]"
    at: float


class Lanes:
    """Used by one thread. The functions run on threads of their own; they end with the process and are never joined."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._work: dict[Hashable, _Work] = {}
        self._unanswered: dict[Hashable, _Asked[Any]] = {}
        self._late: dict[tuple[str, Hashable], Future[Any]] = {}

    def ask(
        self, question: str, functions: Mapping[K, Callable[[], T]], seconds: float = CALL_SECONDS
    ) -> dict[K, T | Hangs]:
        """What each function returns, all of them run at once; Hangs for those that take longer than `seconds`.

        An answer that comes late is kept and given to the next who asks the same question: a GPU that is merely slow
        is heard one round later. Raises what a function raises.
        """
        asked: dict[K, _Asked[T] | Hangs] = {
            lane: self._begin(lane, question, function) for lane, function in functions.items()
        }
        wait([each.answer for each in asked.values() if isinstance(each, _Asked)], timeout=seconds)
        answers: dict[K, T | Hangs] = {}
        for lane, each in asked.items():
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
        return any(not asked.answer.done() for asked in self._unanswered.values())

    def close(self) -> None:
        """The threads end, each once its call has returned."""
        for work in self._work.values():
            work.put(None)
        self._work = {}

    def _begin(self, lane: Hashable, question: str, function: Callable[[], T]) -> "_Asked[T] | Hangs":
        unanswered = self._unanswered.get(lane)
        if unanswered is not None:
            if not unanswered.answer.done():
                return Hangs(self._monotonic() - unanswered.at)
            del self._unanswered[lane]
            self._late[unanswered.question, lane] = unanswered.answer
        late: Future[T] | None = self._late.pop((question, lane), None)
        return _Asked(question, late or self._submit(lane, function), self._monotonic())

    def _submit(self, lane: Hashable, function: Callable[[], T]) -> "Future[T]":
        work = self._work.get(lane)
        if work is None:
            work = self._work[lane] = queue.SimpleQueue()
            threading.Thread(target=_run, args=(work,), name=f"nvml {lane}", daemon=True).start()
        answer: Future[T] = Future()
        work.put((function, answer))
        return answer


def _run(work: _Work) -> None:
    while (job := work.get()) is not None:
        function, answer = job
        try:
            answer.set_result(function())
        except BaseException as error:
            answer.set_exception(error)
