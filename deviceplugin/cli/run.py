"""`topogpu-device-plugin run`: the daemon of one node."""

import logging

import click

from deviceplugin.cli.named import configuration_options
from deviceplugin.configuration.table import TABLE
from program.commands import modules_kept
from program.logs import set_up_logging
from program.settings.options import GroupedCommand, print_configuration, print_option

log = logging.getLogger(__name__)


@click.command("run", cls=GroupedCommand)
@configuration_options
@print_option
def run(*, print_config: bool, **given: str | None) -> None:
    """Serve this node's GPUs to kubelet and describe them on the Node.

    It reads the GPUs and their links through NVML, keeps them in the Node's annotations, and gives every container the
    GPUs that the scheduler decided for its pod. Without a driver or a GPU it logs that and waits for them.

    SIGTERM and SIGINT stop it and remove its socket. SIGHUP does the same, for a restart with changed files; if a file
    has an error, the daemon logs it and keeps running.

    Precedence, highest first: flags, environment, HAMi's config.json, HAMi's device-config.yaml, the configuration that
    the Node's label names, --config. When the label changes, the daemon restarts.
    """
    # `--help` needs none of the daemon's parts.
    with modules_kept():
        from deviceplugin.cli.named import checked, choose  # noqa: PLC0415

    chosen = choose(given, wait=not print_config)
    effective = chosen.effective
    if print_config:
        print_configuration(TABLE, effective)
        return
    set_up_logging("deviceplugin", effective.configuration.log_format, effective.configuration.log_level)
    for warning in effective.warnings:
        log.warning("%s", warning)
    with modules_kept():
        from deviceplugin.cli.daemon import serve_until_stopped  # noqa: PLC0415

    serve_until_stopped(chosen, checked(given))
