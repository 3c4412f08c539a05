"""`topogpu-scheduler serve`: runs the extender beside kube-scheduler."""

import logging

import click

from program.commands import modules_kept
from program.logs import set_up_logging
from program.settings.options import (
    GroupedCommand,
    print_configuration,
    print_option,
    read_configuration,
    setting_options,
)
from scheduler_ext.configuration import TABLE, warnings

log = logging.getLogger(__name__)


@click.command(cls=GroupedCommand)
@setting_options(TABLE)
@print_option
def serve(*, print_config: bool, **given: object) -> None:
    """Answer kube-scheduler's /filter, /prioritize, /preempt and /bind until SIGTERM or Ctrl-C.

    Reads nodes, pods and quotas from the API server, counts every GPU's shares in memory, and writes each decision
    once, with the Binding. /readyz answers 200 once everything is listed.

    Order of settings: flags, then the environment, then HAMi's device-config.yaml, then --config.
    """
    effective = read_configuration(TABLE, given)
    if print_config:
        print_configuration(TABLE, effective)
        return
    # `--help` and a refused setting must not load the servers.
    with modules_kept():
        from scheduler_ext.cli.serving import serve_until_stopped  # noqa: PLC0415

    configuration = effective.configuration
    set_up_logging("scheduler_ext", configuration.log_format, configuration.log_level)
    for warning in warnings(effective):
        log.warning("%s", warning)
    serve_until_stopped(configuration)
