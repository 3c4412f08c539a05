"""All sources to the configuration that counts, and back to a file."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Any

import yaml

from deviceplugin.configuration.hami import from_device_config, from_node_config
from deviceplugin.configuration.named import from_named_file
from deviceplugin.configuration.notes import Note, Problem, Warned, Written, from_environment, from_flags, from_own_file
from deviceplugin.configuration.table import SETTINGS, Configuration
from deviceplugin.container.edits import DeviceListStrategy
from program.address import ListenAddress

_COMMENT_COLUMN = 47


class ConfigurationError(Exception):
    """The daemon cannot run with what was written; one sentence for each problem."""

    def __init__(self, problems: Iterable[str]) -> None:
        super().__init__("\n".join(problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """All that was written, read from where it stands."""

    flags: Mapping[str, str]
    """By key of the setting."""
    environment: Mapping[str, str]
    own: File | None = None
    named: File | None = None
    """The one that was chosen for this node."""
    device_config: File | None = None
    """HAMi's device-config.yaml."""
    node_config: File | None = None
    """HAMi's config.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    configuration: Configuration
    origins: Mapping[str, str]
    """Of every setting by key: who has the last word on it."""
    warnings: tuple[str, ...]


def resolve(sources: Sources) -> Effective:
    """Flags before environment, config.json, device-config.yaml, the named file, our own and defaults.

    Raises ConfigurationError.

    A wrong value is an error even where another source overrides it.
    """
    own = tuple(from_own_file(sources.own.text, sources.own.name)) if sources.own else ()
    if sources.named:
        own = (*own, *from_named_file(sources.named.text, sources.named.name))
    above = (*from_environment(sources.environment), *from_flags(sources.flags))
    between: list[Note] = []
    if sources.device_config:
        between += from_device_config(sources.device_config.text, sources.device_config.name)
    if sources.node_config:
        name = str(_last(chain(own, above)).get("node_name", ""))
        between += from_node_config(sources.node_config.text, sources.node_config.name, name)
    return _merge((*own, *between, *above))


def _merge(notes: Iterable[Note]) -> Effective:
    """Later values win."""
    notes = tuple(notes)
    values = _last(notes)
    problems = [note for note in notes if isinstance(note, Problem)]
    if "node_name" not in values and not any(problem.key == "node_name" for problem in problems):
        problems.append(Problem("the name of this node is missing: give --node-name or NODE_NAME"))
    if problems:
        raise ConfigurationError(problem.sentence for problem in problems)
    configuration = Configuration(**values)
    if contradictions := tuple(conflicts(configuration)):
        raise ConfigurationError(contradictions)
    origins = {note.key: note.origin for note in notes if isinstance(note, Written)}
    return Effective(
        configuration=configuration,
        origins={key: origins.get(key, "default") for key in SETTINGS},
        warnings=tuple(note.sentence for note in notes if isinstance(note, Warned)),
    )


def conflicts(configuration: Configuration) -> Iterator[str]:
    """What cannot be together, one sentence each."""
    strategies = configuration.device_list_strategy
    if DeviceListStrategy.DRIVER_FILES not in strategies:
        return
    if len(strategies) > 1:
        yield f"device_list_strategy is {', '.join(strategies)}; driver-files goes with no other"
    if not configuration.driver_root:
        yield "device_list_strategy is driver-files, which needs driver_root: where the host has the NVIDIA driver"
    for key in ("gdrcopy_enabled", "gds_enabled", "mofed_enabled"):
        if getattr(configuration, key):
            yield f"{key} is true, which needs NVIDIA's container toolkit; device_list_strategy is driver-files"


def _last(notes: Iterable[Note]) -> dict[str, Any]:
    return {note.key: note.value for note in notes if isinstance(note, Written)}


def as_yaml(effective: Effective) -> str:
    """A file that `--config` reads as the same configuration, each line with its origin."""
    lines = []
    for key in SETTINGS:
        in_list = yaml.safe_dump([_plain(getattr(effective.configuration, key))], default_flow_style=True, width=10**6)
        line = f"{key}: {in_list.strip()[1:-1]}"
        origin = " ".join(effective.origins[key].split())
        lines.append(f"{line:<{_COMMENT_COLUMN}} # {origin}\n")
    return "".join(lines)


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if value is None:
        return ""
    return str(value) if isinstance(value, StrEnum | ListenAddress) else value
