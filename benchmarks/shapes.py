"""The worst cases of `/filter`: every pod has another request, and tenants send costly pods all the time."""

import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, cycle, islice
from statistics import median

from benchmarks.asks import COSTLY, FITS, SHAPES, bodies
from benchmarks.over_http import PAUSE_SECONDS, client, running_extender, running_floor

ROUNDS = 10
WAITING = 60
TENANTS = (1, 40)
COSTLY_PODS = 5
"""Pods of each tenant, by turns: together more shapes than are remembered."""
HEAD = ("nodes", "pods", "p50 ms", "p99 ms", "budget", "p99 beside that of the floor")


def rows(nodes: int, pods: int, requests: int, *, different: bool) -> Iterator[Sequence[str]]:
    """Yields rows for one cluster, as `HEAD` names them. Each of `different` nodes has other GPU memory."""
    size = f"{nodes} different" if different else str(nodes)
    with ExitStack() as stack:
        _, url, metrics = stack.enter_context(running_extender(nodes, pods, different=different))
        _, floor_url = stack.enter_context(running_floor())
        measured = dict(_alone(nodes, requests, url, floor_url))
        floor = _p99(measured["floor"])
        budgets = {each.name: each.budget_ms.get(nodes) for each in SHAPES}
        for name, times in measured.items():
            yield _row(size, name, times, floor, budgets.get(name))
        if different:
            return
        alone = _p99(times := _one_shape(nodes, requests, url, "alone"))
        yield _row(size, "one shape, 20 ms apart, alone", times, floor)
        client(url, list(bodies(SHAPES[-1], nodes, WAITING, "waiting")), 0, [])
        times = _one_shape(nodes, requests, url, "waiting")
        yield _row(size, f"the same, while {WAITING} shapes wait", times, floor, alone + 5)
        for number in TENANTS:
            with _meanwhile(_costly(number, nodes, url)) as waited:
                times = _one_shape(nodes, requests, url, f"tenants-{number}")
            yield _row(size, f"the same, while another asks about costly pods of {number} tenants", times, floor)
            yield _row(size, "these costly pods, one after the other", waited, floor)
        with _meanwhile(lambda: urllib.request.urlopen(f"{metrics}/metrics").read()) as pages:
            times = _one_shape(nodes, requests, url, "scraped")
        yield _row(size, "the same, while /metrics is read", times, floor)
        yield _row(size, "/metrics", pages, floor, 3000)


def _alone(nodes: int, requests: int, url: str, floor_url: str) -> Iterator[tuple[str, list[float]]]:
    asked = {"floor": (floor_url, bodies(FITS, nodes, requests)), "one shape": (url, bodies(FITS, nodes, requests))}
    asked |= {each.name: (url, bodies(each, nodes, requests)) for each in SHAPES}
    times: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(ROUNDS):
        for name, (where, body) in asked.items():
            client(where, list(islice(body, requests // ROUNDS)), PAUSE_SECONDS, times[name])
    yield from times.items()


def _costly(tenants: int, nodes: int, url: str) -> Callable[[], None]:
    """Sends a request about the next pod of each tenant by turns."""
    asked = [list(bodies(COSTLY, nodes, COSTLY_PODS, str(n), f"tenant-{n}")) for n in range(tenants)]
    by_turns = cycle(chain.from_iterable(zip(*asked, strict=True)))
    return lambda: client(url, [next(by_turns)], 0, [])


def _one_shape(nodes: int, requests: int, url: str, mark: str) -> list[float]:
    times: list[float] = []
    client(url, list(bodies(FITS, nodes, requests, mark)), 0.02, times)
    return times


@contextmanager
def _meanwhile(work: Callable[[], object]) -> Iterator[list[float]]:
    """Repeat the work without a pause; how long each run took."""
    taken: list[float] = []
    done = threading.Event()

    def again() -> None:
        while not done.is_set():
            began = time.perf_counter()
            work()
            taken.append((time.perf_counter() - began) * 1e3)

    thread = threading.Thread(target=again)
    thread.start()
    try:
        yield taken
    finally:
        done.set()
        thread.join()


def _p99(times: Sequence[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)]


def _row(nodes: str, name: str, times: Sequence[float], floor: float, budget: float | None = None) -> Sequence[str]:
    p99 = _p99(times)
    limit = "" if budget is None else f"≤ {budget:.0f}{'' if p99 <= budget else ', over'}"
    return nodes, name, f"{median(times):.1f}", f"{p99:.1f}", limit, f"{p99 / floor:.1f}"
