"""The index of tests by noun: `python -m tests.index [NOUN]`, from their names alone."""

import ast
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
_GRAMMAR = tomllib.loads((ROOT / "docs/prose/grammar.toml").read_text())
_NO_NOUNS = frozenset(" ".join(text for kind, text in _GRAMMAR.items() if kind != "verbs").split())


def names(folder: Path) -> Iterable[tuple[str, str]]:
    """Yields file and name of each test."""
    for file in sorted(folder.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield str(file.relative_to(folder.parent)), node.name


def by_noun(tests: Iterable[tuple[str, str]]) -> Mapping[str, list[tuple[str, str]]]:
    """Returns tests by each word of their names and of their file's that may be a noun, plurals with their singular."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for file, name in tests:
        words = {*name.split("_")[1:], *Path(file).stem.split("_")[1:]}
        for word in sorted({singular(word) for word in words if len(word) > 2 and word not in _NO_NOUNS}):
            found[word].append((file, name))
    return found


def singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def main(arguments: list[str]) -> int:
    index = by_noun(names(ROOT / "tests"))
    for noun in sorted({singular(each) for each in arguments} or index):
        if not arguments:
            print(f"{noun} {len(index[noun])}")
            continue
        for file, name in index.get(noun, ()):
            print(f"{file}::{name}")
    return 0 if all(singular(each) in index for each in arguments) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
