"""What README and docs say exists, exists."""

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from deviceplugin.cli import main as device_plugin
from scheduler_ext.cli import main as scheduler
from simulation.cli import main as sim

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")])
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
    paths = re.findall(r"`((?:proto|deviceplugin|scheduler_ext|simulation|tests|docs)/[\w./-]*)`", text)
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    missing = [path for path in paths if not (ROOT / path).exists()]
    assert not missing + [link for link in links if not (document.parent / link).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=_ids)
def test_every_command_shown_has_the_sub_command_and_options_it_is_shown_with(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    shown = re.findall(rf"^[#$|] *`?({'|'.join(PROGRAMS)}) ([a-z][a-z-]*)([^`#\n]*)", text, re.MULTILINE)
    for program, command, arguments in shown:
        answer = CliRunner().invoke(PROGRAMS[program], [command, "--help"])
        assert answer.exit_code == 0, f"{program} {command}: {answer.output}"
        for option in re.findall(r"--[\w-]+", arguments):
            assert option in answer.output, f"{program} {command} has no {option}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=_ids)
def test_every_make_target_shown_exists(document: Path) -> None:
    targets = set(re.findall(r"^[$] make (\w+)", document.read_text(encoding="utf-8"), re.MULTILINE))
    assert targets <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("package", ["deviceplugin", "scheduler_ext", "simulation"])
def test_each_program_runs_as_a_module(package: str) -> None:
    command = [sys.executable, "-m", package, "--version"]
    answer = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert answer.returncode == 0, answer.stderr
    assert re.fullmatch(r"topogpu-[\w-]+, version \d+\.\d+\.\d+\n", answer.stdout)
