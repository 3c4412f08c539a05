"""`topogpu-device-plugin run`: the daemon of one node."""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine

import click

from deviceplugin.allocation.mode import SlotsUnsupported
from deviceplugin.cli.build import build_daemon, build_nvml
from deviceplugin.cli.options import configuration_options, read_configuration
from deviceplugin.configuration.effective import as_yaml
from deviceplugin.configuration.table import Configuration
from deviceplugin.gpus import GpusUnavailable
from deviceplugin.metrics.server import MetricsAddressUnusable
from proto.kubernetes.client import ApiServer, ApiServerUnconfigured
from proto.logs import set_up_logging

log = logging.getLogger(__name__)


@click.command("run")
@configuration_options
@click.option("--print-config", is_flag=True, help="Print all settings and where they come from, as YAML for --config.")
def run(*, print_config: bool, **given: str | None) -> None:
    """Serve this node's GPUs to kubelet and describe them on the Node.

    Reads the GPUs and their links through NVML, keeps them in the Node's annotations, and hands every container the
    GPUs that the scheduler decided for its pod. Without a driver or a GPU it says so and waits for them.

    SIGTERM and SIGINT stop it and remove its socket. So does SIGHUP, for a restart with changed files, unless they
    hold a mistake: then it says so and goes on.

    A flag wins over the environment, that over HAMi's config.json, that over HAMi's device-config.yaml, that over
    --config.
    """
    effective = read_configuration(given)
    if print_config:
        for warning in effective.warnings:
            click.echo(f"Warning: {warning}", err=True)
        click.echo(as_yaml(effective), nl=False)
        return
    set_up_logging("deviceplugin", effective.configuration.log_format, effective.configuration.log_level)
    for warning in effective.warnings:
        log.warning("%s", warning)
    _serve(effective.configuration, lambda: _is_readable(given))


def _is_readable(given: dict[str, str | None]) -> bool:
    try:
        read_configuration(given)
    except click.ClickException as error:
        log.error("SIGHUP: going on as before, because a restart would fail: %s", error.format_message())
        return False
    return True


def _serve(configuration: Configuration, may_restart: Callable[[], bool]) -> None:
    nvml = build_nvml(configuration)
    problem = ""
    try:
        asyncio.run(
            _run_until_signalled(
                configuration.kubeconfig or None, lambda api: build_daemon(configuration, api, nvml), may_restart
            )
        )
    except* (ApiServerUnconfigured, GpusUnavailable, MetricsAddressUnusable, SlotsUnsupported) as errors:
        problem = "; ".join(map(str, errors.exceptions))
    if problem:
        raise click.ClickException(problem)


async def _run_until_signalled(
    kubeconfig: str | None, build: Callable[[ApiServer], Coroutine[None, None, None]], may_restart: Callable[[], bool]
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: stop.set() if may_restart() else None)
    api = await ApiServer.connect(kubeconfig, user_agent="topogpu-device-plugin")
    agent = asyncio.create_task(build(api))
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({agent, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if agent.done():
            agent.result()
    finally:
        stopped.cancel()
        agent.cancel()
        await asyncio.gather(agent, stopped, return_exceptions=True)
        await api.close()
