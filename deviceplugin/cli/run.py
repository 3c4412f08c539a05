"""`topogpu-device-plugin run`: the daemon of one node."""

import logging

import click

from deviceplugin.cli.options import configuration_options
from deviceplugin.configuration import TABLE
from program.logs import set_up_logging
from program.settings.options import GroupedCommand, print_configuration, print_option

log = logging.getLogger(__name__)


@click.command("run", cls=GroupedCommand)
@configuration_options
@print_option
def run(*, print_config: bool, **given: str | None) -> None:
    """Serve this node's GPUs to kubelet and describe them on the Node.

    Reads the GPUs and their links through NVML, keeps them in the Node's annotations, and hands every container the
    GPUs that the scheduler decided for its pod. Without a driver or a GPU it says so and waits for them.

    SIGTERM and SIGINT stop it and remove its socket. So does SIGHUP, for a restart with changed files, unless they
    hold a mistake: then it says so and goes on.

    A flag wins over the environment, that over HAMi's config.json, that over HAMi's device-config.yaml, that over the
    configuration that the Node's label names, that over --config. Another label is followed by a restart.
    """
    # `--help` needs none of the daemon's parts.
    from deviceplugin.cli.named import checked, choose  # noqa: PLC0415

    chosen = choose(given, wait=not print_config)
    effective = chosen.effective
    if print_config:
        print_configuration(TABLE, effective)
        return
    set_up_logging("deviceplugin", effective.configuration.log_format, effective.configuration.log_level)
    for warning in effective.warnings:
        log.warning("%s", warning)
    from deviceplugin.cli.daemon import serve_until_stopped  # noqa: PLC0415

    serve_until_stopped(chosen, checked(given))
