"""The page in a real browser: `make test-page` alone runs these tests."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.typedefs import Handler
from playwright.async_api import Browser, Page, async_playwright, expect

from program.address import ListenAddress
from proto.annotations import keys
from proto.daemon_usage import ContainerUse, GpuUse, NodeUse
from proto.kubernetes.objects import OwnerReference, Pod
from scheduler_ext.cluster.history import LogEntry, LogKind
from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.http.server import in_own_thread, listening
from scheduler_ext.requests import RequestSettings
from scheduler_ext.status.board import Board
from scheduler_ext.status.server import BEAT_SECONDS, StatusServer
from scheduler_ext.status.view import Poll, Standing, Uses
from scheduler_ext.status.waiting import WaitingGroup, WaitingGroups
from simulation.apiserver import EmbeddedApiServer
from tests.builders import pod_json
from tests.scheduler_ext.rig import ANY_PORT
from tests.scheduler_ext.status.shown import MODELS, Shown, busy_cluster, looked, node, running_pod, shown
from tests.scheduler_ext.status.test_board import read

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or ""
pytestmark = pytest.mark.browser
AXE = Path.home() / ".cache" / "topogpu" / "axe" / "4.14.1" / "axe.min.js"
LONGEST_MILLISECONDS = 60_000
WHOLE = MODELS[0][1]
HOSTILE = "<img src=x onerror=alert(1)>"

expect.set_options(timeout=LONGEST_MILLISECONDS)


@dataclass
class Opened:
    it: Shown
    page: Page
    faults: list[str] = field(default_factory=list)
    """Errors of scripts, and what the Content-Security-Policy refused."""

    @property
    def server(self) -> EmbeddedApiServer:
        return self.it.rig.server


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        found = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield found
        finally:
            await found.close()


@asynccontextmanager
async def opened(*bodies: dict[str, Any], **context: Any) -> AsyncIterator[Opened]:
    async with EmbeddedApiServer() as server:
        for body in bodies:
            server.create(body)
        async with shown(server) as it, browser() as found:
            page = await (await found.new_context(**context)).new_page()
            page.set_default_timeout(LONGEST_MILLISECONDS)
            opened = Opened(it, page)
            page.on("pageerror", lambda error: opened.faults.append(str(error)))
            page.on("console", lambda message: opened.faults.append(message.text) if message.type == "error" else None)
            page.on("dialog", lambda dialog: opened.faults.append(dialog.message))
            await page.goto(it.page)
            await expect(page.locator("#live")).to_have_text("Live")
            yield opened
            assert opened.faults == []


async def test_nodes_gpus_and_pods_are_shown_with_who_holds_them() -> None:
    held = running_pod("train", "gpu-2", (0, 1), namespace="ml", memory_mib=WHOLE, cores=100)
    async with opened(node("gpu-10"), node("gpu-2"), held) as on:
        cards = on.page.locator(".card")
        await expect(cards).to_have_count(2)
        assert await cards.locator(".name").all_text_contents() == ["gpu-2", "gpu-10"]
        first = cards.first
        await expect(first.locator(".idle")).to_have_text("6 of 8 idle")
        await expect(first.locator(".on")).to_have_text("ml/train")
        states = [await tile.get_attribute("data-state") for tile in await first.locator(".tile").all()]
        assert states == ["most", "most", *["idle"] * 6]
        row = ["ml/train", "gpu-2", "0–1", "159 GiB", "200 %", "", "bound"]
        await expect(on.page.locator("#pod-rows tr").locator("th, td")).to_have_text(row)
        await expect(on.page.locator("#fits p")).to_have_text(
            "The largest request that fits: 8 whole GPUs on one node."
        )


async def test_a_decision_changes_the_page_at_once() -> None:
    async with opened(node("n")) as on:
        await expect(on.page.locator(".card .idle")).to_have_text("8 of 8 idle")
        assert await on.it.place(pod_json("train", gpus=4, memory_mib=0), "n") == "n"
        await expect(on.page.locator(".card .idle")).to_have_text("4 of 8 idle")
        decided = on.page.locator("#told-list li")
        await expect(decided).to_have_count(1)
        await expect(decided.locator(".what")).to_have_text("default/train goes to n, GPU 4–7, bound")
        assert await on.it.place(pod_json("huge", gpus=16, memory_mib=0), "n") == ""
        waiting = on.page.locator("#waiting-list summary .pod")
        await expect(waiting).to_have_text("default/huge")
        on.server.delete("pods", "huge", namespace="default")
        await expect(waiting).to_have_count(0)


async def test_names_are_texts_whatever_is_in_them() -> None:
    """The API server admits no such names. The page does not rely on that."""
    bodies = [node(HOSTILE), running_pod(HOSTILE, HOSTILE, (0,), namespace=HOSTILE, memory_mib=WHOLE)]
    found = looked(*bodies)
    names = {uid: PodName(namespace=HOSTILE, name=HOSTILE) for uid in found[HOSTILE].alone.held}
    happened = LogEntry(1, 0.0, PodName(namespace=HOSTILE, name=HOSTILE), LogKind.DECIDED, HOSTILE)
    looks = Poll(
        monotonic=0.0,
        at=1_800_000_000.0,
        standing=Standing(problem=HOSTILE),
        nodes={HOSTILE: replace(found[HOSTILE], names=names)},
        broken={f"{HOSTILE}-2": HOSTILE},
        happened=(happened,),
    )
    server, faults = StatusServer("p"), list[str]()
    serving = in_own_thread(lambda: listening(server.application(), ANY_PORT, "--status-bind-address"), "status page")
    async with serving as url, browser() as chromium:
        await server.show(looks)
        page = await chromium.new_page()
        for event in ("pageerror", "dialog"):
            page.on(event, lambda fault: faults.append(str(fault)))
        page.on("console", lambda message: faults.append(message.text))
        await page.goto(f"{url}/")
        await expect(page.locator(".card .name").first).to_have_text(HOSTILE)
        await expect(page.locator("#pod-rows th")).to_have_text(f"{HOSTILE}/{HOSTILE}")
        await expect(page.locator("#problem")).to_have_text(f"No decisions here: {HOSTILE}.")
        await expect(page.locator("#told-list .pod")).to_have_text(f"{HOSTILE}/{HOSTILE}")
        for card in await page.locator(".card").all():
            await card.click()
            await expect(page.locator("#node-title")).to_contain_text(HOSTILE)
            await page.keyboard.press("Escape")
        assert await page.locator("main img, dialog img").count() == 0
        assert faults == []


async def test_keys_alone_reach_a_node_and_bring_the_reader_back() -> None:
    async with opened(*(node(f"n{number}") for number in range(4))) as on:
        await expect(on.page.locator(".card")).to_have_count(4)
        await on.page.locator(".card").first.focus()
        for key, focused in (("ArrowRight", "n1"), ("End", "n3"), ("ArrowRight", "n3"), ("Home", "n0")):
            await on.page.keyboard.press(key)
            await expect(on.page.locator(".card:focus .name")).to_have_text(focused)
        assert await on.page.locator('.card[tabindex="0"]').count() == 1
        await on.page.keyboard.press("ArrowRight")
        await on.page.keyboard.press("Enter")
        dialog = on.page.locator("#node")
        await expect(dialog).to_be_visible()
        await expect(on.page.locator("#node-title")).to_have_text("n1")
        assert on.page.url.endswith("#node=n1")
        await expect(dialog.locator("svg[role=img]")).to_have_attribute("aria-label", re.compile("28 of 28 pairs"))
        await expect(dialog.locator(".devices tbody tr")).to_have_count(8)
        await on.page.keyboard.press("Escape")
        await expect(dialog).to_be_hidden()
        await expect(on.page.locator(".card:focus .name")).to_have_text("n1")
        await expect(on.page).to_have_url(on.it.page)


async def test_an_open_node_follows_decisions() -> None:
    async with opened(node("n")) as on:
        await on.page.goto(f"{on.it.page}#node=n")
        held = on.page.locator("#node .held .pod")
        await expect(on.page.locator("#node")).to_be_visible()
        await expect(held).to_have_count(0)
        assert await on.it.place(pod_json("train", gpus=2, memory_mib=0), "n") == "n"
        await expect(held).to_have_text(["default/train", "default/train"])
        await on.page.locator("#node summary").click()
        for number, stop in enumerate(("summary", ".close", "[aria-label=GPUs]", "[aria-label=Links]")):
            await on.page.locator(f"#node {stop}").focus()
            assert await on.it.place(pod_json(f"next-{number}", memory_mib=0), "n") == "n"
            await expect(held).to_have_count(3 + number)
            await expect(on.page.locator(f"#node {stop}")).to_be_focused()


async def test_the_filter_finds_pods_nodes_and_models() -> None:
    pods = [running_pod("train", "a", (0,), memory_mib=WHOLE), running_pod("infer", "a", (1,), memory_mib=WHOLE)]
    async with opened(node("a"), node("b", model=2, unhealthy=(3,)), *pods) as on:
        shown = on.page.locator(".cards li:not([hidden]) .name")
        rows = on.page.locator("#pod-rows th")
        for text, nodes, found in (
            ("TRAIN", ["a"], ["default/train"]),
            ("l40", ["b"], []),
            ("a100", [], []),
            ("", ["a", "b"], ["default/infer", "default/train"]),
        ):
            await on.page.locator("#filter").fill(text)
            await expect(shown).to_have_text(nodes)
            await expect(rows).to_have_count(len(found))
            assert sorted(await rows.all_text_contents()) == found
        await on.page.get_by_text("with problems", exact=True).click()
        await expect(shown).to_have_text(["b"])
        assert await on.page.locator('.card:visible .tile[data-state="unhealthy"]').count() == 1


async def test_a_paused_page_stands_still_and_catches_up() -> None:
    async with opened(node("n")) as on:
        idle = on.page.locator(".card .idle")
        await expect(idle).to_have_text("8 of 8 idle")
        await on.page.locator("#pause").click()
        await expect(on.page.locator("#live")).to_have_text("Paused")
        assert await on.it.place(pod_json("p", memory_mib=0), "n") == "n"
        async with on.it.rig.http.get(f"{on.it.page}events") as response:  # the extender has seen it
            while b"default/p" not in await response.content.readline():
                pass
        await expect(idle).to_have_text("8 of 8 idle")
        await on.page.locator("#pause").click()
        await expect(idle).to_have_text("7 of 8 idle")


@pytest.mark.skipif(not AXE.exists(), reason="no axe-core; `make test-page` fetches it")
@pytest.mark.parametrize("context", [{}, {"color_scheme": "dark"}, {"viewport": {"width": 360, "height": 740}}])
async def test_no_rule_of_axe_is_broken(context: dict[str, Any]) -> None:
    async with opened(*busy_cluster(12), node("ill", unhealthy=(0, 1)), **context) as on:
        assert await on.it.place(pod_json("huge", gpus=16, memory_mib=0), "gpu-1") == ""
        await expect(on.page.locator("#waiting-list > li")).to_have_count(1)
        if context.get("viewport"):
            await on.page.locator("#waiting .fold").click()
        await on.page.locator("#waiting-list > li > details > summary").click()
        axe = AXE.read_text("utf-8")
        await on.page.evaluate(axe)
        for opens_node in (False, True):
            if opens_node:
                await on.page.evaluate("document.querySelector('.card').click()")
                await on.page.locator("#node summary").click()
            found = await on.page.evaluate("axe.run().then((found) => found.violations)")
            broken = [(rule["id"], node["target"], node["failureSummary"]) for rule in found for node in rule["nodes"]]
            assert broken == []


async def test_a_phone_need_not_scroll_sideways() -> None:
    async with opened(*busy_cluster(3), viewport={"width": 360, "height": 740}) as on:
        await expect(on.page.locator(".card")).to_have_count(3)
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert await on.page.evaluate(wide) == 0
        await on.page.locator("#nodes .fold").click()
        await on.page.locator(".card").first.click()
        assert await on.page.evaluate(wide) == 0


async def test_on_a_phone_one_screen_is_the_summary() -> None:
    async with opened(*busy_cluster(12), viewport={"width": 390, "height": 844}) as on:
        await expect(on.page.locator(".card")).to_have_count(12)
        assert await on.page.evaluate("document.documentElement.scrollHeight") <= 844
        await on.page.locator("#pods .fold").click()
        await expect(on.page.locator("#pod-rows tr").first).to_be_visible()


async def test_the_filter_is_in_the_address_and_applies_to_everything() -> None:
    pods = [running_pod("train", "a", (0,), namespace="ml", memory_mib=WHOLE)]
    async with opened(node("a"), node("b", model=2), *pods) as on:
        await expect(on.page.locator(".card")).to_have_count(2)
        for name in ("huge", "vast"):
            assert await on.it.place(pod_json(name, gpus=16, memory_mib=0), "a") == ""
        await on.page.keyboard.press("/")
        await expect(on.page.locator("#filter")).to_be_focused()
        await on.page.keyboard.type("huge")
        await expect(on.page.locator("#waiting-count")).to_have_text("1 of 2 pods on no node")
        await expect(on.page.locator("#figures .value").first).to_have_text("0")
        await on.page.locator("#filter").fill("L40S")
        await expect(on.page.locator("#figures .about").first).to_have_text("on 1 node that match")
        await expect(on.page).to_have_url(f"{on.it.page}#q=L40S")
        await on.page.goto(f"{on.it.page}#q=ml&group=model")
        await expect(on.page.locator("#filter")).to_have_value("ml")
        await expect(on.page.locator(".cards li:not([hidden]) .name")).to_have_text(["a"])
        await expect(on.page.locator("#team-rows th")).to_have_text(["ml"])


async def test_nodes_are_sorted_and_grouped() -> None:
    pods = [running_pod("train", "a", (0,), namespace="ml", memory_mib=WHOLE)]
    async with opened(node("a"), node("b", model=2), node("c"), *pods) as on:
        names = on.page.locator(".card .name")
        await expect(names).to_have_text(["a", "b", "c"])
        await on.page.locator("#sort").select_option("idle")
        await expect(names).to_have_text(["b", "c", "a"])
        await on.page.locator("#group").select_option("model")
        await expect(on.page.locator(".cards .group")).to_have_text(["H100-SXM5-80GB", "L40S"])
        await expect(names).to_have_text(["c", "a", "b"])
        assert await on.it.place(pod_json("two", gpus=2, memory_mib=0), "c") == "c"
        await expect(names).to_have_text(["a", "c", "b"])


async def test_nodes_are_grouped_by_clique_with_the_number_that_is_free_as_a_whole() -> None:
    cliques = [node(name, labels={keys.NODE_CLIQUE: f"fabric.{name in 'cd'}"}) for name in "abcd"]
    pods = [running_pod("train", "a", (0,), memory_mib=WHOLE)]
    async with opened(*cliques, *pods) as on:
        await on.page.goto(f"{on.it.page}#group=clique")
        headings = on.page.locator(".cards .group")
        free = ["fabric.False: 1 of 2 nodes free as a whole", "fabric.True: 2 of 2 nodes free as a whole"]
        await expect(headings).to_have_text(free)
        assert await on.it.place(pod_json("one", gpus=1, memory_mib=0), "c") == "c"
        await expect(headings.last).to_have_text("fabric.True: 1 of 2 nodes free as a whole")
        await on.page.locator(".card", has_text="a").first.click()
        await expect(on.page.locator("#node")).to_contain_text("clique fabric.False")


async def test_a_level_in_the_address_waits_for_the_first_node_of_that_level() -> None:
    async with opened() as on:
        await on.page.goto(f"{on.it.page}#group=clique")
        await on.page.reload()
        await on.page.locator("#sort").select_option("idle")
        await expect(on.page).to_have_url(f"{on.it.page}#sort=idle&group=clique")
        on.server.create(node("a", labels={keys.NODE_CLIQUE: "fabric.1"}))
        await expect(on.page.locator(".cards .group")).to_have_text(["fabric.1: 1 of 1 node free as a whole"])
        await on.page.locator("#group").select_option("")
        await expect(on.page).to_have_url(f"{on.it.page}#sort=idle")


async def test_a_pod_has_a_page_and_back_leads_to_what_was_before() -> None:
    async with opened(node("n")) as on:
        assert await on.it.place(pod_json("train", gpus=2, memory_mib=4000, cores=20), "n") == "n"
        await on.page.locator("#pod-rows a").click()
        pod = on.page.locator("#pod")
        await expect(pod.locator("h2")).to_have_text("default/train")
        await expect(pod).to_contain_text("Pod default/train is on node n with GPU 6–7 (H100-SXM5-80GB).")
        cells = pod.locator("tbody tr").first.locator("td")
        await expect(cells.nth(0)).to_have_text("container main asks for 2 GPUs with 4 000 MiB and 20 % of cores each")
        await expect(cells.nth(1)).to_have_text("GPU 6–7 (H100-SXM5-80GB): 3.9 GiB and 20 % of cores of each")
        await expect(cells.nth(2)).to_have_text("hami-core")
        await expect(pod.locator(".story li").first).to_contain_text("kube-scheduler asked about it")
        await pod.locator(".facts a").click()
        await expect(on.page.locator("#node h2")).to_have_text("n")
        await on.page.go_back()
        await expect(pod.locator("h2")).to_have_text("default/train")
        await on.page.go_back()
        await expect(pod).to_be_hidden()
        await expect(on.page).to_have_url(on.it.page)
        await on.page.goto(f"{on.it.page}#pod=default%2Fnobody")
        await expect(pod).to_contain_text("there is no pod default/nobody any more")
        on.faults.clear()  # the browser writes about the answer 404


async def test_a_page_before_a_dead_api_server_is_not_live() -> None:
    async with opened(node("n")) as on:
        await on.server.go_offline()
        await expect(on.page.locator("#live")).to_contain_text("Not live: the API server does not answer the extender")
        await expect(on.page.locator("#problem")).to_contain_text("What is shown may be old: ")
        await on.server.go_online()
        await expect(on.page.locator("#live")).to_have_text("Live")
        await expect(on.page.locator("#problem")).to_be_hidden()


async def test_a_pods_page_shows_its_events() -> None:
    async with opened(node("n")) as on:
        assert await on.it.place(pod_json("train", gpus=2, memory_mib=0), "n") == "n"
        pod = on.server.store.get("pods", "default", "train")
        assert pod is not None
        of = {"kind": "Pod", "namespace": "default", "name": "train", "uid": pod["metadata"]["uid"]}
        event = {
            "kind": "Event",
            "metadata": {"name": "e", "namespace": "default"},
            "involvedObject": of,
            "reason": "Failed",
            "message": HOSTILE,
            "type": "Warning",
            "eventTime": "2026-01-01T00:00:00.000000Z",
            "reportingComponent": "kubelet",
            "series": {"count": 7, "lastObservedTime": "2026-01-01T00:00:00.000000Z"},
        }
        on.server.create(event)
        await on.page.goto(f"{on.it.page}#pod=default%2Ftrain")
        line = on.page.locator("#pod .events tbody tr", has_text="Failed")
        await expect(line).to_contain_text(", 7 times")
        await expect(line.locator("td").nth(2)).to_have_text(HOSTILE)
        await expect(line.locator("td").nth(3)).to_have_text("kubelet")


async def test_use_is_shown_beside_what_is_held_and_who_does_not_use_it_is_listed() -> None:
    held = [running_pod("busy", "n", (0,), memory_mib=WHOLE), running_pod("idle", "n", (1, 2), memory_mib=WHOLE)]
    found = looked(node("n"), *held)
    uuids = {gpu.device.index: gpu.device.uuid for gpu in found["n"].usage.gpus}
    rows = [("busy", 0, 85, 0), ("idle", 1, 0, 7300), ("idle", 2, 0, 9000)]
    names = {uid: PodName(namespace="ml", name=uid.rpartition("-")[2]) for uid in found["n"].alone.held}
    use = NodeUse(
        node="n",
        gpus={uuids[index]: GpuUse(memory=1024, busy=busy) for _, index, busy, _ in rows},
        containers=tuple(
            ContainerUse(pod=f"ml/{pod}", container="main", gpu=uuids[index], memory=1024, busy=busy, unused=unused)
            for pod, index, busy, unused in rows
        ),
    )
    server = StatusServer("p")
    async with listening(server.application(), ANY_PORT, "--status-bind-address") as url, browser() as chromium:
        nodes = {"n": replace(found["n"], names=names)}
        await server.show(Poll(monotonic=0.0, at=1.8e9, nodes=nodes, uses=Uses(nodes={"n": use})))
        page = await chromium.new_page()
        await page.goto(f"{url}/")
        await expect(page.locator("#idle-list li")).to_have_text(["ml/idle n GPU 1–2: not used for 2 h 1 min"])
        await expect(page.locator("#idle-count")).to_have_text("1 pod with GPUs unused for an hour")
        await expect(page.locator("#pod-rows tr", has_text="ml/busy").locator("td").nth(4)).to_have_text("85 %")
        await expect(page.locator("#figures > div", has_text="in use").locator(".value")).to_have_text("28 %")
        await expect(page.locator("#team-rows tr").first.locator("td").nth(2)).to_have_text("0.8")
        await expect(page.locator(".card .about")).to_contain_text("28 % busy")
        await page.locator(".card").click()
        await expect(page.locator("#node .devices tbody tr").first).to_contain_text("85 % of the time, 1 GiB")
        await page.set_viewport_size({"width": 375, "height": 740})
        amounts = page.locator(".card .amounts")
        await expect(amounts).to_have_text(re.compile("28 % busy$"))
        assert await amounts.evaluate("amounts => amounts.scrollWidth <= amounts.clientWidth")
        await server.show(Poll(monotonic=1.0, at=1.8e9, uses=Uses(problem="n: the daemon does not answer")))
        await page.keyboard.press("Escape")
        await expect(page.locator("#idle-note")).to_contain_text("n: the daemon does not answer")
        await expect(page.locator("#idle-list li")).to_have_count(0)


async def test_pods_are_sorted_by_every_column_and_grouped_and_the_address_keeps_it() -> None:
    pods = [
        running_pod("one", "a", (0, 1), namespace="ml", memory_mib=4000, cores=10),
        running_pod("two", "b", (0,), namespace="web", memory_mib=9000, cores=90),
        running_pod("ten", "b", (1,), namespace="ml", memory_mib=100, cores=0),
    ]
    async with opened(node("a"), node("b", model=2), *pods) as on:
        names = on.page.locator("#pod-rows th .pod")
        await expect(names).to_have_text(["ml/one", "web/two", "ml/ten"])
        for column, first in (
            ("memory", ["web/two", "ml/one", "ml/ten"]),
            ("GPUs", ["ml/one", "web/two", "ml/ten"]),
            ("cores", ["web/two", "ml/one", "ml/ten"]),
            ("node", ["ml/one", "web/two", "ml/ten"]),
            ("state", ["ml/one", "web/two", "ml/ten"]),
            ("in use", ["ml/one", "web/two", "ml/ten"]),
            ("pod", ["ml/one", "ml/ten", "web/two"]),
        ):
            head = on.page.locator("#pod-head").get_by_role("columnheader", name=column, exact=True)
            await head.get_by_role("button").click()
            await expect(names).to_have_text(first)
            await expect(head).to_have_attribute("aria-sort", re.compile("scending"))
        await on.page.locator("#pod-head th").first.get_by_role("button").click()
        await expect(names).to_have_text(["web/two", "ml/ten", "ml/one"])
        await on.page.locator("#pgroup").select_option("namespace")
        await expect(on.page.locator("#pod-rows tr")).to_have_text(
            [
                "ml: 2 pods, 3 GPUs or parts of them, 7.9 GiB",
                re.compile("^ml/ten"),
                re.compile("^ml/one"),
                "web: 1 pod, 1 GPU or parts of them, 8.8 GiB",
                re.compile("^web/two"),
            ]
        )
        await expect(on.page).to_have_url(f"{on.it.page}#psort=-pod&pgroup=namespace")
        await on.page.reload()
        await expect(names).to_have_text(["ml/ten", "ml/one", "web/two"])
        await on.page.locator("#pod-rows .group a").last.click()
        await expect(names).to_have_text(["web/two"])
        await on.page.go_back()
        await expect(names).to_have_text(["ml/ten", "ml/one", "web/two"])


async def test_waiting_pods_are_grouped_by_reason_and_a_page_that_nothing_feeds_is_not_live() -> None:
    async with opened(node("n")) as on:
        for name in ("a-1", "a-2", "b-1"):
            body = pod_json(name, gpus=16, memory_mib=0)
            owner = {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": name[0],
                "uid": f"uid-{name[0]}",
                "controller": True,
            }
            body["metadata"]["ownerReferences"] = [owner]
            assert await on.it.place(body, "n") == ""
        entry = on.page.locator("#waiting-list > li")
        await expect(entry.locator("summary .pod")).to_have_text("3 pods")
        await expect(entry.locator(".because")).to_have_text("waits: fewer GPUs than asked for (on n)")
        await entry.locator("summary").click()
        await expect(entry.locator(".owner")).to_have_text(["default Job/a: a-1, a-2", "default Job/b: b-1"])
        await entry.locator(".owner a").first.click()
        await expect(on.page.locator("#owner h2")).to_have_text("default/Job/a")
        await expect(on.page.locator("#owner .story li .pod")).to_have_text(["a-1", "a-2"])
        await on.page.reload()
        await expect(on.page.locator("#owner .story li .pod")).to_have_text(["a-1", "a-2"])
        await on.page.go_back()
        await expect(on.page.locator("#owner")).to_be_hidden()
    server = StatusServer("p")
    async with listening(server.application(), ANY_PORT, "--status-bind-address") as url, browser() as chromium:
        await server.show(Poll(monotonic=0.0, at=1.0, nodes=looked(node("n"))))
        page = await chromium.new_page()
        await page.goto(f"{url}/")
        await expect(page.locator("#live")).to_have_text("Live")
        await expect(page.locator("#live")).to_contain_text("has not looked at its cluster for", timeout=5_000)


async def test_a_page_for_other_hosts_asks_for_a_token_and_keeps_it_to_itself() -> None:
    async with EmbeddedApiServer() as server:
        server.create(node("n"))
        server.users["good"] = "ana"
        async with shown(server, for_other_hosts=True) as it, browser() as chromium:
            page = await chromium.new_page()
            await page.goto(f"{it.page}#node=n")
            await expect(page.locator("#live")).to_have_text("Not shown: a token is needed to see this page.")
            await expect(page.locator("main")).to_be_hidden()
            for token, answer in (
                ("wrong", "Not shown: the API server does not accept this token."),
                ("good", "Live"),
            ):
                await page.locator("#token").fill(token)
                await page.keyboard.press("Enter")
                await expect(page.locator("#live")).to_have_text(answer)
                assert await page.locator("#token").input_value() == ""
            await expect(page.locator("#ask")).to_be_hidden()
            await expect(page.locator(".card .name")).to_have_text("n")
            await expect(page.locator("#node-title")).to_have_text("n")
            kept = "JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}, location.href])"
            assert "good" not in await page.evaluate(kept)


async def test_a_page_whose_extender_restarts_says_so_and_shows_what_the_new_one_knows() -> None:
    async with browser() as chromium:
        page, port = await chromium.new_page(), ANY_PORT
        for process, name in (("a", "old"), ("b", "new")):
            server = StatusServer(process)
            async with listening(server.application(), port, "--status-bind-address") as url:
                await server.show(Poll(monotonic=0.0, at=1.0, nodes=looked(node(name))))
                if process == "a":
                    await page.goto(f"{url}/")
                port = ListenAddress(host="127.0.0.1", port=int(url.rpartition(":")[2]))
                await expect(page.locator(".card .name")).to_have_text([name])
                await expect(page.locator("#live")).to_have_text("Live")
            await expect(page.locator("#live")).to_have_text(re.compile("^Not live: .* Trying again"))


@pytest.mark.parametrize("seconds", [-3600, 315_000_000])
async def test_a_clock_that_is_set_draws_no_history_outside_its_chart(seconds: float) -> None:
    server = StatusServer("p")
    async with listening(server.application(), ANY_PORT, "--status-bind-address") as url, browser() as chromium:
        for number in range(20):
            at = 1_800_000_000 + 10 * number + seconds * (number >= 10)
            await server.show(Poll(monotonic=10 * number, at=at, nodes={} if number else looked(node("n"))))
        page = await chromium.new_page()
        await page.goto(f"{url}/")
        points = await page.locator("#history .memory-line").first.get_attribute("points")
        assert points is not None
        across = [float(point.partition(",")[0]) for point in points.split()]
        assert len(across) == 10
        assert min(across) >= 0
        assert max(across) <= 600


@asynccontextmanager
async def fed(*bodies: dict[str, Any], **context: Any) -> AsyncIterator[tuple[StatusServer, Page]]:
    """A page that only the test feeds."""
    server = StatusServer("p")
    async with listening(server.application(), ANY_PORT, "--status-bind-address") as url, browser() as chromium:
        await server.show(Poll(monotonic=0.0, at=1.0, nodes=looked(*bodies)))
        page = await (await chromium.new_context(**context)).new_page()
        page.set_default_timeout(LONGEST_MILLISECONDS)
        await page.goto(f"{url}/")
        yield server, page


MANY = 300


def many_nodes() -> list[dict[str, Any]]:
    return [node(f"n{number}", gpus=1, model=number % 2) for number in range(MANY)]


async def test_only_cards_near_the_view_are_in_the_document_and_keys_reach_all() -> None:
    async with fed(*many_nodes()) as (_, page):
        await expect(page.locator("#nodes-count")).to_have_text(f"{MANY} nodes")
        cards, focused = page.locator(".card"), page.locator(".card:focus")
        await expect(cards.first.locator(".name")).to_have_text("n0")
        assert await cards.count() < MANY / 3
        await cards.first.focus()
        for key, name in (("End", "n299"), ("ArrowLeft", "n298"), ("Home", "n0"), ("ArrowRight", "n1")):
            await page.keyboard.press(key)
            await expect(focused.locator(".name")).to_have_text(name)
            await expect(focused).to_be_in_viewport(ratio=0.9)
            place = page.locator(".cards > li:has(:focus)")
            await expect(place).to_have_attribute("aria-posinset", str(int(name[1:]) + 1))
            await expect(place).to_have_attribute("aria-setsize", str(MANY))
        await page.mouse.wheel(0, 100_000)
        await expect(cards.filter(has_text="n299")).to_be_in_viewport()
        await expect(focused.locator(".name")).to_have_text("n1")
        names = await cards.locator(".name").all_text_contents()
        assert names == sorted(names, key=lambda name: int(name[1:]))
        await page.keyboard.press("ArrowRight")
        await expect(focused.locator(".name")).to_have_text("n2")
        await expect(focused).to_be_in_viewport(ratio=0.9)


async def test_cards_far_down_are_found_sorted_grouped_and_follow_decisions() -> None:
    async with fed(*many_nodes()) as (server, page):
        names, headings = page.locator(".card .name"), page.locator(".cards .group")
        await page.locator("#filter").fill("n299")
        await expect(names).to_have_text(["n299"])
        await page.locator("#filter").fill("")
        await page.locator("#group").select_option("model")
        await expect(headings).to_have_text(["A100-SXM4-40GB"])
        await page.evaluate("scrollTo(0, document.documentElement.scrollHeight / 2)")
        await expect(headings).to_have_text(["H100-SXM5-80GB"])
        await page.mouse.wheel(0, 100_000)
        last = page.locator(".card", has_text="n298")
        await expect(last).to_be_in_viewport()
        await expect(last.locator(".idle")).to_have_text("1 of 1 idle")
        held = running_pod("p", "n298", (0,), memory_mib=WHOLE)
        await server.show(Poll(monotonic=1.0, at=2.0, nodes=looked(node("n298", gpus=1), held)))
        await expect(last.locator(".idle")).to_have_text("0 of 1 idle")
        await page.locator("#sort").select_option("held")
        await page.mouse.wheel(0, -100_000)
        await page.locator("#group").select_option("")
        await expect(names.first).to_have_text("n298")
        gone = tuple(f"n{number}" for number in range(MANY - 2))
        await server.show(Poll(monotonic=2.0, at=3.0, gone=gone))
        await expect(names).to_have_text(["n298", "n299"])


async def test_the_leader_has_a_name_and_a_time_without_looks_has_no_line() -> None:
    async with fed(node("n")) as (server, page):
        for number, (standing, words) in enumerate(
            (
                (Standing(leads=False, leader="scheduler-1"), "not the leader: that is scheduler-1"),
                (Standing(leads=False), "not the leader: none is known"),
                (Standing(leader="scheduler-2"), "leader scheduler-2"),
            )
        ):
            await server.show(Poll(monotonic=10.0 * number, at=500.0 * number, standing=standing))
            await expect(page.locator("#about")).to_have_text(words)
        await expect(page.locator("#history polyline.memory-line")).to_have_count(3)


async def test_back_leads_to_where_the_reader_was_among_the_cards() -> None:
    async with fed(*many_nodes()) as (_, page):
        await expect(page.locator("#nodes-count")).to_have_text(f"{MANY} nodes")
        await page.mouse.wheel(0, 3_000)
        await expect(page.get_by_role("button", name="n3 ")).to_have_count(0)
        name = await page.evaluate("document.elementFromPoint(400, 400).closest('.card')?.name")
        card = page.get_by_role("button", name=f"{name} ")
        await expect(card).to_be_in_viewport(ratio=0.9)
        place = await page.evaluate("scrollY")
        await card.click()
        await expect(page.locator("#node-title")).to_have_text(name)
        await page.go_back()
        await expect(page.locator("#node")).to_be_hidden()
        await expect(card).to_be_focused()
        assert await page.evaluate("scrollY") == place
        await page.evaluate("location.hash = '#q=n299'")
        await expect(page.locator(".card .name")).to_have_text(["n299"])
        await page.go_back()
        await expect(card).to_be_in_viewport(ratio=0.9)
        await page.reload()
        await expect(card).to_be_in_viewport(ratio=0.9)


class Told:
    """A page to which the test sends each message of the stream."""

    def __init__(self) -> None:
        self.messages = asyncio.Queue[bytes]()

    def application(self) -> web.Application:
        application = StatusServer("p").application()
        application.middlewares.append(self._events)
        return application

    @web.middleware
    async def _events(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path != "/events":
            return await handler(request)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            try:
                message = await asyncio.wait_for(self.messages.get(), BEAT_SECONDS)
            except TimeoutError:
                message = b"data: {}\n\n"
            await response.write(message)


@asynccontextmanager
async def told(address: str) -> AsyncIterator[tuple[Told, Page]]:
    it = Told()
    async with listening(it.application(), ANY_PORT, "--status-bind-address") as url, browser() as chromium:
        page = await chromium.new_page()
        page.set_default_timeout(LONGEST_MILLISECONDS)
        await page.goto(f"{url}/{address}")
        yield it, page


def pieces(process: str, *bodies: dict[str, Any], **others: Any) -> list[bytes]:
    board = Board(process)
    board.apply(Poll(monotonic=0.0, at=1.0, nodes=looked(*bodies), **others))
    return list(board.messages(""))


async def seen_first(page: Page) -> tuple[str, float]:
    """The first card that is wholly below the page's head, and its place in the view."""
    script = """[...document.querySelectorAll(".card")].map((card) => [card.name, card.getBoundingClientRect().top])
      .filter(([, top]) => top > 100).sort((a, b) => a[1] - b[1])[0]"""
    name, top = await page.evaluate(script)
    return name, top


async def top_of(page: Page, name: str) -> float:
    return float(await page.get_by_role("button", name=f"{name} ").evaluate("card => card.getBoundingClientRect().top"))


async def test_cards_stay_where_the_reader_sees_them_while_nodes_come_and_go() -> None:
    async with fed(*many_nodes()) as (server, page):
        known = page.locator("#nodes-count")
        await expect(known).to_have_text(f"{MANY} nodes")
        await page.evaluate("scrollTo(0, 4000)")
        await expect(page.get_by_role("button", name="n3 ")).to_have_count(0)
        name, top = await seen_first(page)
        gone = tuple(f"n{number}" for number in range(30))
        await server.show(Poll(monotonic=1.0, at=2.0, gone=gone))
        await expect(known).to_have_text(f"{MANY - 30} nodes")
        assert await top_of(page, name) == pytest.approx(top, abs=1)
        await server.show(Poll(monotonic=2.0, at=3.0, nodes=looked(*(node(f"m{at}", gpus=1) for at in range(60)))))
        await expect(known).to_have_text(f"{MANY + 30} nodes")
        assert await top_of(page, name) == pytest.approx(top, abs=1)
        await server.show(Poll(monotonic=3.0, at=4.0, gone=(name,)))
        await expect(known).to_have_text(f"{MANY + 29} nodes")
        assert await top_of(page, f"n{int(name[1:]) + 3}") == pytest.approx(top, abs=150)
        await page.evaluate("scrollTo(0, 0)")
        await server.show(Poll(monotonic=4.0, at=5.0, nodes=looked(node("a", gpus=1))))
        await expect(page.get_by_role("button", name="a ", exact=False).first).to_be_in_viewport()


async def test_the_focus_goes_to_the_next_node_where_its_node_goes() -> None:
    async with fed(*many_nodes()) as (server, page):
        await page.locator(".card").first.focus()
        await page.keyboard.press("End")
        await page.keyboard.press("ArrowUp")
        focused = page.locator(".card:focus .name")
        name = await focused.text_content() or ""
        after = f"n{int(name[1:]) + 1}"
        place = await page.evaluate("scrollY")
        await server.show(Poll(monotonic=1.0, at=2.0, gone=(name,)))
        await expect(focused).to_have_text(after)
        await server.show(Poll(monotonic=2.0, at=3.0, gone=tuple(f"n{at}" for at in range(int(after[1:]), MANY))))
        await expect(focused).to_have_text(f"n{int(name[1:]) - 1}")
        assert await page.evaluate("scrollY") == pytest.approx(place, abs=400)


async def test_cards_stay_where_they_are_while_another_extender_lists_the_cluster() -> None:
    async with told("") as (it, page):
        known = page.locator("#nodes-count")

        async def comes(message: bytes, count: str) -> None:
            it.messages.put_nowait(message)
            await expect(known).to_have_text(count)

        for message, count in zip(pieces("a", *many_nodes()), (100, 200, 300), strict=True):
            await comes(message, f"{count} nodes")
        await page.evaluate("scrollTo(0, 6000)")
        await expect(page.get_by_role("button", name="n150 ")).to_be_attached()
        name, top = await seen_first(page)
        await comes(pieces("b", standing=Standing(synced=False))[0], "0 nodes so far")
        for message, count in zip(pieces("c", *many_nodes()), (100, 200, 300), strict=True):
            assert await top_of(page, name) == pytest.approx(top, abs=1)
            await comes(message, f"{count} nodes")
        assert await top_of(page, name) == pytest.approx(top, abs=1)


async def test_an_open_node_that_comes_late_stays_open_while_the_cluster_is_read_again() -> None:
    bodies = [node(f"n{number:03}", gpus=1) for number in range(101)]
    first, last = pieces("a", *bodies)
    ((_, value),) = read([last])
    (late,) = value["nodes"]
    async with told(f"#node={late}") as (it, page):
        title, known = page.locator("#node-title"), page.locator("#nodes-count")
        for message, count in ((first, 100), (last, 101)):
            await expect(page.locator("#node")).to_be_hidden()
            it.messages.put_nowait(message)
            await expect(known).to_have_text(f"{count} nodes")
        await expect(title).to_have_text(late)
        for message, count in zip(pieces("b", *bodies), (100, 101), strict=True):
            it.messages.put_nowait(message)
            await expect(known).to_have_text(f"{count} nodes")
            await expect(title).to_have_text(late)
        for message in pieces("c", *(body for body in bodies if body["metadata"]["name"] != late)):
            it.messages.put_nowait(message)
        await expect(page.locator("#node")).to_be_hidden()
        await expect(page).to_have_url(re.compile("/$"))


async def test_before_the_first_list_nothing_is_counted_and_an_owner_of_the_address_is_not_known_yet() -> None:
    waits = msgspec.convert(pod_json("a-1", memory_mib=0), Pod)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "uid-a", "controller": True}
    waits.metadata.owner_references = (msgspec.convert(owner, OwnerReference),)
    waiting = WaitingGroups(RequestSettings()).of({"uid": waits}, lambda _: None)
    async with told("#owner=default%2FJob%2Fa&psort=-pod&pgroup=node&show=idle&sort=idle&q=n") as (it, page):
        count, address = page.locator("#owner .count").first, page.url
        await expect(count).to_have_text("not known yet")
        for message in pieces("a", standing=Standing(synced=False)):
            it.messages.put_nowait(message)
        await expect(page.locator("#figures .value")).to_have_text(["?"] * 8)
        await expect(page.locator("#nodes-count")).to_have_text("0 nodes so far")
        await expect(page.locator("#pods-count")).to_have_text("0 pods so far")
        await expect(count).to_have_text("not known yet")
        for message in pieces("b", node("n"), waiting=waiting, waiting_total=1):
            it.messages.put_nowait(message)
        await expect(count).to_have_text("1 pod on no node")
        await expect(page.locator("#owner .story li .pod")).to_have_text(["a-1"])
        await expect(page.locator("#nodes-count")).to_have_text("1 node")
        await expect(page.locator("#pods-count")).to_have_text("0 pods")
        assert set(page.url.partition("#")[2].split("&")) == set(address.partition("#")[2].split("&"))


async def test_a_large_node_makes_no_other_card_tall_and_marks_of_direction_turn_no_words() -> None:
    turned = PodName(namespace="ml", name="\u202egnp.exe")
    happened = LogEntry(1, 0.0, turned, LogKind.DECIDED, "n" * 253)
    server = StatusServer("p")
    async with listening(server.application(), ANY_PORT, "--status-bind-address") as url, browser() as chromium:
        large, found = looked(node("large", gpus=128)), looked(node("n"), node("next"))
        await server.show(Poll(monotonic=0.0, at=1.0, nodes={**large, **found}, happened=(happened,)))
        page = await chromium.new_page(forced_colors="active")
        await page.goto(f"{url}/#node=large")
        await expect(page.locator("#node .devices tbody tr")).to_have_count(128)
        assert await page.locator("#node .graph").count() == 0
        await page.locator("#node summary").click()
        await expect(page.locator("#node .matrix tbody tr")).to_have_count(128)
        await page.keyboard.press("Escape")
        heights = [await card.evaluate("card => card.offsetHeight") for card in await page.locator(".card").all()]
        assert max(heights[1:]) < 120 < heights[0]
        what = page.locator("#told-list .what")
        assert await what.evaluate("what => what.scrollWidth <= what.clientWidth")
        await expect(what.locator(".pod")).to_have_text("ml/\ufffdgnp.exe")
        checked = page.locator("#show label").first
        await expect(checked).not_to_have_css("background-color", "rgba(0, 0, 0, 0)")
        await expect(page.locator(".card .tile").first).not_to_have_css("box-shadow", "none")


async def test_long_names_need_no_scrolling_sideways() -> None:
    bodies = [node("n" * 253), running_pod("p", "n" * 253, (0,), memory_mib=100)]
    for width in (360, 1280):
        async with fed(*bodies, viewport={"width": width, "height": 740}) as (server, page):
            standing = Standing(problem="x" * 500, leader="l" * 253, cluster=f"https://{'c' * 253}", version="1")
            await server.show(Poll(monotonic=1.0, at=2.0, standing=standing))
            await expect(page.locator("#problem")).to_contain_text("xxx")
            assert await page.evaluate("document.documentElement.scrollWidth") == width


async def test_an_address_that_names_no_column_shows_the_pods() -> None:
    pods = [running_pod(f"p{gpu}", "n", (gpu,), memory_mib=100) for gpu in range(2)]
    async with told("#psort=__proto__&pgroup=__proto__&sort=__proto__&show=%22%5D&node=__proto__") as (it, page):
        it.messages.put_nowait(pieces("a", node("n"), *pods)[0])
        await expect(page.locator("#pod-rows tr")).to_have_count(2)


def jobs_that_wait(count: int) -> tuple[WaitingGroup, ...]:
    pods = {}
    for number in range(count):
        job = f"job-{number % (count // 4)}"
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": job, "controller": True}
        pods[f"uid-{number}"] = pod = msgspec.convert(pod_json(f"p-{number}", memory_mib=0), Pod)
        pod.metadata.owner_references = (msgspec.convert(owner, OwnerReference),)
        pod.metadata.creation_timestamp = "1970-01-01T00:00:01Z"
    return WaitingGroups(RequestSettings()).of(pods, lambda _: None)


async def test_many_pods_that_wait_are_counted_grow_older_and_keep_the_focus() -> None:
    async with fed(node("n")) as (server, page):
        for count in (2_000, 2_004):
            at = float(count)
            groups = jobs_that_wait(count)
            await server.show(Poll(monotonic=at, at=at, waiting=groups, waiting_total=count))
            await expect(page.locator("#waiting-count")).to_have_text(
                f"{count:,} pods on no node; the first 800 are listed"
            )
            if count == 2_000:
                await page.locator("#waiting-list summary").click()
                link = page.locator("#waiting-list a", has_text="default Job/job-100")
                await link.focus()
        await expect(link).to_be_focused()
        await expect(page.locator("#waiting-list .since")).to_have_text("up to 33 min")
        await server.show(Poll(monotonic=9_001.0, at=7_201.0, waiting=groups, waiting_total=2_004))
        await expect(page.locator("#waiting-list .since")).to_have_text("up to 2 h 0 min")


async def test_a_dialog_that_opens_between_two_messages_has_the_ages_of_that_moment() -> None:
    async with fed(node("n")) as (server, page):
        await server.show(Poll(monotonic=1.0, at=59.0, waiting=jobs_that_wait(8), waiting_total=8))
        await page.locator("#waiting-list summary").click()
        await page.wait_for_timeout(3_000)
        await page.locator("#waiting-list .owner a").first.click()
        await expect(page.locator("#owner .story li").first).to_contain_text("waits for 1 min")


async def test_a_dialog_keeps_the_focus_while_its_pods_change() -> None:
    groups = jobs_that_wait(8)
    async with fed(node("n")) as (server, page):
        await server.show(Poll(monotonic=1.0, at=2.0, waiting=groups, waiting_total=8))
        await page.locator("#waiting-list summary").click()
        await page.locator("#waiting-list .owner a").first.click()
        last = page.locator("#owner .story a").last
        await last.focus()
        first, *rest = groups
        await server.show(
            Poll(
                monotonic=2.0,
                at=3.0,
                waiting=(replace(first, shown=msgspec.structs.replace(first.shown, count=9)), *rest),
                waiting_total=15,
            )
        )
        await expect(page.locator("#owner .count").first).to_have_text("9 pods on no node")
        await expect(last).to_be_focused()


async def test_a_pod_that_the_extender_does_not_answer_about_is_not_read_for_ever() -> None:
    async def silent(_namespace: str, _name: str) -> None:
        await asyncio.Event().wait()

    server = StatusServer("p", pod_of=silent)
    async with listening(server.application(), ANY_PORT, "--status-bind-address") as url, browser() as chromium:
        page = await chromium.new_page()
        await page.goto(f"{url}/#pod=ml%2Fp")
        await expect(page.locator("#pod .problem")).to_have_text("The extender does not answer.", timeout=10_000)
        await page.keyboard.press("Escape")
        await expect(page.locator("#live")).to_contain_text("has not looked at its cluster for", timeout=10_000)


async def test_a_message_that_comes_in_drops_keeps_no_page_live() -> None:
    async with told("") as (it, page):
        live = page.locator("#live")
        it.messages.put_nowait(pieces("a", node("n"))[0])
        await expect(live).to_have_text("Live")
        for drop in b"data: {}":
            it.messages.put_nowait(bytes([drop]))
            await asyncio.sleep(0.5)
        await expect(live).to_have_text("Not live: messages come too slowly. Trying again …", timeout=1)
        it.messages.put_nowait(b"\n\n")
        await expect(live).to_have_text("Live")


async def test_lists_that_leave_out_the_rest_say_so() -> None:
    pods = [running_pod(f"p{at}", "n", (at % 8,), memory_mib=100) for at in range(60)]
    found = looked(node("n"), *pods)["n"]
    names = {uid: PodName(namespace=f"ns-{uid}", name="p") for uid in found.alone.held}
    gpu = found.usage.gpus[0].device.uuid
    uses = tuple(
        ContainerUse(pod=str(name), container="main", gpu=uuid, memory=1, busy=0, unused=7300)
        for name in names.values()
        for uuid in (each.device.uuid for each in found.usage.gpus)
    )
    use = NodeUse(node="n", gpus={gpu: GpuUse(memory=1, busy=0)}, containers=uses)
    async with fed() as (server, page):
        nodes = {"n": replace(found, names=names)}
        await server.show(Poll(monotonic=1.0, at=1.8e9, nodes=nodes, uses=Uses(nodes={"n": use})))
        rest = re.compile("^60 .*; the first 50 are shown, filter to see others$")
        for place in ("#idle-count", "#teams-count"):
            await expect(page.locator(place)).to_have_text(rest)


async def test_a_machine_that_stood_still_delays_the_next_table_of_pods_by_seconds() -> None:
    stands = """const set = Element.prototype.setAttribute;
      Element.prototype.setAttribute = function (name, value) {
        if (name === "aria-sort") for (const end = Date.now() + 500; Date.now() < end; );
        set.call(this, name, value);
      };"""
    server = StatusServer("p")
    async with listening(server.application(), ANY_PORT, "--status-bind-address") as url, browser() as chromium:
        page = await chromium.new_page()
        await page.add_init_script(stands)
        await page.goto(f"{url}/")
        await expect(page.locator("#pod-head [aria-sort]")).to_have_count(7)
        held = looked(node("n"), running_pod("p", "n", (0,), memory_mib=WHOLE))
        await server.show(Poll(monotonic=1.0, at=2.0, nodes=held))
        await expect(page.locator("#pod-rows tr")).to_have_count(1, timeout=20_000)
