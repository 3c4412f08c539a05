"""Reads the daemon's options, the folder of named configurations, the Node's label, and the last name in use (edge)."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from deviceplugin.configuration.table import TABLE, Configuration
from deviceplugin.container.atomic_file import locked, write_atomically
from deviceplugin.records.memory import MEMORY_FOLDER
from program.logs import set_up_logging
from program.settings.effective import Effective
from program.settings.options import NODE_FILES, OWN_FILES, is_name, read_configuration, setting_options
from proto.kubernetes.errors import ApiError, ApiServerUnconfigured, ApiUnreachable, NotFound
from proto.kubernetes.objects import NODES

log = logging.getLogger(__name__)

configuration_options = setting_options(TABLE, files=(*OWN_FILES, *NODE_FILES))


def read(given: Mapping[str, str | None]) -> Effective[Configuration]:
    """Reads the configuration. `given` is what click parsed from `configuration_options`. Raises click.ClickException
    with all problems.
    """
    return read_configuration(TABLE, given)


_LAST = "configuration"
_API_SECONDS = 5.0
_RETRY_SECONDS = 2.0
_LONGEST_NAME = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenConfiguration:
    """The configuration in use, and the label that may name another."""

    effective: Effective[Configuration]
    name: str = ""
    """The name of the configuration; empty for none."""
    label: str = ""
    """The label; empty if no label is followed."""
    default: str = ""

    def wanted(self, labels: Mapping[str, str]) -> str:
        return labels.get(self.label) or self.default


def choose(given: Mapping[str, str | None], *, wait: bool) -> ChosenConfiguration:
    """Returns the configuration that the Node's label names, else the default one.

    If that one cannot be used, or the API server does not answer, it returns the one used last. If there is none,
    `wait` makes it wait for the API server. Raises click.ClickException if the settings without it cannot be used
    either.
    """
    folder = given.get("configs")
    if not folder or given.get("config_name"):
        return ChosenConfiguration(effective=read(given), name=given.get("config_name") or "")
    base = read({**given, "config_name": None})
    default = given.get("default_config") or ""
    chosen = ChosenConfiguration(effective=base, label=given.get("config_label") or "", default=default)
    configuration = base.configuration
    if wait:
        set_up_logging("deviceplugin", configuration.log_format, configuration.log_level)
    last = Path(configuration.agent.cdi_directory, MEMORY_FOLDER, _LAST)
    before = _read(last)
    labels = asyncio.run(
        _labels(configuration.kubeconfig or None, configuration.agent.node_name, wait=wait and before is None)
    )
    wanted = (before or default) if labels is None else chosen.wanted(labels)
    for name in dict.fromkeys([wanted, default if before is None else before, default, ""]):
        problem, effective = _usable(given, name)
        if effective is not None:
            _write(last, name)
            return ChosenConfiguration(effective=effective, name=name, label=chosen.label, default=default)
        log.error("%s", problem)
    return chosen


def in_use(given: Mapping[str, str | None]) -> Effective[Configuration]:
    """Returns what the daemon of this node runs with, from its file. Raises click.ClickException."""
    base = read(given)
    if not given.get("configs") or given.get("config_name"):
        return base
    name = _read(Path(base.configuration.agent.cdi_directory, MEMORY_FOLDER, _LAST))
    return _usable(given, (given.get("default_config") or "") if name is None else name)[1] or base


def checked(given: Mapping[str, str | None]) -> Callable[[str], str]:
    """Returns what is wrong with a named configuration; empty if it can be used. Blocks."""
    return lambda name: _usable(given, name)[0]


def _usable(given: Mapping[str, str | None], name: str) -> tuple[str, Effective[Configuration] | None]:
    try:
        return "", read({**given, "config_name": name or None})
    except click.ClickException as error:
        return error.format_message(), None


async def _labels(kubeconfig: str | None, node_name: str, *, wait: bool) -> Mapping[str, str] | None:
    """Returns the Node's label; None if the API server does not answer."""
    # `--help` needs no client.
    from deviceplugin.apiserver import USER_AGENT  # noqa: PLC0415
    from proto.kubernetes.client import ApiServer  # noqa: PLC0415

    logged = ""
    while True:
        try:
            async with await ApiServer.connect(kubeconfig, timeout_seconds=_API_SECONDS, user_agent=USER_AGENT) as api:
                return (await api.get(NODES, node_name)).metadata.labels
        except ApiServerUnconfigured as error:
            raise click.ClickException(str(error)) from error
        except NotFound:
            return {}
        except (ApiError, ApiUnreachable) as error:
            if str(error) != logged:
                logged = str(error)
                log.warning("cannot read which configuration node %s must have: %s", node_name, logged)
        if not wait:
            return None
        await asyncio.sleep(_RETRY_SECONDS)


def _read(last: Path) -> str | None:
    """Returns the name used last: None if there is no file, empty if no configuration was in use."""
    try:
        with last.open(encoding="utf-8") as file:
            name = file.read(_LONGEST_NAME)
    except (OSError, UnicodeDecodeError):
        return None
    return name if not name or is_name(name) else None


def _write(last: Path, name: str) -> None:
    try:
        last.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(last.parent):
            write_atomically(last, name.encode(), 0o600)
    except OSError as error:
        log.warning("cannot write %s: %s; after a restart the daemon will wait for the API server", last, error)
