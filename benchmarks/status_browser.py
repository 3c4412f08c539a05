"""Measures the status page in a real browser: when it can be used, what a key, scrolling and an update cost.

`python -m benchmarks.status_browser NODES` needs Chromium and takes two minutes. The use of every GPU is known. It
prints:

- after a load: the times until the first cards are drawn, until all nodes are known, and until the page is fluid: the
  end of the last task of its main thread of 50 ms or more;
- for a key in the filter: the time until the next frame is drawn, and the CPU time of the main thread;
- while the reader scrolls three screens a second and 100 nodes change twice a second: the frames lost, of those of a
  display with 60 a second, and the CPU time of the main thread for each second. Frames are also lost to other programs;
- the memory of scripts and the number of elements and texts in the document, after a collection of garbage;
- for an update: the CPU time of the main thread, all of it, and the longest task, for which keys and scrolling wait. An
  update of 0 nodes is the floor.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from playwright.async_api import Browser, CDPSession, Page, async_playwright

from benchmarks.status_page import ROUNDS, Played
from scheduler_ext.http.server import in_own_thread, listening
from scheduler_ext.status.poller import POLL_SECONDS, Poller
from scheduler_ext.status.server import StatusServer
from tests.scheduler_ext.rig import ANY_PORT
from tests.scheduler_ext.status.test_page import CHROMIUM

Figures = Mapping[str, float]

QUIET_SECONDS = 3.0
"""The main thread had no long task for so long: the page is fluid."""
UPDATE_SECONDS = 1.0
SCROLLED_SECONDS = 10.0
CHANGED_MEANWHILE = 100
KEYS = "train-1"
_LONGEST_MILLISECONDS = 300_000
_TASK = "ThreadControllerImpl::RunTask"
_WATCH_LONG_TASKS = """
window.longTasks = [];
new PerformanceObserver((list) => longTasks.push(...list.getEntries().map((each) => each.startTime + each.duration)))
  .observe({ type: "longtask", buffered: true });
window.firstCards = new Promise((found) => {
  const drawn = () => requestAnimationFrame(() => found(performance.now()));
  const look = () => (document.querySelector(".card") ? drawn() : requestAnimationFrame(look));
  look();
});
"""
_SCROLL = """
async (milliseconds) => {
  const began = performance.now();
  const frames = [];
  for (let now = began; now < began + milliseconds; ) {
    scrollTo(0, (3 * innerHeight * (now - began)) / 1000);
    const next = await new Promise(requestAnimationFrame);
    frames.push(next - now);
    now = next;
  }
  return frames.slice(1);
}
"""
_DRAWN = """
async () => {
  await new Promise(requestAnimationFrame);
  await new Promise((found) => setTimeout(found));
  return performance.now();
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A cluster on a page in a browser."""

    cluster: Played
    server: StatusServer
    poller: Poller
    chromium: Browser
    page: Page
    session: CDPSession

    async def update(self, changed: int) -> None:
        self.cluster.change(changed)
        await self.server.show(await self.poller.poll())

    async def spent(self) -> float:
        """Returns the milliseconds of CPU on the page's main thread."""
        return 1000 * (await self._metrics())["TaskDuration"]

    async def _metrics(self) -> Mapping[str, float]:
        found = await self.session.send("Performance.getMetrics")
        return {each["name"]: float(each["value"]) for each in found["metrics"]}

    async def memory(self) -> Figures:
        await self.session.send("HeapProfiler.collectGarbage")
        found = await self._metrics()
        return {"MB of scripts": found["JSHeapUsedSize"] / 1e6, "elements and texts": found["Nodes"]}


@asynccontextmanager
async def shown(nodes: int) -> AsyncIterator[Shown]:
    cluster, server = Played(nodes), StatusServer("p")
    poller = cluster.poller(server.show, lambda: True)
    serving = in_own_thread(lambda: listening(server.application(), ANY_PORT, "--status-bind-address"), "status page")
    async with serving as url, async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        await server.show(await poller.poll())
        for attempt in range(2):  # the second time the browser has started
            # The page's own policy forbids the expressions that playwright waits for.
            page = await chromium.new_page(viewport={"width": 1440, "height": 1000}, bypass_csp=True)
            page.set_default_timeout(_LONGEST_MILLISECONDS)
            await page.add_init_script(_WATCH_LONG_TASKS)
            session = await page.context.new_cdp_session(page)
            await session.send("Performance.enable", {"timeDomain": "threadTicks"})
            await page.goto(f"{url}/")
            if attempt:
                yield Shown(
                    cluster=cluster, server=server, poller=poller, chromium=chromium, page=page, session=session
                )
            await page.close()
        await chromium.close()


async def loaded(on: Shown, nodes: int) -> Figures:
    first = await on.page.evaluate("firstCards")
    await on.page.wait_for_function(f"document.getElementById('nodes-count').textContent === '{nodes:,} nodes'")
    known = await on.page.evaluate("performance.now()")
    await on.page.wait_for_function(
        f"performance.now() - Math.max({known}, ...longTasks) > {1000 * QUIET_SECONDS}", polling=500
    )
    fluid = await on.page.evaluate("Math.max(0, ...longTasks)")
    return {
        "ms until the first cards": first,
        "until all nodes are known": known,
        "until it is fluid": max(fluid, first),
        "of CPU": await on.spent(),
    }


async def keys(on: Shown) -> Figures:
    """Enters and deletes a word; each key is typed once the page has done all that the one before led to."""
    await on.page.locator("#filter").focus()
    drawn, spent = [], []
    for key in [*KEYS, *["Backspace"] * len(KEYS)]:
        before = await on.spent()
        began = await on.page.evaluate("performance.now()")
        await on.page.keyboard.press(key)
        drawn.append(await on.page.evaluate(_DRAWN) - began)
        await asyncio.sleep(UPDATE_SECONDS)
        spent.append(await on.spent() - before)
    return {
        "ms until a key is drawn": median(drawn),
        "at most": max(drawn),
        "of CPU": median(spent),
    }


async def scrolled(on: Shown) -> Figures:
    async def change() -> None:
        while True:
            await on.update(CHANGED_MEANWHILE)
            await asyncio.sleep(POLL_SECONDS)

    before = await on.spent()
    changing = asyncio.create_task(change())
    frames = await on.page.evaluate(_SCROLL, 1000 * SCROLLED_SECONDS)
    changing.cancel()
    await asyncio.wait([changing])
    due = sum(frames) / (1000 / 60)
    spent = await on.spent() - before
    return {
        "% of frames lost": 100 * max(1 - len(frames) / due, 0),
        "ms longest frame": max(frames),
        "ms of CPU a second": spent / SCROLLED_SECONDS,
    }


async def updates(on: Shown, changed: int) -> Figures:
    """Sends nothing to the page meanwhile: that would be part of its main thread's work."""
    await on.chromium.start_tracing(page=on.page, categories=["toplevel", "devtools.timeline"])
    for _ in range(ROUNDS):
        await on.update(changed)
        await asyncio.sleep(UPDATE_SECONDS)
    return _tasks(json.loads(await on.chromium.stop_tracing())["traceEvents"])


def _tasks(events: Iterable[Mapping[str, Any]]) -> Figures:
    """Returns what the main thread of the page did: of all renderers, the one that was busiest."""
    named = [event for event in events if event["name"] in (_TASK, "thread_name")]
    mains = {(event["pid"], event["tid"]) for event in named if event["args"].get("name") == "CrRendererMain"}
    found: dict[int, list[float]] = {pid: [] for pid, _ in mains}
    for event in named:
        if event["name"] == _TASK and event["ph"] == "X" and (event["pid"], event["tid"]) in mains:
            found[event["pid"]].append(event.get("tdur", 0) / 1000)
    tasks = max(found.values(), key=sum)
    longest = sorted(tasks)[-ROUNDS:]
    return {"ms of CPU": sum(tasks) / ROUNDS, "ms longest task": median(longest), "ms longest of all": longest[-1]}


async def main(nodes: int) -> None:
    print(f"{nodes} nodes of 8 GPUs")

    def say(what: str, figures: Figures) -> None:
        print(f"{what:24}" + ", ".join(f"{value:.1f} {name}" for name, value in figures.items()), flush=True)

    began = time.monotonic()
    async with shown(nodes) as on:
        say("load", await loaded(on, nodes))
        say("memory", await on.memory())
        say("key in the filter", await keys(on))
        say("scrolling", await scrolled(on))
        say("memory after scrolling", await on.memory())
        for changed in (0, 10, 100, nodes):
            say(f"update of {changed} nodes", await updates(on, changed))
    print(f"{time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
