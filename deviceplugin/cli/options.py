"""The daemon's options, derived from the table of settings, and what they and the environment say together."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import click

from deviceplugin.cli.sources import read_text
from deviceplugin.configuration.effective import ConfigurationError, Effective, File, Sources, resolve
from deviceplugin.configuration.kinds import Kind, Several, Switch, Words
from deviceplugin.configuration.named import ENDING, is_name, missing
from deviceplugin.configuration.table import SETTINGS, Setting

CONFIG_LABEL = "topogpu.io/device-plugin.config"

Command = TypeVar("Command", bound=Callable[..., object])

_FILES = (
    click.option("--config", metavar="FILE", envvar="TOPOGPU_CONFIG", show_envvar=True, help="Settings as YAML."),
    click.option(
        "--configs",
        metavar="DIR",
        envvar="TOPOGPU_CONFIGS",
        show_envvar=True,
        help="Named configurations, files NAME.yaml like that of --config. A label of the Node names the one to use.",
    ),
    click.option(
        "--config-label",
        metavar="LABEL",
        default=CONFIG_LABEL,
        show_default=True,
        envvar="TOPOGPU_CONFIG_LABEL",
        show_envvar=True,
        help="That label.",
    ),
    click.option(
        "--default-config",
        metavar="NAME",
        envvar="TOPOGPU_DEFAULT_CONFIG",
        show_envvar=True,
        help="The named configuration of a Node without the label.",
    ),
    click.option(
        "--config-name",
        metavar="NAME",
        envvar="TOPOGPU_CONFIG_NAME",
        show_envvar=True,
        help="Use this named configuration, whatever the Node's label says.",
    ),
    click.option(
        "--device-config-file",
        "--config-file",
        metavar="FILE",
        envvar=["DEVICE_CONFIG_FILE", "CONFIG_FILE"],
        show_envvar=True,
        help="HAMi's device-config.yaml.",
    ),
    click.option(
        "--node-config-file",
        metavar="FILE",
        envvar="NODE_CONFIG_FILE",
        show_envvar=True,
        help="HAMi's config.json, with an entry for each node.",
    ),
)


def configuration_options(command: Command) -> Command:
    """The three files, and a flag for every setting. Values arrive as typed; `read_configuration` understands them."""
    for option in reversed((*_FILES, *map(_option, SETTINGS.values()))):
        command = option(command)
    return command


def _option(setting: Setting) -> Callable[[Command], Command]:
    return click.option(
        *setting.flags,
        setting.key,
        metavar=_metavar(setting.kind),
        is_flag=False,
        flag_value="true" if isinstance(setting.kind, Switch) else None,
        help=_help(setting),
    )


def _metavar(kind: Kind) -> str:
    match kind:
        case Switch():
            return "[true|false]"
        case Words():
            return f"[{'|'.join(filter(None, kind.words))}]"
        case Several():
            return "LIST"
        case _:
            return "VALUE"


def _help(setting: Setting) -> str:
    facts = {"env var": ", ".join(setting.environment), "default": default_text(setting)}
    told = "; ".join(f"{name}: {fact}" for name, fact in facts.items() if fact)
    return f"{setting.help}  [{told}]" if told else setting.help


def default_text(setting: Setting) -> str:
    """As one would type it; empty where there is none."""
    if isinstance(setting.default, tuple):
        return ",".join(map(str, setting.default))
    if isinstance(setting.default, bool):
        return str(setting.default).lower()
    number = f"{setting.default:g}" if isinstance(setting.default, float) else str(setting.default)
    return f"{number} {setting.unit}".strip()


def read_configuration(given: Mapping[str, str | None]) -> Effective:
    """`given` is what click parsed of `configuration_options`. Raises click.UsageError with all that is wrong."""
    flags = {key: text for key, text in given.items() if key in SETTINGS and text is not None}
    files = {key: _file(given[key]) for key in ("config", "device_config_file", "node_config_file")}
    try:
        return resolve(
            Sources(
                flags=flags,
                environment=os.environ,
                own=files["config"],
                named=_named(given.get("configs"), given.get("config_name")),
                device_config=files["device_config_file"],
                node_config=files["node_config_file"],
            )
        )
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error


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
