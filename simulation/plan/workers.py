"""Performs the runs of a plan in several processes (edge)."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from simulation.plan.outcome import PlanOutcome, PlanRun
from simulation.plan.question import Question
from simulation.plan.runs import Runs

Progress = Callable[[PlanRun, float], None]
"""Called with the part of the run that is done, from 0 to 1."""


LEAST_WORK = 5_000
"""Pods and nodes of all runs together. Fewer are done sooner than another process has started."""


class WorkerLost(Exception):
    """A process ended early. The message is one sentence."""


def perform(question: Question, runs: Sequence[PlanRun], processes: int, progress: Progress) -> list[PlanOutcome]:
    """Returns the outcomes in the order of the runs. Raises WorkerLost, and PolicyError for an unknown policy."""
    if processes == 1 or len(runs) == 1 or len(runs) * _size(question) < LEAST_WORK:
        own = Runs(question)
        return [own.run(each, lambda part, each=each: progress(each, part)) for each in runs]  # type: ignore[misc]
    try:
        return _perform(question, runs, processes, progress)
    except (EOFError, ConnectionError) as error:
        raise WorkerLost("a process of the plan ended early, perhaps for lack of memory; try --processes 1") from error


def _size(question: Question) -> int:
    """Returns about how many objects one run reads or places."""
    cluster = question.cluster
    filled = 2 if question.fill or question.replays else 1
    return len(cluster.nodes) + len(cluster.held) + filled * len(question.arrivals)


def _perform(question: Question, runs: Sequence[PlanRun], processes: int, progress: Progress) -> list[PlanOutcome]:
    """Raises EOFError or ConnectionError if a process has ended."""
    found: dict[int, PlanOutcome] = {}
    with _workers(question, min(processes, len(runs))) as workers:
        waiting = list(enumerate(runs))[::-1]
        busy: dict[Connection, int] = {}
        for connection in workers:
            number, each = waiting.pop()
            connection.send(each)
            busy[connection] = number
        while busy:
            for connection, told in _news(busy):
                number = busy[connection]
                if not isinstance(told, PlanOutcome):
                    progress(runs[number], told)
                    continue
                progress(runs[number], 1.0)
                found[number] = told
                del busy[connection]
                if waiting:
                    number, each = waiting.pop()
                    connection.send(each)
                    busy[connection] = number
    return [found[number] for number in range(len(runs))]


def _news(busy: Mapping[Connection, int]) -> Iterator[tuple[Connection, PlanOutcome | float]]:
    for connection in wait(list(busy)):
        if isinstance(connection, Connection):
            yield connection, connection.recv()


@contextmanager
def _workers(question: Question, count: int) -> Iterator[Sequence[Connection]]:
    """Yields processes that wait for runs. They end with this block, and with this process."""
    # A forked process would inherit locks that a thread of the progress bar holds.
    context = get_context("spawn")
    processes: list[BaseProcess] = []
    connections: list[Connection] = []
    try:
        with _interrupts_ignored():
            for _ in range(count):
                ours, theirs = context.Pipe()
                process = context.Process(target=_work, args=(theirs,), daemon=True)
                process.start()
                theirs.close()
                processes.append(process)
                connections.append(ours)
        for connection in connections:
            connection.send(question)
        yield connections
    finally:
        for each in processes:
            each.terminate()
        for each in processes:
            each.join()
        for connection in connections:
            connection.close()


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Makes processes that start here ignore Ctrl-C from their first moment: only the parent answers it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(connection: Connection) -> None:
    try:
        own = Runs(connection.recv())
        while True:
            connection.send(own.run(connection.recv(), connection.send))
    except (EOFError, ConnectionError):
        os._exit(0)
