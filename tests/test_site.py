"""The documents as a site."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_it_builds_without_a_warning_and_fetches_nothing_when_it_is_read(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="what builds the site is not installed: `make docs` installs it")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = [page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.html")]
    fetched = r'<(?:script|img|iframe)[^>]* src="https?:[^"]*"|<link[^>]* rel="stylesheet"[^>]* href="https?:[^"]*"'
    assert [found for page in pages for found in re.findall(fetched, page)] == []
    assert len(pages) == len(list((ROOT / "docs").glob("*.md"))) + 2  # README.md, and the one for what is not there


def test_a_link_out_of_the_documents_becomes_a_name() -> None:
    page = runpy.run_path(str(ROOT / "docs/site.py"))["on_page_markdown"]
    assert page("the [chart](../daemonset/chart) and [install](install.md)") == (
        "the chart (`daemonset/chart`) and [install](install.md)"
    )


def test_the_readme_is_the_first_page() -> None:
    home = runpy.run_path(str(ROOT / "docs/site.py"))["home"]
    assert home('<img src="docs/a.svg"> [a](docs/a.md#b) [c](C.md) [d](https://example.com/docs/)') == (
        '<img src="a.svg"> [a](a.md#b) [c](../C.md) [d](https://example.com/docs/)'
    )


def test_a_link_that_is_all_of_its_line_shows_the_example() -> None:
    page = runpy.run_path(str(ROOT / "docs/site.py"))["on_page_markdown"]
    shown = page("## One GPU\n\n[examples/whole-gpu.yaml](../examples/whole-gpu.yaml)\n")
    text = (ROOT / "examples/whole-gpu.yaml").read_text(encoding="utf-8")
    assert shown == f'## One GPU\n\n```yaml title="examples/whole-gpu.yaml"\n{text}```\n'


def test_what_belongs_to_a_step_stays_in_its_list() -> None:
    page = runpy.run_path(str(ROOT / "docs/site.py"))["on_page_markdown"]
    assert page("1. Build\n\n   ```console\n   $ make\n   ```\n\n2. Run\n\nThen\n") == (
        "1. Build\n\n    ```console\n    $ make\n    ```\n\n2. Run\n\nThen\n"
    )


def test_a_link_that_reads_as_its_file_reads_as_the_pages_title() -> None:
    page = runpy.run_path(str(ROOT / "docs/site.py"))["on_page_markdown"]
    assert page("See [metrics.md](metrics.md#alerts).") == "See [Metrics and alerts](metrics.md#alerts)."


def test_cells_know_their_columns_and_keys_break_after_separators_only() -> None:
    content = runpy.run_path(str(ROOT / "docs/site.py"))["on_page_content"]
    table = (
        "<table><tr><th>key</th><th>a <b>meaning</b></th></tr><tr><td><code>a.b_c</code></td><td>x</td></tr></table>"
    )
    assert content(table) == (
        "<table data-rows><tr><th>key</th><th>a <b>meaning</b></th></tr>"
        '<tr><td data-label="key"><code>a.<wbr>b_<wbr>c</code></td><td data-label="a meaning">x</td></tr></table>'
    )
