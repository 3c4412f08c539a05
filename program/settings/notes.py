"""The notes that a reader of a source yields: values for settings, problems and warnings."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from program.settings.declared import Setting
from program.settings.documents import Unreadable, read_yaml
from program.settings.kinds import UnfitValue

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
    """Returns a note for each flag that was given; `given` maps a setting's key to the text as typed."""
    for key, text in given.items():
        yield from_text(settings[key], text, f"flag {settings[key].flags[0]}")


def from_environment(settings: Settings, environment: Mapping[str, str]) -> Iterator[Note]:
    """Reads environment variables. An empty one counts as not set, because manifests often leave them empty."""
    for setting in settings.values():
        name = next((name for name in setting.environment if environment.get(name)), None)
        if name is not None:
            yield from_text(setting, environment[name], f"environment variable {name}")


def from_own_file(settings: Settings, text: str, file: str, *, by_node: bool = False) -> Iterator[Note]:
    """Reads our own YAML file: a flat mapping of setting to value. `by_node`: the Node's label chose the file."""
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
            yield from_file(settings[key], written, f"{file}: {key}")


def from_text(setting: Setting, text: str, origin: str) -> Note:
    """Returns a flag or an environment variable."""
    try:
        return Written(setting.key, setting.kind.from_text(text), origin)
    except UnfitValue as unfit:
        return Problem(_refusal(setting, text, origin, unfit), setting.key)


def from_file(setting: Setting, written: object, origin: str) -> Note:
    """Returns a value of a YAML or JSON file."""
    try:
        return Written(setting.key, setting.kind.from_file(written), origin)
    except UnfitValue as unfit:
        return Problem(_refusal(setting, written, origin, unfit), setting.key)


def _refusal(setting: Setting, written: object, origin: str, unfit: UnfitValue) -> str:
    why = f": {unfit}" if str(unfit) else f"; expected {setting.kind.expected}"
    return f"{origin} is {shown(written)}{why}"


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
