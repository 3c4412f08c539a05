"""The recipes of CONTRIBUTING.md, each performed in a copy of the repository."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
_STEP = re.compile(
    r"^(?:Create \*\*(?P<new>[^*]+)\*\*|"
    r"In `(?P<file>[^`]+)`, (?P<how>after|before|in place of) `(?P<anchor>[^\n]+)`):\n\n"
    r"```\w*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_CHECK = re.compile(r"^Check: `(?P<command>.+?)` prints `(?P<printed>[^`]+)`\.", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Recipe:
    title: str
    text: str


def recipes() -> Iterator[Recipe]:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("\n## Recipes\n")[2].partition("\n## ")[0]
    for part in section.split("\n### ")[1:]:
        title, _, body = part.partition("\n")
        yield Recipe(title, body)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Folders are real and files are links: a step replaces the link by a file."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    for name in listed or [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]:
        if (ROOT / name).exists():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def write(file: Path, text: str) -> None:
    file.unlink(missing_ok=True)
    file.write_text(text, encoding="utf-8")


def perform(step: re.Match[str], copy: Path) -> None:
    if step["new"]:
        write(copy / step["new"], step["text"])
        return
    file = copy / step["file"]
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    [place] = [number for number, line in enumerate(lines) if line.startswith(step["anchor"])]
    begin, end = {"after": (place + 1, place + 1), "before": (place, place), "in place of": (place, place + 1)}[
        step["how"]
    ]
    write(file, "".join([*lines[:begin], step["text"], *lines[end:]]))


@pytest.mark.parametrize("recipe", list(recipes()), ids=lambda recipe: recipe.title)
def test_a_recipe_does_what_it_promises(recipe: Recipe, copy: Path) -> None:
    check = _CHECK.search(recipe.text)
    assert check is not None
    python, *arguments = shlex.split(check["command"])
    assert python == "python"
    for step in _STEP.finditer(recipe.text):
        perform(step, copy)
    done = subprocess.run([sys.executable, *arguments], cwd=copy, capture_output=True, text=True, check=False)
    assert check["printed"] in done.stdout, done.stdout + done.stderr


def test_every_step_of_a_recipe_is_performed() -> None:
    for recipe in recipes():
        assert recipe.text.count("\n```") == 2 * len(_STEP.findall(recipe.text)), recipe.title


def test_there_is_a_recipe_for_each_common_change() -> None:
    assert [recipe.title for recipe in recipes()] == [
        "A machine",
        "A policy",
        "A setting",
        "An annotation",
        "A metric",
    ]
