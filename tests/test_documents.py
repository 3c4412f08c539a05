"""What README and docs say exists, exists; what they say to type is typed."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from deviceplugin.cli import main as device_plugin
from scheduler_ext.cli import main as scheduler
from simulation.cli import main as sim
from tests.documented_commands import NOT_RUN, RUN, Shown, fences, is_shown, samples, shown_commands, tour, typed

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
PROGRAMS_IN = ("deviceplugin", "scheduler_ext")
PROGRAMS: dict[str, click.Command] = {
    "topogpu-device-plugin": device_plugin,
    "topogpu-scheduler": scheduler,
    "topogpu-sim": sim,
}


def _ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=_ids)
def test_every_path_in_backticks_and_every_link_leads_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    paths = re.findall(
        r"`((?:program|proto|examples|kubectl_topogpu|deviceplugin|scheduler_ext|simulation|tests|docs|daemonset|benchmarks)/[\w./-]*)`",
        text,
    )
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    missing = [path for path in paths if not (ROOT / path).exists()]
    assert not missing + [link for link in links if not (document.parent / link).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=_ids)
def test_every_command_shown_has_the_sub_command_and_options_it_is_shown_with(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    shown = re.findall(rf"^ *[#$|] *`?({'|'.join(PROGRAMS)}) ([a-z][a-z-]*)([^`#\n]*)", text, re.MULTILINE)
    for program, command, arguments in shown:
        answer = CliRunner().invoke(PROGRAMS[program], [command, "--help"])
        assert answer.exit_code == 0, f"{program} {command}: {answer.output}"
        for option in re.findall(r"--[\w-]+", arguments):
            assert option in answer.output, f"{program} {command} has no {option}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=_ids)
def test_every_make_target_shown_exists(document: Path) -> None:
    targets = set(re.findall(r"(?:^ *[$] |`)make ([\w-]+)", document.read_text(encoding="utf-8"), re.MULTILINE))
    assert targets <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS, ids=_ids)
def test_no_command_hides_in_a_block_without_prompts(document: Path) -> None:
    languages = {language for language, _ in fences(document.read_text(encoding="utf-8"))}
    assert not languages & {"sh", "bash", "shell"}, "use ```console and the prompts $ and #, so that commands are run"


COMMANDS: dict[Shown, Path] = {}
"""Each once, with the first document that shows it, and with what it prints if any document shows that. The tour's go
together: tests/test_tour.py.
"""
for _document in DOCUMENTS:
    _page = _document.read_text(encoding="utf-8")
    for _shown in shown_commands(_page.replace(tour(_page), "")):
        COMMANDS.setdefault(_shown, _document)
for _shown in [shown for shown in COMMANDS if not shown.output]:
    if any(other.output and (other.prompt, other.command) == (_shown.prompt, _shown.command) for other in COMMANDS):
        del COMMANDS[_shown]


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param(shown, id=f"{_ids(document)}: {shown.command}")
        for shown, document in COMMANDS.items()
        if not shown.why_not_run
    ],
)
def test_every_command_shown_does_what_is_shown(shown: Shown, working_folder: Path, path: str) -> None:
    program = shown.command.split()[0]
    assert program in RUN, f"{program}: say in tests/documented_commands.py that it is run, or why it is not"
    if program != "eval" and shutil.which(program, path=path) is None:
        pytest.skip(f"{program} is not installed")
    answer = subprocess.run(
        ["bash", "-ec", typed(shown.command, Path(sys.prefix))],
        cwd=working_folder,
        # `make test ARGS=...` is meant for pytest, not for the commands that documents show.
        env={**os.environ, "PATH": path, "HOME": str(working_folder), "COLUMNS": "200", "MAKEFLAGS": "", "ARGS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (answer.returncode != 0) == shown.fails, answer.stdout + answer.stderr
    assert is_shown(shown.output, answer.stdout + answer.stderr), answer.stdout + answer.stderr


def test_no_reason_for_not_running_a_command_is_left_over() -> None:
    used = {shown.why_not_run for shown in COMMANDS}
    assert {why for start, why in NOT_RUN.items() if start.startswith("topogpu")} <= used


@pytest.fixture
def working_folder(tmp_path: Path) -> Path:
    """The repository as a reader has it before them, and the files that commands name."""
    for source in (*ROOT.iterdir(), *samples().iterdir()):
        if not source.name.startswith(".") and source.name != "build":
            (tmp_path / source.name).symlink_to(source)
    return tmp_path


@pytest.fixture
def path() -> str:
    """Our programs first, and the promtool that `make promtool` fetches last."""
    fetched = Path.home() / ".cache/topogpu/promtool"
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], str(fetched)])


def test_every_document_is_a_page_of_the_site() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    sections = [[entry] if isinstance(entry, str) else next(iter(entry.values())) for entry in site["nav"]]
    documents = [path.name for path in (ROOT / "docs").glob("*.md")]
    assert sorted(page for pages in sections for page in pages) == sorted(["index.md", *documents])  # the README


@pytest.mark.parametrize("package", ["deviceplugin", "scheduler_ext", "simulation"])
def test_each_program_runs_as_a_module(package: str) -> None:
    command = [sys.executable, "-m", package, "--version"]
    answer = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert answer.returncode == 0, answer.stderr
    assert re.fullmatch(r"topogpu-[\w-]+, version \d+\.\d+\.\d+\n", answer.stdout)


def said(room: str) -> set[str]:
    """Every text in the room's code that is no docstring; of one with values in it the pieces between them."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / room).rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    constants = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings]
    return {node.value for node in constants if isinstance(node.value, str)}


def test_what_troubleshooting_quotes_is_what_the_programs_say() -> None:
    """Titles of doctor's findings, and the words in tables whose first column quotes an event."""
    text = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| (?:the sentence has|it says|code) \|.*\n(?:\|.*\n)+", text, re.MULTILINE)
    rows = [row for table in tables for row in table.splitlines()[2:] if "kubelet's own words" not in row]
    quoted = [phrase for row in rows for phrase in re.findall(r"`([^`]+)`", row.split("|")[1])]
    words = [phrase for phrase in quoted if re.fullmatch(r"[A-Z]\w+", phrase)]
    parts = [phrase for phrase in quoted if phrase not in words]
    titles = re.findall(r"^\| \*\*([^*]+)\*\*", text, re.MULTILINE)
    texts = set[str]().union(*map(said, PROGRAMS_IN))
    assert {*titles} - said("deviceplugin") == set()
    assert {*words} - texts == set()
    assert [part for part in parts if not any(part in each for each in texts)] == []
    assert min(len(words), len(parts), len(titles)) > 10
