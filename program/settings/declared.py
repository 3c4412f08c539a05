"""How a program declares its settings: each is a field of one frozen dataclass, with all its properties."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

from program.settings.kinds import Kind

C = TypeVar("C")

_DECLARED = "setting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The declaration of one setting. `{key}`, `{flag}` and `{variable}` in a name are replaced by spellings of the
    key.
    """

    key: str = ""
    """Its name in our own file, and the name of the field."""
    kind: Kind
    default: object
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
    repeated: bool = False
    """Whether the flag may be given several times, once for each item of a list."""
    by_node: bool = True
    """Whether it may differ in a configuration that a node's label names."""
    needed_as: str = ""
    """What an error calls this setting when it is missing; empty for an optional one."""

    @property
    def default_text(self) -> str:
        """The default as a user would type it; empty if there is none."""
        return f"{typed(self.kind.to_file(self.default))} {self.unit}".strip()


def typed(written: object) -> str:
    """A value as a file spells it."""
    if isinstance(written, list):
        return ",".join(map(typed, written))
    if isinstance(written, bool):
        return str(written).lower()
    return f"{written:g}" if isinstance(written, float) else str(written)


def setting(default: object, kind: Kind, help: str, **declared: Any) -> Any:  # noqa: A002 - the word users know
    """Declares a field of a table; `declared` are attributes of Setting."""
    return field(default=default, metadata={_DECLARED: Setting(kind=kind, default=default, help=help, **declared)})


@dataclass(frozen=True)
class Table(Generic[C]):
    """Every setting of one program."""

    configuration: type[C]
    conflicts: Callable[[C], Iterable[str]]
    """Returns one sentence for each contradiction between settings."""
    without_effect: Mapping[str, str] = field(default_factory=dict)
    """HAMi's flags that have no effect here, without leading hyphens, and what to use instead."""

    @cached_property
    def settings(self) -> Mapping[str, Setting]:
        """Returns the settings by key, in the order of the dataclass."""
        of_fields = fields(self.configuration)  # type: ignore[arg-type]
        return {one.name: _named(one.name, one.metadata[_DECLARED]) for one in of_fields}


def _named(key: str, declared: Setting) -> Setting:
    spelled = {"key": key, "flag": key.replace("_", "-"), "variable": key.upper()}
    return replace(
        declared,
        key=key,
        environment=tuple(name.format(**spelled) for name in declared.environment),
        flags=tuple(name.format(**spelled) for name in declared.flags),
        chart=declared.chart.format(**spelled),
    )
