"""Runs one extender in two phases: all parts are made first, then they are started."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import ParamSpec, TypeVar

from aiohttp import web

from program.shared_page import SharedPage, Write, open_port
from program.tasks import Tasks
from proto import __version__
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import NotFound
from proto.kubernetes.objects import PODS
from scheduler_ext.admission.containers import AdmissionSettings
from scheduler_ext.apiserver import ClusterWatch
from scheduler_ext.debugging import account_of
from scheduler_ext.extender_parts import ExtenderParts, made_parts
from scheduler_ext.http.messages import Endpoints, Routes
from scheduler_ext.http.server import web_routes
from scheduler_ext.metrics.counters import CONTENT_TYPE
from scheduler_ext.requests import RequestSettings
from scheduler_ext.settings import LeaseSettings, ServeSettings
from scheduler_ext.status.access import TokenAccess
from scheduler_ext.status.event_reader import EventReader
from scheduler_ext.status.explaining import Explainer
from scheduler_ext.status.history_object import HistoryObject
from scheduler_ext.status.pod_page import ShownPod, shown_pod
from scheduler_ext.status.poller import Poller
from scheduler_ext.status.server import StatusServer
from scheduler_ext.status.use_reader import UseReader
from scheduler_ext.status.view import Standing
from scheduler_ext.verbs.bind import Binder
from scheduler_ext.verbs.journal import JournalFiles
from scheduler_ext.webhook_server import Webhook

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
LongWork = Callable[[], Coroutine[None, None, None]]

PAGE_REST_SECONDS = 10.0
FLUSH_SECONDS = 2.0


class PartFailed(Exception):
    """A watch, or another part that must run, has failed. The message is one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applications:
    """A running extender: what it serves to kube-scheduler, Prometheus, the API server and browsers."""

    parts: ExtenderParts
    namespace: str = ""
    """The namespace of this extender and of the daemons; empty outside a pod."""
    verbs: Endpoints
    metrics: web.Application
    tasks: Tasks = field(default_factory=Tasks)
    failed: asyncio.Event = field(default_factory=asyncio.Event)
    """The event is set when a watch, or another part that must run, has failed: later answers would be outdated."""

    def webhook(self, settings: AdmissionSettings) -> web.Application:
        """Returns the webhook for the API server. It checks quotas against the current decisions."""
        parts = self.parts
        ledger = parts.cluster.state.ledger
        return Webhook(
            settings=settings,
            quota_of=ledger.quotas.left,
            gpu_memory=ledger.nodes.sizes.smallest,
            metrics=parts.metrics,
            monotonic=parts.cluster.monotonic,
        ).application()

    def _standing(self) -> Standing:
        parts = self.parts
        return Standing(
            problem=parts.readiness.problem(),
            stale=parts.watch.interrupted(),
            synced=parts.watch.listed,
            version=__version__,
            cluster=parts.api.url,
            leads=parts.leadership.leads(),
            leader=parts.leadership.leader(),
        )

    async def _shown_pod(self, explainer: Explainer, reader: EventReader, namespace: str, name: str) -> ShownPod | None:
        """Returns the pod for the page; None if there is none. Raises ApiError or ApiUnreachable."""
        cluster = self.parts.cluster
        try:
            pod = await self.parts.api.get(PODS, name, namespace)
        except NotFound:
            return None
        events = await reader.of(pod)
        state, why = cluster.state, explainer.why(pod)
        snapshot = state.snapshot_for(pod)
        found = await account_of(pod, snapshot, state, self.parts.readiness.problem(), cluster.monotonic())
        return shown_pod(pod, found, state.requests, snapshot, why, events=events)

    def status_page(self, *, for_other_hosts: bool, history: str = "") -> web.Application:
        """Returns the status page for browsers; those of other hosts need a token. From then on the extender looks at
        its state for the page, and keeps the page's history in the ConfigMap `history`, if there is one.
        """
        cluster = self.parts.cluster
        access = TokenAccess(self.parts.api, cluster.monotonic)
        events = EventReader(self.parts.api, cluster.monotonic)
        explainer = Explainer(cluster)
        pod_of = _from_any_thread(partial(self._shown_pod, explainer, events))
        admission = _from_any_thread(access.refusal) if for_other_hosts else None
        server = StatusServer(token_hex(4), admission, pod_of=pod_of)

        def watched() -> bool:
            return server.watched

        def searched() -> bool:
            return server.watched and self.parts.watch.listed

        reader = UseReader(api=self.parts.api, namespace=self.namespace, watched=watched, monotonic=cluster.monotonic)
        poller = Poller(
            cluster=cluster,
            explainer=explainer,
            uses=reader.uses,
            standing=self._standing,
            show=server.show,
            watched=watched,
            seconds_since_1970=time.time,
        )
        works: list[LongWork] = [poller.run, partial(explainer.run, searched), reader.run]
        if history:
            kept = HistoryObject(
                api=self.parts.api,
                place=history,
                recall=server.recall,
                remembered=server.remembered,
                leads=self.parts.leadership.leads,
            )
            works.append(kept.run)
        for work in works:
            self.tasks.begin(without_need(work))
        return server.application()


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
    lease = lease or LeaseSettings()
    parts = made_parts(api=api, settings=settings, requests=requests, lease=lease, certified=certified, files=files)
    probes = parts.probes.routes()
    applications = Applications(
        parts=parts,
        namespace=lease.pod_namespace,
        verbs=Endpoints(private=parts.private_routes(), public=probes, finish=parts.binder.finish),
        metrics=_metrics_port(parts, probes),
    )
    _start(applications, is_elected=lease.elects)
    try:
        yield applications
    finally:
        await parts.binder.finish()
        await parts.leadership.leave()
        await applications.tasks.end()
        await parts.turns.end()
        if parts.kube_scheduler is not None:
            await parts.kube_scheduler.end()
        await parts.events.flush(FLUSH_SECONDS)


def _metrics_port(parts: ExtenderParts, probes: Routes) -> web.Application:
    """Returns `/metrics` and the probes for their own port, which may be open to other hosts."""

    async def written() -> Write:
        # The state is read on this event loop, once for each page.
        return partial(parts.metrics.exposition, parts.metrics_input())

    return open_port({"/metrics": SharedPage(CONTENT_TYPE, written, parts.cluster.monotonic)}, web_routes(probes))


def _start(applications: Applications, *, is_elected: bool) -> None:
    parts = applications.parts
    before = DecidedBefore(binder=parts.binder, watch=parts.watch, is_elected=is_elected)
    lead = partial(parts.leadership.run, before)
    on_pods = parts.requeuer.run, parts.resizer.run, parts.set_aside.run, parts.evictor.run
    for work in (parts.watch.run, parts.events.run, lead, *on_pods):
        applications.tasks.begin(_reported(work, applications.failed))


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedBefore:
    """Learns of earlier decisions before this replica decides."""

    binder: Binder
    watch: ClusterWatch
    is_elected: bool

    def forget_sent(self) -> None:
        log.info("another replica may have bound pods since: what was sent from here before is forgotten")
        self.binder.forget_sent()

    async def catch_up(self) -> None:
        """Catches up: other replicas may have bound pods since anything was reserved here."""
        await self.binder.recover()
        # Without an election only this replica decides, and everything is listed after the start.
        if self.is_elected:
            await self.binder.drop_reservations()
            await self.watch.list_pods_again()


def _from_any_thread(work: Callable[P, Coroutine[None, None, T]]) -> Callable[P, Awaitable[T]]:
    """Returns work that runs here for callers on another event loop: the API client belongs to this one."""
    loop = asyncio.get_running_loop()

    def call(*args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(*args, **kwargs), loop))

    return call


async def _reported(work: LongWork, failed: asyncio.Event) -> None:
    try:
        await work()
    except Exception:
        log.exception("a part of the extender has failed")
        failed.set()


async def without_need(work: LongWork, rest_seconds: float = PAGE_REST_SECONDS) -> None:
    """Does work of the status page, which no decision needs: after its end, by a failure or not, it begins again
    later.
    """
    while True:
        try:
            await work()
        except Exception:
            log.exception("the status page shows nothing new for %.0f s", rest_seconds)
        await asyncio.sleep(rest_seconds)
