"""Measures `/filter` with browsers that watch the status page, and without, by turns.

`python -m benchmarks.status_filter` takes two minutes. The extender is the program as it is shipped. Each pod that it
places changes the page, so each browser gets a message for every look. The browsers are a process of their own that
reads all it is sent. It prints p50 and p99 of both and how much worse they are, and the extender's CPU for one request,
the page's thread included.
"""

import asyncio
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

import aiohttp
import click
import psutil

from benchmarks.asks import ASKS, bodies
from benchmarks.over_http import client, free_port, running_extender
from scheduler_ext.status.server import PAGE_HEADER

PAUSE_SECONDS = 0.02
TURNS = 10


@click.command(context_settings={"show_default": True})
@click.option("--nodes", default=1000, help="Nodes of eight GPUs.")
@click.option("--pods", default=4, help="Running pods on each node.")
@click.option("--browsers", default=20, help="Watching at once.")
@click.option("--requests", default=2000, help="Of each kind, one every 20 ms.")
def main(*, nodes: int, pods: int, browsers: int, requests: int) -> None:
    """Print times of `/filter` without browsers, with them, and the difference."""
    page = f"127.0.0.1:{free_port()}"
    times: dict[bool, list[float]] = {False: [], True: []}
    cpu = {False: 0.0, True: 0.0}
    with running_extender(nodes, pods, more=("--status-bind-address", page)) as (extender, url, _):
        asked = bodies(ASKS[0], nodes, requests * 2 + 100, "status")
        client(url, islice(asked, 100), PAUSE_SECONDS, [])
        for turn in range(2 * TURNS):
            watched = turn % 2 == 1
            with watching(f"http://{page}", browsers if watched else 0):
                batch = list(islice(asked, requests // TURNS))
                before = _cpu(extender)
                client(url, batch, PAUSE_SECONDS, times[watched])
                cpu[watched] += _cpu(extender) - before
    click.echo("| browsers | p50 ms | p99 ms | CPU ms a request |\n| --- | --- | --- | --- |")
    found = {watched: sorted(each) for watched, each in times.items()}
    for watched, each in found.items():
        cells = (browsers if watched else 0, *(f"{_part(each, at):.2f}" for at in (0.5, 0.99)))
        click.echo(f"| {' | '.join(map(str, cells))} | {1000 * cpu[watched] / len(each):.2f} |")
    for at in (0.5, 0.99):
        without, with_ = _part(found[False], at), _part(found[True], at)
        click.echo(f"p{100 * at:.0f}: {with_ / without:.2f} times, {with_ - without:+.2f} ms")


@contextmanager
def watching(url: str, browsers: int) -> Iterator[None]:
    """Yields once each of them has had its first messages."""
    if not browsers:
        yield
        return
    came = multiprocessing.Semaphore(0)
    process = multiprocessing.Process(target=lambda: asyncio.run(_watch(url, browsers, came.release)), daemon=True)
    process.start()
    try:
        for _ in range(browsers):
            if not came.acquire(timeout=60):
                raise click.ClickException("a browser got no stream")
        yield
    finally:
        process.terminate()
        process.join()


async def _watch(url: str, browsers: int, come: Callable[[], object]) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        await asyncio.gather(*(_read(http, url, come) for _ in range(browsers)))


async def _read(http: aiohttp.ClientSession, url: str, come: Callable[[], object]) -> None:
    """A stream ends after a minute, and is opened again."""
    first = True
    while True:
        async with http.get(f"{url}/events", headers={PAGE_HEADER: "1"}, timeout=aiohttp.ClientTimeout()) as answer:
            answer.raise_for_status()
            async for _ in answer.content.iter_any():
                if first:
                    come()
                first = False


def _part(times: list[float], part: float) -> float:
    return times[int(len(times) * part)]


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
