"""Turns a table into options of a command, and reads the files that the options name (edge)."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from program.settings.declared import Alias, C, Setting, Table
from program.settings.effective import ConfigurationError, Effective, File, SettingSources, as_yaml, resolve
from program.settings.kinds import Kind, Several, Switch, Words
from program.settings.notes import did_you_mean

ENDING = ".yaml"
"""A named configuration is one file in a folder. A label of the Node names the one to use."""
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""The form of a label's value."""


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def missing(name: str, folder: str, known: Collection[str]) -> str:
    """Returns the error for a name without a file."""
    there = ", ".join(sorted(known)) or "none"
    hint = did_you_mean(name, known) or "."
    return f"there is no configuration {name!r} in {folder}{hint} There are: {there}"


_LARGEST_TEXT = 16 * 1024 * 1024


def read_text(path: str) -> str:
    """Reads the file, or standard input for `-`. Raises click.ClickException if it is not text."""
    name = "standard input" if path == "-" else path
    try:
        with click.open_file(path, "rb") as stream:
            raw: bytes = stream.read(_LARGEST_TEXT + 1)
    except OSError as error:
        raise click.ClickException(f"cannot read {name}: {error.strerror or error}") from error
    if len(raw) > _LARGEST_TEXT:
        raise click.ClickException(f"{name} is larger than {_LARGEST_TEXT // 2**20} MiB, too large for a text")
    if b"\0" in raw:
        raise click.ClickException(f"{name} is not text: it holds a zero byte")
    return raw.decode("utf-8", errors="replace")


CONFIG_LABEL = "topogpu.io/device-plugin.config"

Command = TypeVar("Command", bound=Callable[..., object])

_FILES = "Files"


class GroupedOption(click.Option):
    """An option that help lists under the heading of its group."""

    def __init__(self, *names: Any, group: str = "", **declared: Any) -> None:
        super().__init__(*names, **declared)
        self.group = group


class GroupedCommand(click.Command):
    """A command that lists its options under the headings of their groups, those without a group last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                groups.setdefault(getattr(parameter, "group", ""), []).append(record)
        for group, records in sorted(groups.items(), key=lambda found: not found[0]):
            with formatter.section(group or "Options"):
                formatter.write_dl(records)


def _file_option(*names: str, metavar: str, variable: str | list[str], **declared: Any) -> Callable[[Command], Command]:
    return click.option(
        *names, cls=GroupedOption, group=_FILES, metavar=metavar, envvar=variable, show_envvar=True, **declared
    )


OWN_FILES = (
    _file_option("--config", metavar="FILE", variable="TOPOGPU_CONFIG", help="Settings as YAML."),
    _file_option(
        "--device-config-file",
        "--config-file",
        metavar="FILE",
        variable=["DEVICE_CONFIG_FILE", "CONFIG_FILE"],
        help="HAMi's device-config.yaml.",
    ),
)
"""The files that every program reads."""
NODE_FILES = (
    _file_option(
        "--configs",
        metavar="DIR",
        variable="TOPOGPU_CONFIGS",
        help="Named configurations, files NAME.yaml like that of --config. A label of the Node names the one to use.",
    ),
    _file_option(
        "--config-label",
        metavar="LABEL",
        default=CONFIG_LABEL,
        show_default=True,
        variable="TOPOGPU_CONFIG_LABEL",
        help="That label.",
    ),
    _file_option(
        "--default-config",
        metavar="NAME",
        variable="TOPOGPU_DEFAULT_CONFIG",
        help="The named configuration of a Node without the label.",
    ),
    _file_option(
        "--config-name",
        metavar="NAME",
        variable="TOPOGPU_CONFIG_NAME",
        help="Use this named configuration, whatever the Node's label names.",
    ),
    _file_option(
        "--node-config-file",
        metavar="FILE",
        variable="NODE_CONFIG_FILE",
        help="HAMi's config.json, with an entry for each node.",
    ),
)
"""The files that a program of one node reads too."""


def setting_options(
    table: Table[C], *, files: Iterable[Callable[[Any], Any]] = OWN_FILES, groups: Iterable[str] = ()
) -> Callable[[Command], Command]:
    """Adds the options for files, and a flag for every setting or only for those of `groups`.

    Values arrive as typed; `read_configuration` converts them.
    """
    wanted = tuple(groups)
    settings = [setting for setting in table.settings.values() if not wanted or setting.group in wanted]
    hidden = [_without_effect(name) for name in (() if wanted else table.without_effect)]
    aliases = [_alias(alias) for setting in settings for alias in setting.aliases if alias.flags]
    options = (*files, *(_option(setting) for setting in settings if setting.flags), *aliases, *hidden)

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _option(setting: Setting) -> Callable[[Any], Any]:
    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(word) for word in setting.kind.choices if word.startswith(incomplete)]

    return click.option(
        *setting.flags,
        setting.key,
        cls=GroupedOption,
        group=setting.group,
        metavar=_metavar(setting.kind),
        **_without_value(setting.kind),
        shell_complete=complete,
        help=_help(setting),
    )


def _alias(alias: Alias) -> Callable[[Any], Any]:
    return click.option(*alias.flags, alias.parameter, hidden=True, **_without_value(alias.kind))


def _without_value(kind: Kind) -> Mapping[str, Any]:
    """Returns what a flag without a value means, where that is allowed. Elsewhere its value may begin with a hyphen."""
    return {"is_flag": False, "flag_value": "true"} if isinstance(kind, Switch) else {}


def _without_effect(name: str) -> Callable[[Any], Any]:
    return click.option(f"--{name}", _parameter(name), is_flag=False, flag_value="true", hidden=True)


def _parameter(flag: str) -> str:
    return flag.replace("-", "_")


def _metavar(kind: Kind) -> str:
    match kind:
        case Switch():
            return "[true|false]"
        case Words():
            return f"[{'|'.join(kind.choices)}]"
        case Several():
            return "LIST"
        case _:
            return "VALUE"


def _help(setting: Setting) -> str:
    also = ", ".join(name for alias in setting.aliases for name in alias.names)
    facts = {"env var": ", ".join(setting.environment), "also": also, "default": setting.default_text}
    added = "; ".join(f"{name}: {fact}" for name, fact in facts.items() if fact)
    return f"{setting.help}  [{added}]" if added else setting.help


def read_configuration(table: Table[C], given: Mapping[str, Any]) -> Effective[C]:
    """Reads the configuration. `given` is what click parsed from `setting_options`. Raises click.UsageError with all
    problems.
    """
    try:
        return resolve(
            table,
            SettingSources(
                flags=dict(_flags(table, given)),
                ignored=tuple(
                    name for name in table.without_effect if given.get(_parameter(name)) not in (None, "", "false")
                ),
                environment=os.environ,
                own=_file(given.get("config")),
                named=_named(given.get("configs"), given.get("config_name")),
                device_config=_file(given.get("device_config_file")),
                node_config=_file(given.get("node_config_file")),
            ),
        )
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error


def _flags(table: Table[C], given: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Returns the text of each flag as typed, by key. Go's `-v=4` arrives as `=4`."""
    for key, typed in given.items():
        if (key in table.settings or key in table.aliases) and typed is not None:
            yield key, typed.removeprefix("=")


print_option = click.option(
    "--print-config", is_flag=True, help="Print all settings and where they come from, as YAML for --config."
)


def print_configuration(table: Table[C], effective: Effective[C]) -> None:
    """Prints every setting as YAML for `--config`, each with its source; warnings go to standard error."""
    for warning in effective.warnings:
        click.echo(f"Warning: {warning}", err=True)
    click.echo(as_yaml(table, effective), nl=False)


def _named(folder: str | None, name: str | None) -> File | None:
    """Raises click.ClickException."""
    if not name:
        return None
    if not folder:
        raise click.UsageError(f"--config-name {name} needs --configs, the folder in which it lies")
    try:
        files = {path.name.removesuffix(ENDING): path for path in Path(folder).iterdir() if path.name.endswith(ENDING)}
    except OSError as error:
        raise click.ClickException(f"cannot read {folder}: {error.strerror or error}") from error
    if not is_name(name) or name not in files:
        raise click.UsageError(missing(name, folder, files))
    return _file(str(files[name]))


def _file(path: str | None) -> File | None:
    return None if path is None else File(name=path, text=read_text(path))
