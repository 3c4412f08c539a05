"""The daemon's options: every setting, and the files of one node."""

from collections.abc import Mapping

from deviceplugin.configuration.table import TABLE, Configuration
from program.settings.effective import Effective
from program.settings.options import NODE_FILES, OWN_FILES, read_configuration, setting_options

configuration_options = setting_options(TABLE, files=(*OWN_FILES, *NODE_FILES))


def read(given: Mapping[str, str | None]) -> Effective[Configuration]:
    """Reads the configuration. `given` is what click parsed from `configuration_options`. Raises click.ClickException
    with all problems.
    """
    return read_configuration(TABLE, given)
