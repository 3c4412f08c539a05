"""The notes that a reader of a source yields: values for settings, problems and warnings."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from program.settings.declared import Alias, Items, Setting, alias_flags
from program.settings.documents import Unreadable, read_yaml
from program.settings.kinds import Kind, UnfitValue

_LONGEST_SHOWN = 80

Settings = Mapping[str, Setting]
"""Declared settings by key."""


@dataclass(frozen=True, slots=True)
class Written:
    """A value that a source sets."""

    key: str
    value: object
    origin: str
    """The source, as messages name it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem with which the program does not start."""

    sentence: str
    key: str = ""
    """The setting that has the problem, if it concerns one."""


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning with which the program starts."""

    sentence: str


Note = Written | Problem | Warned


def from_flags(settings: Settings, given: Mapping[str, str]) -> Iterator[Note]:
    """Yields a note for each flag that was given. `given` maps a setting's key, or an alias' parameter, to the text as
    typed.
    """
    aliases = alias_flags(settings.values())
    # Aliases last: an item changes the list that another flag writes, wherever that stands.
    for key, text in sorted(given.items(), key=lambda each: each[0] in aliases):
        if key in settings:
            yield from from_text(settings[key], text, f"flag {settings[key].flags[0]}")
        else:
            setting, alias = aliases[key]
            yield from from_text(setting, text, f"flag {alias.flags[0]}", alias)


def from_environment(settings: Settings, environment: Mapping[str, str]) -> Iterator[Note]:
    """Reads environment variables. An empty one counts as not set, because manifests often leave them empty."""
    for setting in settings.values():
        name = next((name for name in setting.environment if environment.get(name)), None)
        if name is not None:
            yield from from_text(setting, environment[name], f"environment variable {name}")
        for alias in setting.aliases:
            if text := environment.get(alias.environment):
                yield from from_text(setting, text, f"environment variable {alias.environment}", alias)


def from_own_file(settings: Settings, text: str, file: str, *, by_node: bool = False) -> Iterator[Note]:
    """Reads our own YAML file: a flat mapping of setting to value. `by_node`: a label chose the file."""
    try:
        tree = read_yaml(text, file)
    except Unreadable as error:
        yield Problem(str(error))
        return
    for key, written in tree.items():
        if key == "nvidia":
            yield Problem(f"{file} is HAMi's device-config.yaml: give it as --device-config-file")
        elif key not in settings:
            yield Problem(f"{file}: {key} is not a setting{did_you_mean(key, settings)}")
        elif by_node and not settings[key].by_node:
            yield Problem(f"{file}: {key} cannot be set here: it is needed before a configuration is chosen")
        else:
            yield from from_file(settings[key], written, f"{file}: {key}")


def from_text(setting: Setting, text: str, origin: str, alias: Alias | None = None) -> Iterator[Note]:
    """Yields what a flag or an environment variable sets."""
    return _read(setting, alias, text, origin, lambda kind: kind.from_text(text))


def from_file(setting: Setting, written: object, origin: str, alias: Alias | None = None) -> Iterator[Note]:
    """Yields what a value of a YAML or JSON file sets."""
    return _read(setting, alias, written, origin, lambda kind: kind.from_file(written))


def _read(
    setting: Setting, alias: Alias | None, written: object, origin: str, read: Callable[[Kind], object]
) -> Iterator[Note]:
    kind = setting.kind if alias is None else alias.kind
    try:
        value = read(kind)
    except UnfitValue as unfit:
        why = f": {unfit}" if str(unfit) else f"; expected {kind.expected}"
        yield Problem(f"{origin} is {shown(written)}{why}", setting.key)
        return
    if alias is None:
        yield Written(setting.key, value, origin)
    elif (meant := alias.means(value)) is not None:
        yield Written(setting.key, meant, origin)


def merged(notes: Iterable[Note]) -> Mapping[str, Written]:
    """Returns the value of each setting that is written; later ones count. Items change the list that was before."""
    values: dict[str, Written] = {}
    for note in notes:
        if isinstance(note, Written):
            values[note.key] = note if not isinstance(note.value, Items) else _with_items(note, values.get(note.key))
    return values


def _with_items(note: Written, before: Written | None) -> Written:
    change: Any = note.value
    had: Any = before.value if before is not None else ()
    kept = tuple(each for each in had if each not in change.items)
    origin = note.origin if before is None else f"{before.origin}, {note.origin}"
    return Written(note.key, (*kept, *change.items) if change.stay else kept, origin)


def shown(written: object) -> str:
    """Returns the value as messages quote it."""
    if written is None or written == "":
        return "empty"
    try:
        text = repr(written)
    except (RecursionError, ValueError):  # nested too deep, or a number of more digits than Python writes
        return "too large to show"
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."


def did_you_mean(key: str, known: Collection[str]) -> str:
    """Returns `; did you mean ...?`, or nothing when no known name is close. Case and hyphens count little."""
    plain = {name.lower().replace("_", ""): name for name in known}
    near = get_close_matches(key.lower().replace("-", "").replace("_", ""), plain, n=1, cutoff=0.6)
    return f"; did you mean {plain[near[0]]}?" if near else ""
