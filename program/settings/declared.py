"""Declarations of the settings of a program: fields of one frozen dataclass, with all their properties.

A part of the program has a frozen dataclass of its own settings. The program's dataclass has it as a field, with the
declarations of those fields that users may set: the part gets what was read, without a copy.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, Generic, TypeVar

from program.settings.kinds import Kind

C = TypeVar("C")

_DECLARED = "setting"


@dataclass(frozen=True, slots=True)
class Items:
    """Items that a list gets or loses; its others stay."""

    items: tuple[object, ...]
    stay: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """Another program's name for a setting, or for one item of its list."""

    kind: Kind
    means: Callable[[Any], object]
    """Returns the setting's value, or Items of its list; None where the alias changes nothing."""
    environment: str = ""
    flags: tuple[str, ...] = ()
    device_config: str = ""
    node_config: str = ""
    """Places as those of a setting; empty if none."""

    @property
    def parameter(self) -> str:
        """Returns the name by which a command gets the flag's text."""
        return self.flags[-1].lstrip("-").replace("-", "_")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(filter(None, (*self.flags, self.environment)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The declaration of one setting. `{key}`, `{flag}` and `{variable}` in a name are replaced by spellings of the
    key.
    """

    key: str = ""
    """The name in our own file, and the name of the field."""
    kind: Kind
    default: object = None
    help: str
    group: str = ""
    """Heading under which `--help` and the manual list it."""
    unit: str = ""
    environment: tuple[str, ...] = ("{variable}",)
    """Environment variables; the first that is set counts."""
    flags: tuple[str, ...] = ("--{flag}",)
    device_config: str = ""
    """Place in HAMi's device-config.yaml, dotted; empty if none."""
    node_config: str = ""
    """Place in a node's entry of HAMi's config.json, dotted and in lower case; empty if none."""
    chart: str = ""
    """Place in the chart's values, dotted; its schema comes from this setting's kind. Empty if none."""
    by_node: bool = True
    """Whether it may differ in a configuration that a node's label names."""
    aliases: tuple[Alias, ...] = ()
    needed_as: str = ""
    """The name of this setting in the error when it is missing; empty for an optional one."""

    @property
    def default_text(self) -> str:
        """Returns the default as a user would type it; empty if there is none."""
        return f"{typed(self.kind.to_file(self.default))} {self.unit}".strip()


def typed(written: object) -> str:
    """Returns a value as a file spells it."""
    if isinstance(written, list):
        return ",".join(map(typed, written))
    if isinstance(written, bool):
        return str(written).lower()
    return f"{written:g}" if isinstance(written, float) else str(written)


def setting(default: object, kind: Kind, help: str, **declared: Any) -> Any:  # noqa: A002 - the word users know
    """Declares a field of a table; `declared` are attributes of Setting."""
    return field(default=default, metadata={_DECLARED: Setting(kind=kind, default=default, help=help, **declared)})


Declared = Setting | Mapping[str, "Declared"]
"""A setting, or those of a part by the names of its fields."""


def part(of: Callable[[], object], **declared: Declared) -> Any:
    """Declares a field of a table whose value is the settings of a part. `declared` are those of its fields that users
    may set, or that are parts of their own; their defaults are those of the value that `of` makes.
    """
    return field(default_factory=of, metadata={_DECLARED: declared})


_Path = tuple[str, ...]
"""The fields that lead from a table's dataclass to a setting's value."""


@dataclass(frozen=True)
class Table(Generic[C]):
    """Every setting of one program."""

    configuration: type[C]
    conflicts: Callable[[C], Iterable[str]]
    """Returns one sentence for each contradiction between settings."""
    without_effect: Mapping[str, str] = field(default_factory=dict)
    """HAMi's flags that have no effect here, without leading hyphens, and what to use instead."""
    completed: Callable[[C], C] = lambda configuration: configuration
    """Returns the configuration with what a part has of another's settings."""

    @cached_property
    def settings(self) -> Mapping[str, Setting]:
        """Returns the settings by key, in the order of the dataclass."""
        return {setting.key: setting for _, setting in self._declared}

    @cached_property
    def aliases(self) -> Mapping[str, tuple[Setting, Alias]]:
        """Returns the aliases that have flags, by parameter, each with its setting."""
        return alias_flags(self.settings.values())

    @cached_property
    def _declared(self) -> tuple[tuple[_Path, Setting], ...]:
        return tuple(_declared(self.configuration))

    def value(self, configuration: C, key: str) -> Any:
        """Returns the value of one setting."""
        return attrgetter(".".join(self._paths[key]))(configuration)

    def part_of(self, key: str) -> str:
        """Returns the field of the table whose value has the setting."""
        return self._paths[key][0]

    @cached_property
    def _paths(self) -> Mapping[str, _Path]:
        return {setting.key: path for path, setting in self._declared}

    def filled(self, **values: object) -> C:
        """Returns the configuration with these values by key, and defaults for the rest. Raises KeyError for a key that
        is not a setting.
        """
        if unknown := values.keys() - self._paths.keys():
            raise KeyError(*sorted(unknown))
        return self.completed(_changed(self.configuration(), {self._paths[key]: each for key, each in values.items()}))


def item(word: str, kind: Kind, **places: Any) -> Alias:
    """Returns another program's switch for one item of a list. `places` are attributes of Alias."""
    return Alias(kind=kind, means=lambda on: Items((word,), stay=bool(on)), **places)


def _changed(value: Any, changes: Mapping[_Path, object]) -> Any:
    """Returns the dataclass with other values at these paths."""
    inner: dict[str, dict[_Path, object]] = {}
    for (name, *rest), new in changes.items():
        if rest:
            inner.setdefault(name, {})[tuple(rest)] = new
    own = {name: new for (name, *rest), new in changes.items() if not rest}
    return replace(value, **own, **{name: _changed(getattr(value, name), inner[name]) for name in inner})


def alias_flags(settings: Iterable[Setting]) -> Mapping[str, tuple[Setting, Alias]]:
    """Returns the aliases that have flags, by parameter, each with its setting."""
    return {alias.parameter: (each, alias) for each in settings for alias in each.aliases if alias.flags}


def _declared(configuration: Callable[[], Any]) -> Iterator[tuple[_Path, Setting]]:
    defaults = configuration()
    for one in fields(defaults):
        yield from _settings((one.name,), one.metadata[_DECLARED], getattr(defaults, one.name))


def _settings(path: _Path, declared: Declared, default: Any) -> Iterator[tuple[_Path, Setting]]:
    if isinstance(declared, Setting):
        yield path, _named(declared.key or path[-1], replace(declared, default=default))
        return
    for name, inner in declared.items():
        yield from _settings((*path, name), inner, getattr(default, name))


def _named(key: str, declared: Setting) -> Setting:
    spelled = {"key": key, "flag": key.replace("_", "-"), "variable": key.upper()}
    return replace(
        declared,
        key=key,
        environment=tuple(name.format(**spelled) for name in declared.environment),
        flags=tuple(name.format(**spelled) for name in declared.flags),
        chart=declared.chart.format(**spelled),
    )
