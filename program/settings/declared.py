"""How a program declares its settings: each is a field of one frozen dataclass, with everything that is known of it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

from program.settings.kinds import Kind

C = TypeVar("C")

_DECLARED = "setting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is declared of one setting. `{key}`, `{flag}` and `{variable}` in a name stand for spellings of the key."""

    key: str = ""
    """In our own file, and the name of the field."""
    kind: Kind
    default: object
    help: str
    group: str = ""
    """Heading under which `--help` and the manual list it."""
    unit: str = ""
    environment: tuple[str, ...] = ("{variable}",)
    """The first that is set counts."""
    flags: tuple[str, ...] = ("--{flag}",)
    device_config: str = ""
    """Place in HAMi's device-config.yaml, dotted; empty if none."""
    node_config: str = ""
    """Place in a node's entry of HAMi's config.json, dotted and in lower case; empty if none."""
    chart: str = ""
    """Place in the chart's values, dotted, of which this setting's kind gives the schema; empty if none."""
    repeated: bool = False
    """Whether the flag may be given several times, each for one more of a list."""
    by_node: bool = True
    """Whether it may differ in a configuration that a node's label names."""
    needed_as: str = ""
    """What is missing without it; empty where it may be left out."""

    @property
    def default_text(self) -> str:
        """As one would type it; empty where there is none."""
        return f"{typed(self.kind.to_file(self.default))} {self.unit}".strip()


def typed(written: object) -> str:
    """A value of a file as it is typed."""
    if isinstance(written, list):
        return ",".join(map(typed, written))
    if isinstance(written, bool):
        return str(written).lower()
    return f"{written:g}" if isinstance(written, float) else str(written)


def setting(default: object, kind: Kind, help: str, **declared: Any) -> Any:  # noqa: A002 - the word users know
    """A field of a table; `declared` are attributes of Setting."""
    return field(default=default, metadata={_DECLARED: Setting(kind=kind, default=default, help=help, **declared)})


@dataclass(frozen=True)
class Table(Generic[C]):
    """Every setting of one program."""

    configuration: type[C]
    conflicts: Callable[[C], Iterable[str]]
    """What cannot be together, one sentence each."""
    without_effect: Mapping[str, str] = field(default_factory=dict)
    """Flags of HAMi's that change nothing, without hyphens before them, and what to use instead."""

    @cached_property
    def settings(self) -> Mapping[str, Setting]:
        """By key, in the order of the dataclass."""
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
