"""Checks that docstrings, comments and texts for people are sentences: `python docs/prose/sentences.py FOLDER...`.

The first sentence of a function's docstring has a verb: "Returns …", or a subject and its verb. A class, a module or an
attribute may have a definition in its place: a noun phrase, of which the name above is the subject. Nowhere a clause
without a noun ("What a pod holds."), and no verb of speech for what a program does. The rules rather miss a fault than
find one where none is; their words are in `grammar.toml`.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Set
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

_GRAMMAR = tomllib.loads((Path(__file__).parent / "grammar.toml").read_text())
_FINITE, _MARKERS, _DETERMINERS, _OPENERS, _PLURAL_SUBJECTS, _VERBS, _SPEECH, _ASKING = (
    frozenset(_GRAMMAR[kind].split())
    for kind in ("finite", "markers", "determiners", "openers", "plural_subjects", "verbs", "speech", "asking")
)
_NOUNLESS = re.compile(r"\b(those|that) of (which|whom|what|the others?|each other|another)\b", re.IGNORECASE)
_CODE = re.compile(r"``.*?``|`[^`]*`|<[^>]*>|\"[^\"]*\"|\([^()]*\)|https?://\S+|%\S*[sdrf]\b|\{[^}]*\}")
_LOGGED = frozenset(["debug", "info", "warning", "error", "exception", "critical"])


@dataclass(frozen=True, order=True)
class Fault:
    path: str
    line: int
    problem: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.problem}: {self.text}"


def third_person(verb: str) -> str:
    """Returns the verb as it follows a singular subject."""
    if re.search(r"[^aeiou]y$", verb):
        return f"{verb[:-1]}ies"
    return f"{verb}es" if re.search(r"(s|x|z|ch|sh|o)$", verb) else f"{verb}s"


_THIRD_PERSONS = frozenset(map(third_person, _VERBS))
_BEFORE_NOUNS = _DETERMINERS - _MARKERS
_PREPOSITIONS = frozenset(["after", "as", "before", "since", "than", "till", "until"])
"""Markers that also stand before a noun alone."""


def first_sentence(text: str) -> str:
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`\"])", paragraph, maxsplit=1)[0]


def main_clause(sentence: str) -> str:
    """Returns what stands before a colon or a semicolon, which must be a sentence of its own."""
    return re.split(r"[:;](?=\s|$)", _CODE.sub(" code ", sentence), maxsplit=1)[0]


def words_of(sentence: str) -> list[str]:
    """Returns words in lower case, and commas; code is one noun."""
    return re.findall(r"[a-z][a-z'-]*|,", _CODE.sub(" code ", sentence).replace("’", "'").lower())


def has_main_verb(sentence: str, *, imperative: bool = False) -> bool:
    """Returns whether a finite verb is left over when each subordinate clause has taken one.

    An `imperative` text may begin with its verb. In it, what could be a verb after an article is a noun.
    """
    words = words_of(main_clause(sentence))
    if words and (words[0] in _THIRD_PERSONS or (imperative and words[0] in _VERBS)):
        return True
    clauses, marker = 0, ""
    for before, word in pairwise([",", *words]):
        if word == ",":
            clauses = 0
        elif word in _MARKERS:
            clauses, marker = clauses + 1, word
        elif is_finite(word, before):
            if not clauses:
                return True
            clauses -= 1
        elif (
            clauses
            and (word.endswith("ed") or word in _VERBS)
            and (before not in _BEFORE_NOUNS or marker in _PREPOSITIONS)
        ):
            clauses -= 1
    return False


def is_finite(word: str, before: str) -> bool:
    """Returns whether the word is a verb with a subject, which is seen from the word before it."""
    if word in _THIRD_PERSONS:
        return before not in _DETERMINERS
    plural = before in _PLURAL_SUBJECTS or (
        before.endswith("s") and not before.endswith("'s") and before not in _THIRD_PERSONS | _FINITE | _BEFORE_NOUNS
    )
    return word in _FINITE or (word in _VERBS and plural)


def is_definition(sentence: str) -> bool:
    """Returns whether a noun phrase begins the text, as far as its first word shows."""
    words = words_of(sentence)
    return bool(words) and words[0] not in _OPENERS


def documented(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    """Yields kind, line and text of each docstring, those below attributes included."""
    kinds = {ast.Module: "module", ast.ClassDef: "class", ast.FunctionDef: "function", ast.AsyncFunctionDef: "function"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for place, statement in enumerate(node.body):
                match statement:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        yield (kinds[type(node)] if place == 0 else "attribute"), statement.lineno, text


def logged(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=name), args=[ast.Constant(value=str(text)), *_]) if name in _LOGGED:
                yield node.lineno, text


def commented(source: str) -> Iterator[tuple[int, str]]:
    """Yields line and text of each comment that has lines of its own; what follows code explains a value."""
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip():
            if block and token.start[0] == last + 1:
                block.append(token.string.lstrip("# "))
            else:
                if block:
                    yield first, " ".join(block)
                block, first = [token.string.lstrip("#! ")], token.start[0]
            last = token.start[0]
    if block:
        yield first, " ".join(block)


def read_by_people(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields line and text of strings of several words: errors, events, help. Log lines have a rule of their own."""
    others = {text for _, _, text in documented(tree)} | {text for _, text in logged(tree)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if text not in others and text.strip().count(" ") > 1:
                yield node.lineno, text


def speech(text: str, verbs: Set[str] = _SPEECH | _ASKING) -> str:
    """Returns the first verb of speech, or nothing."""
    return next((word for word in words_of(text) if word in verbs), "")


def faults(path: str, source: str) -> Iterator[Fault]:
    tree = ast.parse(source)
    for kind, line, text in documented(tree):
        sentence = first_sentence(text)
        whole = has_main_verb(sentence, imperative=kind == "function")
        if kind == "function" and not whole:
            yield Fault(path, line, "no verb", sentence)
        elif not whole and not is_definition(sentence):
            yield Fault(path, line, "neither a verb nor a noun that begins it", sentence)
        yield from _common(path, line, text)
    for line, text in commented(source):
        sentence = first_sentence(text)
        if len(words_of(sentence)) > 2 and not has_main_verb(sentence, imperative=True) and not is_definition(sentence):
            yield Fault(path, line, "a fragment", sentence)
        yield from _common(path, line, text)
    for line, text in logged(tree):
        yield from _common(path, line, text)
    for line, text in read_by_people(tree):
        if verb := speech(text, _SPEECH):
            yield Fault(path, line, f"a verb of speech ({verb})", " ".join(text.split()))


def _common(path: str, line: int, text: str) -> Iterator[Fault]:
    for number, part in enumerate(text.splitlines()):
        if verb := speech(part):
            yield Fault(path, line + number, f"a verb of speech ({verb})", part.strip())
    if _NOUNLESS.search(text):
        yield Fault(path, line, "a clause in place of a noun", first_sentence(text))


def main(folders: list[str]) -> int:
    files = [file for folder in folders for file in sorted(Path(folder).rglob("*.py")) if "_pb2" not in file.name]
    found = sorted(fault for file in files for fault in faults(str(file), file.read_text()))
    for fault in found:
        print(fault)
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
