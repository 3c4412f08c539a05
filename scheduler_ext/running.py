"""Puts one extender together: watches, events, leadership, and the listeners."""

import asyncio
import logging
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from secrets import token_hex

from aiohttp import web

from program.address import ListenAddress
from program.listening import Patience, serving
from program.tasks import Tasks
from proto.kubernetes.client import ApiServer
from proto.kubernetes.events import EventRecorder
from scheduler_ext import loopback
from scheduler_ext.admission.settings import AdmissionSettings
from scheduler_ext.answering import Answering
from scheduler_ext.apiserver import ClusterWatch
from scheduler_ext.cluster.records import RecordState
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.debugging import Debugging
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.exchange import Verbs, is_local
from scheduler_ext.http_server import Extender, application, web_routes
from scheduler_ext.kube_scheduler import KubeScheduler
from scheduler_ext.leadership.lease import Leadership, LeaseSettings
from scheduler_ext.metric_families import MetricsInput
from scheduler_ext.metrics import ExtenderMetrics
from scheduler_ext.metrics_server import metrics_port
from scheduler_ext.requests import RequestSettings
from scheduler_ext.requeue import Requeuer
from scheduler_ext.settings import MetricsDetail, ServeSettings
from scheduler_ext.status.access import AccessRefusal, TokenAccess
from scheduler_ext.status.explaining import Explainer
from scheduler_ext.status.looking import Looker
from scheduler_ext.status.server import Admission, StatusServer
from scheduler_ext.verbs.bind_actions import BindActions
from scheduler_ext.verbs.binder import Binder
from scheduler_ext.verbs.binding_sender import BindingSender
from scheduler_ext.verbs.evictor import Evictor
from scheduler_ext.verbs.journal import JournalFiles
from scheduler_ext.verbs.live_cluster import LiveCluster
from scheduler_ext.webhook_server import Webhook

log = logging.getLogger(__name__)

PAGE_REST_SECONDS = 10.0
FLUSH_SECONDS = 2.0
SHUTDOWN_SECONDS = 5.0
"""The time for which a closing listener waits for answers under way."""


class PartFailed(Exception):
    """A watch, or another part that must run, has failed. The message is one sentence."""


class PortTaken(Exception):
    """The address cannot be listened on. The message is one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applications:
    """The applications for kube-scheduler, for Prometheus, for the API server and for browsers."""

    verbs: Verbs
    metrics: web.Application
    webhook: Callable[[AdmissionSettings], web.Application]
    """Makes the webhook for the API server. It checks quotas against the current decisions."""
    status_page: Callable[[bool], web.Application]
    """Makes the status page for browsers; with True for those of other hosts, which need a token. From then on the
    extender looks at its state for the page.
    """
    failed: asyncio.Event
    """The event is set when a watch, or another part that must run, has failed: later answers would be outdated."""


@asynccontextmanager
async def running_extender(
    api: ApiServer,
    settings: ServeSettings,
    requests: RequestSettings,
    lease: LeaseSettings | None = None,
    certified: Callable[[], bool] = lambda: True,
    *,
    files: JournalFiles | None = None,
) -> AsyncIterator[Applications]:
    """Runs the extender, and finishes binds under way at the end. `/readyz` needs `certified`. `files` is where
    Bindings are written before they are sent.
    """
    lease, clock = lease or LeaseSettings(), time.monotonic
    state, metrics = Cluster(requests), ExtenderMetrics()
    index = NodeIndex(state.ledger)
    events = EventRecorder(api=api, component=settings.scheduler_name, now=now, monotonic=clock)
    cluster = LiveCluster(state, clock, events.record)
    sending = BindingSender(api, settings.binding_seconds, clock, left=files is not None and bool(files.left))
    leadership = Leadership(
        api=api,
        settings=lease,
        overtaken=lambda: _forget_sent(binder),
        catch_up=lambda: _catch_up(binder, watch, is_elected=bool(lease.name)),
        written=sending.written,
        write_seconds=sending.seconds,
        now=now,
        monotonic=clock,
    )
    watch = ClusterWatch(
        api=api, cluster=cluster, known=index.look_ahead, node_label_selector=settings.node_label_selector
    )
    questions = BindActions(
        api=api, cluster=cluster, settings=settings, sending=sending, now=now, forbidden=leadership.forbidden
    )
    binder = Binder(
        cluster=cluster, questions=questions, settings=settings, lock_waited=metrics.lock_waited, files=files
    )
    nudger = Requeuer(api=api, cluster=cluster, index=index, leads=leadership.leads, nudged=metrics.nudged, now=now)
    cluster.freed = nudger.freed
    evicts, forbidden = settings.gpu_preemption, leadership.problem
    preempting = Evictor(api=api, cluster=cluster, index=index, forbidden=forbidden, serving=evicts)
    answering = Answering(
        cluster=cluster,
        index=index,
        preempting=preempting,
        watch=watch,
        leadership=leadership,
        binder=binder,
        settings=settings,
    )
    debugging = Debugging(api=api, cluster=state, problem=answering.problem, monotonic=clock)
    kube_scheduler = KubeScheduler(settings.kube_scheduler_healthz) if settings.kube_scheduler_healthz else None
    extender = Extender(
        answering=answering,
        watch=watch,
        leadership=leadership,
        binder=binder,
        debugging=debugging,
        events=events,
        metrics=metrics,
        settings=settings,
        monotonic=clock,
        certified=certified,
        kube_scheduler=kube_scheduler,
    )
    probes = web_routes(extender.probes())
    parts, failed = Tasks(), asyncio.Event()
    for work in (watch.run, events.run, leadership.run, nudger.run, preempting.run):
        parts.begin(_reported(work, failed))

    def status_page(for_other_hosts: bool) -> web.Application:
        server = StatusServer(token_hex(4), _from_any_thread(TokenAccess(api, clock)) if for_other_hosts else None)
        explainer = Explainer(cluster=cluster, watched=lambda: server.watched)
        looker = Looker(
            cluster=cluster,
            explainer=explainer,
            problem=answering.problem,
            show=server.show,
            watched=lambda: server.watched,
            seconds_since_1970=time.time,
        )
        for work in (looker.run, explainer.run):
            parts.begin(_without_need(work))
        return server.application()

    try:
        yield Applications(
            verbs=extender.verbs(),
            metrics=metrics_port(metrics, lambda: _seen(state, settings, leadership, watch), probes, clock),
            webhook=lambda admission: Webhook(
                settings=admission, quota_of=state.ledger.quotas.left, metrics=metrics, monotonic=clock
            ).application(),
            status_page=status_page,
            failed=failed,
        )
    finally:
        await binder.finish()
        await leadership.leave()
        await parts.end()
        await answering.end()
        if kube_scheduler is not None:
            await kube_scheduler.end()
        await events.flush(FLUSH_SECONDS)


def _from_any_thread(access: TokenAccess) -> Admission:
    """The API client belongs to this thread's event loop, and the page has another one."""
    loop = asyncio.get_running_loop()

    async def refusal(token: str) -> AccessRefusal | None:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(access.refusal(token), loop))

    return refusal


def _forget_sent(binder: Binder) -> None:
    log.info("another replica may have bound pods since: what was sent from here before is forgotten")
    binder.forget_sent()


async def _catch_up(binder: Binder, watch: ClusterWatch, *, is_elected: bool) -> None:
    """Catches up: other replicas may have bound pods since anything was reserved here."""
    await binder.recover()
    # Without an election only this replica decides, and everything is listed after the start.
    if is_elected:
        await binder.drop_reservations()
        await watch.list_pods_again()


async def _reported(work: Callable[[], Coroutine[None, None, None]], failed: asyncio.Event) -> None:
    try:
        await work()
    except Exception:
        log.exception("a part of the extender has failed")
        failed.set()


async def _without_need(work: Callable[[], Coroutine[None, None, None]]) -> None:
    """No decision needs the status page: the extender goes on without it, and tries again later."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("the status page shows nothing new for %.0f s", PAGE_REST_SECONDS)
            await asyncio.sleep(PAGE_REST_SECONDS)


def _seen(state: Cluster, settings: ServeSettings, leadership: Leadership, watch: ClusterWatch) -> MetricsInput:
    ledger, of_pods = state.ledger, settings.metrics_detail is MetricsDetail.PODS
    return MetricsInput(
        snapshot=ledger.snapshot(),
        records=dict(ledger.records.every()) if of_pods else {},
        names=dict(state.pods.names()) if of_pods else {},
        resources=state.requests.names,
        reservations=len(ledger.records.of(RecordState.RESERVED, RecordState.SENT)),
        kept=len(ledger.records.of(RecordState.KEPT)),
        waiting=len(state.queue),
        leads=leadership.leads(),
        synced=not watch.missing(),
        problems=len(ledger.problems()),
        detail=settings.metrics_detail,
        legacy_names=settings.legacy_metrics,
    )


@asynccontextmanager
async def listening_to_kube_scheduler(verbs: Verbs, address: ListenAddress, flag: str) -> AsyncIterator[str]:
    """Listens as `listening` does. On loopback a faster server is used; on other addresses one that is safe against
    strangers.
    """
    if address.host == "localhost" or is_local(address.host):
        port = loopback.serving(verbs, address.host, address.port, shutdown_seconds=SHUTDOWN_SECONDS)
    else:
        port = serving(application(verbs), address.host, address.port, shutdown_seconds=SHUTDOWN_SECONDS)
    async with _opened(port, address, flag) as where:
        yield f"http://{where}"


@asynccontextmanager
async def listening(
    served: web.Application,
    address: ListenAddress,
    flag: str,
    tls: ssl.SSLContext | None = None,
    *,
    patience: Patience | None = None,
) -> AsyncIterator[str]:
    """The URL under which requests are served. `flag` is the setting of the address. Raises PortTaken."""
    port = serving(served, address.host, address.port, tls, shutdown_seconds=SHUTDOWN_SECONDS, patience=patience)
    async with _opened(port, address, flag) as where:
        yield f"{'https' if tls is not None else 'http'}://{where}"


@asynccontextmanager
async def _opened(
    port: AbstractAsyncContextManager[tuple[str, int]], address: ListenAddress, flag: str
) -> AsyncIterator[str]:
    """Yields host and port, as a URL writes them. Raises PortTaken."""
    async with AsyncExitStack() as stack:
        try:
            host, number = await stack.enter_async_context(port)
        except OSError as error:
            # asyncio wraps the system's error text in its own. A failed name look-up has no positive number.
            known = error.errno is not None and error.errno > 0
            reason = (os.strerror(error.errno or 0) if known else error.strerror or str(error)).lower()
            raise PortTaken(f"Cannot listen on {address}: {reason}; choose another {flag}.") from error
        yield f"[{host}]:{number}" if ":" in host else f"{host}:{number}"


def now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - the program's clock
