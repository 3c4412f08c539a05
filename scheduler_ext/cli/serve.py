"""`topogpu-scheduler serve`: the extender beside kube-scheduler."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import click
from aiohttp import web

from proto.kubernetes.client import ApiServer, ApiServerUnconfigured
from proto.kubernetes.events import EventRecorder
from scheduler_ext.apiserver import ClusterWatch
from scheduler_ext.binding.bind import Binder
from scheduler_ext.binding.view import View
from scheduler_ext.cli.logs import configure_logging
from scheduler_ext.cli.options import request_options
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.http_server import Extender
from scheduler_ext.policies import alias_warnings
from scheduler_ext.requests import RequestSettings
from scheduler_ext.settings import (
    DEFAULT_SCHEDULER_NAME,
    ListenAddress,
    ServeSettings,
    SettingsError,
    parse_duration,
    parse_listen_address,
)

log = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0


class PortTaken(Exception):
    """The address cannot be listened on; the message is one sentence."""


@click.command()
@click.option("--http_bind", "--http-bind", "http_bind", default="127.0.0.1:8080", show_default=True,
              help="Where kube-scheduler calls us; port 0 takes a free one.")  # fmt: skip
@click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, ~/.kube/config, or the cluster around us.")
@click.option("--scheduler-name", default="", help="Source of our events; topogpu-scheduler when empty.")
@request_options
@click.option("--default-gpu", type=click.IntRange(min=1), default=1, show_default=True,
              help="GPUs of a container that asks for GPU memory or cores alone; set at admission.")  # fmt: skip
@click.option("--node-lock-timeout", default="5m", show_default=True,
              help="After this long another pod may take over a node's lock.")  # fmt: skip
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def serve(
    *,
    http_bind: str,
    kubeconfig: str | None,
    scheduler_name: str,
    requests: RequestSettings,
    default_gpu: int,
    node_lock_timeout: str,
    log_format: str,
    log_level: str,
) -> None:
    """Answer kube-scheduler's /filter and /bind until told to stop (SIGTERM or Ctrl-C).

    Reads nodes, pods and quotas from the API server, keeps count of every GPU's shares in memory, and writes each
    decision once, with the Binding. /readyz answers 200 as soon as everything has been listed.
    """
    del default_gpu  # Kubelet counts by the pod's own spec, so only an admission webhook can put the number there.
    configure_logging(log_format, log_level)
    try:
        address = parse_listen_address(http_bind)
        settings = ServeSettings(
            scheduler_name=scheduler_name or DEFAULT_SCHEDULER_NAME,
            node_lock_ttl_seconds=parse_duration(node_lock_timeout),
        )
        for warning in alias_warnings(requests.gpu_policy.text):
            log.warning("%s", warning)
        asyncio.run(_serve(address, kubeconfig, settings, requests))
    except (SettingsError, ApiServerUnconfigured, PortTaken) as error:
        raise click.ClickException(str(error)) from error


async def _serve(
    address: ListenAddress, kubeconfig: str | None, settings: ServeSettings, requests: RequestSettings
) -> None:
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    api = await ApiServer.connect(kubeconfig, user_agent="topogpu-scheduler")
    try:
        async with running_extender(api, settings, requests) as extender, listening(extender, address) as url:
            click.echo(f"listening on {url}")
            await stop.wait()
            log.info("stopping")
    finally:
        await api.close()


@asynccontextmanager
async def running_extender(
    api: ApiServer, settings: ServeSettings, requests: RequestSettings
) -> AsyncIterator[Extender]:
    """The extender with its watches and events; on the way out binds under way are finished."""
    ledger, view = Ledger(requests), View(requests.names)
    events = EventRecorder(api=api, component=settings.scheduler_name, now=_now, monotonic=time.monotonic)
    watch = ClusterWatch(api=api, ledger=ledger, view=view, tell=events.record)
    binder = Binder(
        api=api,
        ledger=ledger,
        view=view,
        requests=requests,
        settings=settings,
        now=_now,
        monotonic=time.monotonic,
    )
    tasks = [asyncio.create_task(watch.run()), asyncio.create_task(events.run())]
    for task in tasks:
        task.add_done_callback(_report_end)
    try:
        yield Extender(
            ledger=ledger,
            watch=watch,
            binder=binder,
            events=events,
            requests=requests,
            settings=settings,
            monotonic=time.monotonic,
        )
    finally:
        await binder.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await events.flush(FLUSH_SECONDS)


@asynccontextmanager
async def listening(extender: Extender, address: ListenAddress) -> AsyncIterator[str]:
    """The URL under which requests are served. Raises PortTaken."""
    runner = web.AppRunner(extender.application(), access_log=None, shutdown_timeout=5.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, address.host, address.port)
        try:
            await site.start()
        except OSError as error:
            # asyncio wraps the system's words in its own; a failed name look-up has no positive number.
            known = error.errno is not None and error.errno > 0
            reason = (os.strerror(error.errno or 0) if known else error.strerror or str(error)).lower()
            raise PortTaken(
                f"Cannot listen on {address.host}:{address.port}: {reason}; choose another --http_bind."
            ) from error
        host, port = runner.addresses[0][:2]
        yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    finally:
        await runner.cleanup()


def _report_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("a background task has ended; restart the extender", exc_info=task.exception())


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - the program's clock
