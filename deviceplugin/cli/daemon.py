"""Runs the daemon of one node, from start to stop."""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine

import click

from deviceplugin.apiserver import USER_AGENT
from deviceplugin.cli.build import build_daemon, build_nvml
from deviceplugin.cli.named import ChosenConfiguration
from deviceplugin.configuration_label import Choice
from deviceplugin.inventory import GpusUnavailable
from deviceplugin.metrics.server import MetricsAddressUnusable
from deviceplugin.mode.rules import SlotsUnsupported
from deviceplugin.own_threads import UnjoinedExecutor
from program.tasks import show_stacks_on_signal, until_first
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiServerUnconfigured

log = logging.getLogger(__name__)

_POOL_THREADS = 8
"""Threads for work without own threads: files of slots, host names."""


def serve_until_stopped(chosen: ChosenConfiguration, check: Callable[[str], str]) -> None:
    """Runs until SIGTERM, SIGINT or SIGHUP. `check` returns what is wrong with a configuration. Raises
    click.ClickException.
    """
    configuration = chosen.effective.configuration
    nvml = build_nvml(configuration)

    def build(api: ApiServer, restart: Callable[[], None]) -> Coroutine[None, None, None]:
        choice = Choice(name=chosen.name, wanted=chosen.wanted, check=check, restart=restart) if chosen.label else None
        return build_daemon(configuration, api, nvml, choice)

    def may_restart() -> bool:
        problem = check(chosen.name)
        if problem:
            log.error("SIGHUP ignored, because a restart would fail: %s", problem)
        return not problem

    problem = ""
    try:
        asyncio.run(_run_until_signalled(configuration.kubeconfig or None, build, may_restart))
    except* (ApiServerUnconfigured, GpusUnavailable, MetricsAddressUnusable, SlotsUnsupported) as errors:
        problem = "; ".join(map(str, errors.exceptions))
    if problem:
        raise click.ClickException(problem)


async def _run_until_signalled(
    kubeconfig: str | None,
    build: Callable[[ApiServer, Callable[[], None]], Coroutine[None, None, None]],
    may_restart: Callable[[], bool],
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    show_stacks_on_signal()
    loop.set_default_executor(UnjoinedExecutor(_POOL_THREADS))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: stop.set() if may_restart() else None)
    async with await ApiServer.connect(kubeconfig, user_agent=USER_AGENT) as api:
        await until_first(build(api, stop.set), stop.wait())
