"""Measures the status page: what a look costs the extender, what a browser receives, and how long it paints.

`python -m benchmarks.status_page NODES` needs Chromium and takes a minute. Only the times until something is painted
depend much on what else the machine does. For an update it prints the CPU time of the browser's main thread: all of it,
and the longest task, for which keys and scrolling wait. An update of 0 nodes is the floor.

What browsers cost `/filter`: `benchmarks.status_filter`.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import msgspec
from playwright.async_api import Browser, CDPSession, Page, async_playwright

from proto.kubernetes.objects import Node, Pod
from scheduler_ext.cluster.events import Applied, Listed, Removed
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.http.own_thread import in_own_thread
from scheduler_ext.http.ports import listening
from scheduler_ext.status.board import Board
from scheduler_ext.status.explaining import Explainer
from scheduler_ext.status.poll import Poll, Standing
from scheduler_ext.status.poller import Poller
from scheduler_ext.status.server import StatusServer
from scheduler_ext.verbs.live_cluster import LiveCluster
from tests.scheduler_ext.rig import ANY_PORT
from tests.scheduler_ext.status.shown import busy_cluster, running_pod
from tests.scheduler_ext.status.test_page import CHROMIUM

ROUNDS = 20
UPDATE_SECONDS = 1.0
_LONGEST_MILLISECONDS = 300_000
_TASK = "ThreadControllerImpl::RunTask"


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds of CPU on the thread that answers kube-scheduler and on the page's, and bytes to each browser."""

    changed: int
    looking: float
    showing: float
    sent: int


class Played:
    """A cluster in the extender's memory, and pods that come and go on some of its nodes."""

    def __init__(self, nodes: int) -> None:
        bodies = list(busy_cluster(nodes))
        self.live = LiveCluster(Cluster(), time.monotonic, lambda *_: None)
        self.live.apply(Listed(Node, [msgspec.convert(each, Node) for each in bodies if each["kind"] == "Node"]))
        self.live.apply(Listed(Pod, [_pod(each) for each in bodies if each["kind"] == "Pod"]))
        self._number = 0

    def change(self, nodes: int) -> None:
        """A small pod comes to, or leaves, each of so many nodes."""
        self._number += 1
        for number in range(nodes):
            pod = _pod(running_pod(f"brief-{number}", f"gpu-{number + 1}", (number % 8,), memory_mib=512, cores=1))
            self.live.apply(Applied(pod) if self._number % 2 else Removed(pod))

    def poller(self, show: Callable[[Poll], Any], watched: Callable[[], bool]) -> Poller:
        return Poller(
            cluster=self.live,
            explainer=Explainer(cluster=self.live, watched=lambda: False),
            standing=Standing,
            show=show,
            watched=watched,
            seconds_since_1970=time.time,
        )


def _pod(body: dict[str, Any]) -> Pod:
    metadata = {"uid": f"uid-{body['metadata']['namespace']}-{body['metadata']['name']}", **body["metadata"]}
    return msgspec.convert({**body, "metadata": metadata}, Pod)


async def costs(nodes: int) -> Sequence[Cost]:
    cluster, board = Played(nodes), Board("p")

    async def show(_: Poll) -> bool:
        return True

    poller = cluster.poller(show, lambda: True)
    found = []
    board.apply(await poller.poll())
    for changed in (0, 1, 10, 100, nodes):
        rounds = []
        for _ in range(ROUNDS):
            cluster.change(changed)
            cluster.live.state.ledger.nodes.usages()  # otherwise the next /filter does this
            seen, began = board.id, time.thread_time()
            poll = await poller.poll()
            looked = time.thread_time()
            board.apply(poll)
            sent = sum(map(len, board.messages(seen)))
            rounds.append((looked - began, time.thread_time() - looked, sent))
        looking, showing, sent_ = (median(column) for column in zip(*rounds, strict=True))
        found.append(Cost(changed, 1000 * looking, 1000 * showing, int(sent_)))
    return found


async def in_browser(nodes: int) -> Sequence[tuple[str, Mapping[str, float]]]:
    cluster = Played(nodes)
    server = StatusServer("p")
    poller = cluster.poller(server.show, lambda: True)
    serving = in_own_thread(lambda: listening(server.application(), ANY_PORT, "--status-bind-address"), "status page")
    found: list[tuple[str, Mapping[str, float]]] = []
    async with serving as url, async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        await server.show(await poller.poll())
        for attempt in range(2):  # the second time the browser has started
            # The page's own policy forbids the expressions that playwright waits for.
            page = await chromium.new_page(viewport={"width": 1440, "height": 1000}, bypass_csp=True)
            page.set_default_timeout(_LONGEST_MILLISECONDS)
            ticks = await page.context.new_cdp_session(page)
            await ticks.send("Performance.enable", {"timeDomain": "threadTicks"})
            before = await _spent(ticks)
            await page.goto(f"{url}/")
            await page.wait_for_function(f"document.querySelectorAll('.card').length === {nodes}")
            ready = await page.evaluate("performance.now()")
            paint = await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
            spent = 1000 * (await _spent(ticks) - before)
            if not attempt:
                await page.close()
        found.append(("first paint", {"ms": paint}))
        found.append(("all nodes are there", {"ms": ready, "ms of CPU": spent}))
        found += [
            (f"update of {changed} nodes", await _updates(page, chromium, cluster, poller, server, changed))
            for changed in (0, 1, 10, 100, nodes)
        ]
        await chromium.close()
    return found


async def _updates(  # noqa: PLR0917
    page: Page, chromium: Browser, cluster: Played, poller: Poller, server: StatusServer, changed: int
) -> Mapping[str, float]:
    """Nothing is asked of the page meanwhile: that would be part of its main thread's work."""
    await chromium.start_tracing(page=page, categories=["toplevel", "devtools.timeline"])
    for _ in range(ROUNDS):
        cluster.change(changed)
        await server.show(await poller.poll())
        await asyncio.sleep(UPDATE_SECONDS)
    return _tasks(json.loads(await chromium.stop_tracing())["traceEvents"])


def _tasks(events: Iterable[Mapping[str, Any]]) -> Mapping[str, float]:
    """What the main thread of the page did: of all renderers, the one that was busiest."""
    named = [event for event in events if event["name"] in (_TASK, "thread_name")]
    mains = {(event["pid"], event["tid"]) for event in named if event["args"].get("name") == "CrRendererMain"}
    found: dict[int, list[float]] = {pid: [] for pid, _ in mains}
    for event in named:
        if event["name"] == _TASK and event["ph"] == "X" and (event["pid"], event["tid"]) in mains:
            found[event["pid"]].append(event.get("tdur", 0) / 1000)
    tasks = max(found.values(), key=sum)
    longest = sorted(tasks)[-ROUNDS:]
    return {
        "ms": sum(tasks) / ROUNDS,
        "ms longest task of an update": median(longest),
        "ms longest of all": longest[-1],
    }


async def _spent(ticks: CDPSession) -> float:
    """Seconds of CPU on the page's main thread."""
    metrics = (await ticks.send("Performance.getMetrics"))["metrics"]
    return sum(float(each["value"]) for each in metrics if each["name"] == "TaskDuration")


async def main(nodes: int) -> None:
    print(f"{nodes} nodes of 8 GPUs\n")
    print("changed  looking ms  showing ms  sent KiB")
    for cost in await costs(nodes):
        print(f"{cost.changed:7}  {cost.looking:10.2f}  {cost.showing:10.2f}  {cost.sent / 1024:8.1f}")
    print()
    for what, figures in await in_browser(nodes):
        print(f"{what:24}" + ", ".join(f"{value:.1f} {name}" for name, value in figures.items()))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
