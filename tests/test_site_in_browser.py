"""The site as people read it: in a browser, from files, on a phone. `make test-page` alone runs these tests."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or ""
pytestmark = pytest.mark.browser
ROOT = Path(__file__).parent.parent
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 900}
LONGEST_MILLISECONDS = 60_000

CUT = """() => {
  const edge = document.documentElement.clientWidth + 1, cut = [];
  if (document.documentElement.scrollWidth > edge) cut.push("the page");
  for (const each of document.querySelectorAll(".md-content table, .md-content img"))
    if (each.getBoundingClientRect().right > edge) cut.push(each.tagName + " " + each.textContent.trim().slice(0, 40));
  return cut;
}"""
"""What reaches beyond the right edge. Blocks of code may: they scroll."""
BROKEN = """() => {
  const broken = new Set(), words = /[A-Za-z0-9]+/g;
  const texts = document.createTreeWalker(document.querySelector(".md-content"), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode;
    if (!text.parentElement.closest("td code, li code, p code")) continue;
    for (const word of text.data.matchAll(words)) {
      const range = document.createRange();
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      const lines = [...range.getClientRects()].filter(one => one.width > 0).map(one => Math.round(one.top));
      if (new Set(lines).size > 1) broken.add(word[0]);
    }
  }
  return [...broken];
}"""
"""Words of keys in code that stand on two lines."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


def opened(browser: Any, page: Path, viewport: dict[str, int], faults: list[str]) -> Any:
    """The page, from its file. What its scripts complain of is added to `faults`."""
    tab = browser.new_page(viewport=viewport)
    tab.set_default_timeout(LONGEST_MILLISECONDS)
    tab.on("pageerror", lambda error: faults.append(str(error)))
    tab.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    tab.goto(page.as_uri())
    return tab


def test_the_search_finds_pages_that_are_read_from_files(site: Path, browser: Any) -> None:
    faults: list[str] = []
    tab = opened(browser, site / "install.html", DESKTOP, faults)
    tab.locator("[data-md-component=search-query]").click()
    tab.keyboard.type("CardLimitsNotEnforced")
    tab.locator(".md-search-result__item").first.wait_for()
    assert "What holds a part" in tab.locator(".md-search-result__list").inner_text()
    assert faults == []
    tab.close()


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_no_page_is_cut_off_and_no_key_is_broken_inside_a_word(
    site: Path, browser: Any, viewport: dict[str, int]
) -> None:
    faults: list[str] = []
    found = {}
    # A web server shows the page for what is missing at any depth, so its links begin at the server's root.
    tab = opened(browser, site / "index.html", viewport, faults)
    for page in sorted(set(site.glob("*.html")) - {site / "404.html"}):
        tab.goto(page.as_uri())
        found[page.stem] = (tab.evaluate(CUT), tab.evaluate(BROKEN))
    tab.close()
    assert {name: problems for name, problems in found.items() if any(problems)} == {}
    assert faults == []


def test_steps_are_numbered(site: Path, browser: Any) -> None:
    tab = opened(browser, site / "install.html", DESKTOP, [])
    assert tab.locator("article > ol").first.locator("> li").count() == 4
    tab.close()
