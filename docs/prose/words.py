"""Texts of the programs as Markdown: docstrings, comments, messages, help texts, and the comments of YAML files.

`python docs/prose/words.py FOLDER FILE...` writes one text for each file; its lines are those of the file, so that a
finding on line 12 concerns line 12 of the program.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

FEWEST_WORDS = 4
"""Shorter strings are names and keys."""


def said(source: str) -> Iterator[tuple[int, str]]:
    """Yields line and text of each string and comment of a Python file."""
    tree = ast.parse(source)
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, ended(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = (str(part.value) if isinstance(part, ast.Constant) else "`x`" for part in node.values)
            yield node.lineno, ended("".join(parts))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            yield token.start[0], token.string.lstrip("# ")


def ended(text: str) -> str:
    """Ends a text as a sentence, because the next line may hold another text."""
    return text if text.rstrip().endswith((".", ":", "?", "!")) else f"{text}."


def commented(source: str) -> Iterator[tuple[int, str]]:
    """Yields line and text of each comment of a YAML file."""
    for number, line in enumerate(source.splitlines(), 1):
        before, mark, comment = line.partition("# ")
        if mark and not before.strip("# "):
            yield number, comment


def page(texts: Iterator[tuple[int, str]]) -> str:
    """Returns each text on the line where it begins; the words of a text that begins inside another follow it."""
    lines: dict[int, list[str]] = {}
    for first, text in texts:
        if len(text.split()) >= FEWEST_WORDS or first in lines:
            for number, line in enumerate(text.splitlines(), first):
                lines.setdefault(number, []).append(line.strip())
    return "".join(f"{' '.join(lines.get(number, []))}\n" for number in range(1, max(lines, default=0) + 1))


def main(folder: Path, files: list[Path]) -> None:
    for file in files:
        source = file.read_text()
        text = page(said(source) if file.suffix == ".py" else commented(source))
        target = folder / file.with_suffix(file.suffix + ".md")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
