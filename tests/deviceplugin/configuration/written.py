"""What somebody wrote, in as few words as a test needs."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from deviceplugin.configuration.table import TABLE, Configuration
from program.settings.effective import ConfigurationError, Effective, File, SettingSources, resolve

HAMI = Path(__file__).parents[2] / "data" / "hami-config"


def written(
    flags: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    own: str | None = None,
    device_config: str | None = None,
    node_config: str | None = None,
) -> Effective[Configuration]:
    """Of node `n` unless told otherwise."""
    return resolve(
        TABLE,
        SettingSources(
            flags={"node_name": "n"} | dict(flags or {}),
            environment=environment or {},
            own=None if own is None else File(name="own.yaml", text=own),
            device_config=None if device_config is None else File(name="device.yaml", text=device_config),
            node_config=None if node_config is None else File(name="config.json", text=node_config),
        ),
    )


def refused(
    flags: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    own: str | None = None,
    device_config: str | None = None,
    node_config: str | None = None,
) -> str:
    with pytest.raises(ConfigurationError) as error:
        written(flags, environment, own=own, device_config=device_config, node_config=node_config)
    return str(error.value)
