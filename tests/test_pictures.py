"""The pictures show what the programs print now. `make pictures` makes them."""

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
DRAW = runpy.run_path(str(FOLDER / "draw.py"))


@pytest.mark.parametrize("name", DRAW["TERMINALS"])
def test_a_terminal_shows_what_the_program_prints(name: str) -> None:
    drawn = DRAW["terminal"](DRAW["TERMINALS"][name])
    there = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert DRAW["words"](there) == DRAW["words"](drawn), "run `make pictures`"
    assert "url(http" not in there, "it fetches something where it is shown"


def test_the_interactive_terminal_shows_what_the_program_shows() -> None:
    there = (FOLDER / "top-i.svg").read_text(encoding="utf-8")
    assert DRAW["words"](there) == DRAW["words"](DRAW["interactive"]()), "run `make pictures`"
    assert "url(http" not in there, "it fetches something where it is shown"


@pytest.mark.parametrize("paper", ["light", "dark"])
def test_the_architecture_is_drawn_for_this_paper(paper: str) -> None:
    drawn = DRAW["architecture"](DRAW[f"{paper.upper()}_PAPER"])
    assert (FOLDER / f"architecture-{paper}.svg").read_text(encoding="utf-8") == drawn
