"""Merges all sources into the effective configuration, and writes it back as a file."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Generic

import yaml

from program.settings.declared import C, Table
from program.settings.hami import from_device_config, from_node_config
from program.settings.notes import (
    Note,
    Problem,
    Warned,
    from_environment,
    from_flags,
    from_own_file,
    merged,
)

_COMMENT_COLUMN = 47


class ConfigurationError(Exception):
    """The program cannot run with these settings; the error has one sentence for each problem."""

    def __init__(self, problems: Iterable[str]) -> None:
        super().__init__("\n".join(problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingSources:
    """All values of all sources, as read."""

    flags: Mapping[str, str]
    """The text of each flag that was given, by key of its setting."""
    environment: Mapping[str, str]
    ignored: tuple[str, ...] = ()
    """Flags without effect that were given."""
    own: File | None = None
    named: File | None = None
    """The named configuration that was chosen for this node."""
    device_config: File | None = None
    """HAMi's device-config.yaml."""
    node_config: File | None = None
    """HAMi's config.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective(Generic[C]):
    configuration: C
    origins: Mapping[str, str]
    """The source of each setting's effective value, by key."""
    warnings: tuple[str, ...]


DEFAULT = "default"


def resolve(table: Table[C], sources: SettingSources) -> Effective[C]:
    """Merges the sources. In order of precedence: flags, environment, config.json, device-config.yaml, the named file,
    our own file, defaults.

    A wrong value is an error even where another source overrides it. Raises ConfigurationError with all of them.
    """
    settings = table.settings
    notes: list[Note] = []
    if sources.own:
        notes += from_own_file(settings, sources.own.text, sources.own.name)
    if sources.named:
        notes += from_own_file(settings, sources.named.text, sources.named.name, by_node=True)
    if sources.device_config:
        notes += from_device_config(settings, sources.device_config.text, sources.device_config.name)
    above = (*from_environment(settings, sources.environment), *from_flags(settings, sources.flags))
    if sources.node_config:
        named = merged(chain(notes, above)).get("node_name")
        name = str(named.value) if named is not None else ""
        notes += from_node_config(settings, sources.node_config.text, sources.node_config.name, name)
    ignored = (Warned(f"--{name} changes nothing: {table.without_effect[name]}") for name in sources.ignored)
    return _merge(table, (*notes, *above, *ignored))


def _merge(table: Table[C], notes: tuple[Note, ...]) -> Effective[C]:
    """Merges values; later ones win."""
    values = merged(notes)
    problems = [note for note in notes if isinstance(note, Problem)]
    if missing := tuple(_missing(table, values.keys() | {problem.key for problem in problems})):
        problems += missing
    if problems:
        raise ConfigurationError(problem.sentence for problem in problems)
    configuration = table.filled(**{key: each.value for key, each in values.items()})
    if contradictions := tuple(table.conflicts(configuration)):
        raise ConfigurationError(contradictions)
    return Effective(
        configuration=configuration,
        origins={key: values[key].origin if key in values else DEFAULT for key in table.settings},
        warnings=tuple(note.sentence for note in notes if isinstance(note, Warned)),
    )


def _missing(table: Table[C], written: Iterable[str]) -> Iterator[Problem]:
    for key in table.settings.keys() - written:
        if (setting := table.settings[key]).needed_as:
            names = " or ".join((*setting.flags, *setting.environment))
            yield Problem(f"{setting.needed_as} is missing: give {names}", key)


def as_yaml(table: Table[C], effective: Effective[C]) -> str:
    """Returns a file that `--config` reads as the same configuration, each line with its source."""
    lines = []
    for key, setting in table.settings.items():
        plain = setting.kind.to_file(table.value(effective.configuration, key))
        in_list = yaml.safe_dump([plain], default_flow_style=True, width=10**6)
        line = f"{key}: {in_list.strip()[1:-1]}"
        origin = " ".join(effective.origins[key].split())
        lines.append(f"{line:<{_COMMENT_COLUMN}} # {origin}\n")
    return "".join(lines)
