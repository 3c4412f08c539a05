"""Lines of a pasted terminal output without its dressing. Columns stay where they were: dressing becomes blanks."""

import re
from dataclasses import dataclass, replace

_ESCAPE = re.compile(r"(?:\x1b|\ufffd|\^\[)\[[0-9;]*[A-Za-z]|\[\d+(?:;\d+)*m")
_QUOTE = re.compile(r"^(?:\s*>)+")
_TABLE_ROW = re.compile(r"^\s*\|.*\|\s*$")
_TABLE_RULE = re.compile(r"^[\s|:-]+$")
_MARKS = re.compile(r"[`|]")
_JSON_STRING = re.compile(r'^(\s*)"(.*)"(,?)\s*$')


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    """The number of the line, from 1, in the text as given."""
    text: str


def clean_lines(text: str) -> tuple[Line, ...]:
    """Removes escape codes (also those whose ESC byte was replaced or lost), e-mail quotes, JSON string notation, and
    fences and table borders of Markdown.
    """
    raw = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    while len(raw) > 1 and not raw[-1].strip():
        raw.pop()
    return tuple(Line(number, _clean(line)) for number, line in enumerate(raw, 1))


def without_prefix(line: Line, words: int) -> Line:
    """Returns the line with its first words, such as a log's level and time, made blank."""
    found = re.match(rf"(?:\s*+\S++){{{words}}}", line.text) if words else None
    return line if found is None else replace(line, text=" " * found.end() + line.text[found.end() :])


def _clean(line: str) -> str:
    line = _blank(_ESCAPE, line.rstrip("\r"))
    quoted = _JSON_STRING.match(line)
    if quoted is not None:
        inner = re.sub(r"\\n$", "", quoted[2])
        line = f"{quoted[1]} {inner}".replace("\\t", " \t")
    line = _blank(_QUOTE, line)
    if _TABLE_ROW.match(line):
        return "" if _TABLE_RULE.match(line) else _blank(_MARKS, line)
    return line.replace("`", " ")


def _blank(pattern: re.Pattern[str], line: str) -> str:
    return pattern.sub(lambda found: " " * len(found[0]), line)
