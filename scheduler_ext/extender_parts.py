"""Makes the parts of one extender. Nothing runs yet, and each part gets only parts made before it."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from proto.kubernetes.client import ApiServer
from proto.kubernetes.events import EventRecorder
from proto.kubernetes.objects import Pod
from scheduler_ext.apiserver import ClusterWatch
from scheduler_ext.cluster.records import RecordState
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.debugging import Debugging
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.http.messages import Routes
from scheduler_ext.leadership.leadership import Leadership
from scheduler_ext.metrics.counters import ExtenderMetrics
from scheduler_ext.metrics.families import MetricsInput
from scheduler_ext.probes import KubeScheduler, Probes
from scheduler_ext.requests import GpuRequest, RequestSettings
from scheduler_ext.requeue import Requeuer
from scheduler_ext.resizer import Resizer
from scheduler_ext.set_aside import SetAsideWriter
from scheduler_ext.settings import LeaseSettings, MetricsDetail, ServeSettings
from scheduler_ext.verbs.answer_log import AnswerLog
from scheduler_ext.verbs.bind import Bind, Binder
from scheduler_ext.verbs.bind_actions import BindActions
from scheduler_ext.verbs.binding_sender import BindingSender
from scheduler_ext.verbs.evictor import Evictor
from scheduler_ext.verbs.filter import Filter
from scheduler_ext.verbs.filter_decision import live_decision
from scheduler_ext.verbs.journal import JournalFiles
from scheduler_ext.verbs.live_cluster import LiveCluster
from scheduler_ext.verbs.preempt import Preempt
from scheduler_ext.verbs.prioritize import Prioritize
from scheduler_ext.verbs.readiness import VerbReadiness
from scheduler_ext.verbs.turns import SearchTurns


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderParts:
    """The parts that run, and those that others are made from."""

    api: ApiServer
    settings: ServeSettings
    metrics: ExtenderMetrics
    events: EventRecorder
    cluster: LiveCluster
    index: NodeIndex
    turns: SearchTurns
    watch: ClusterWatch
    leadership: Leadership
    readiness: VerbReadiness
    binder: Binder
    evictor: Evictor
    requeuer: Requeuer
    resizer: Resizer
    set_aside: SetAsideWriter
    kube_scheduler: KubeScheduler | None
    probes: Probes

    def private_routes(self) -> Routes:
        """Returns kube-scheduler's verbs, and what people may see of decisions."""
        cluster, index, readiness, turns = self.cluster, self.index, self.readiness, self.turns
        log = AnswerLog(self.metrics, self.events.record, cluster.monotonic)
        decision = live_decision(index, cluster.state, self.settings)
        binder = self.binder
        filter_ = Filter(
            decision=decision,
            readiness=readiness,
            turns=turns,
            under_way=binder.under_way,
            no_room=self._no_room,
            log=log,
        )
        prioritize = Prioritize(cluster=cluster.state, index=index, readiness=readiness, turns=turns, log=log)
        preempt = Preempt(cluster=cluster, readiness=readiness, log=log)
        bind = Bind(binder=binder, readiness=readiness, log=log)
        debugging = Debugging(
            api=self.api, cluster=cluster.state, problem=readiness.problem, monotonic=cluster.monotonic
        )
        return {
            "/filter": {"POST": filter_.answer},
            "/prioritize": {"POST": prioritize.answer},
            "/prioritize-without-gpus": {"POST": prioritize.answer_without_gpus},
            "/preempt": {"POST": preempt.answer},
            "/bind": {"POST": bind.answer},
            **debugging.routes(),
        }

    def _no_room(self, pod: Pod, request: GpuRequest, nodes: Collection[str]) -> None:
        self.evictor.refused(pod, request, nodes)
        self.set_aside.refused(pod, request, nodes)

    def metrics_input(self) -> MetricsInput:
        state, settings = self.cluster.state, self.settings
        ledger, of_pods = state.ledger, settings.metrics_detail is MetricsDetail.PODS
        return MetricsInput(
            snapshot=ledger.snapshot(),
            records=dict(ledger.records.every()) if of_pods else {},
            names=dict(state.pods.names()) if of_pods else {},
            resources=state.requests.names,
            reservations=len(ledger.records.of(RecordState.RESERVED, RecordState.SENT)),
            kept=len(ledger.records.of(RecordState.KEPT)),
            waiting=len(state.waiting_pods()),
            leads=self.leadership.leads(),
            synced=not self.watch.missing(),
            problems=len(ledger.problems()),
            detail=settings.metrics_detail,
            legacy_names=settings.legacy_metrics,
        )


def made_parts(
    *,
    api: ApiServer,
    settings: ServeSettings,
    requests: RequestSettings,
    lease: LeaseSettings,
    certified: Callable[[], bool],
    files: JournalFiles | None,
) -> ExtenderParts:
    """Returns the parts. `certified` returns whether the webhook has a certificate, or there is no webhook."""
    clock, metrics = time.monotonic, ExtenderMetrics()
    events = EventRecorder(api=api, component=requests.scheduler_name, now=now, monotonic=clock)
    cluster = LiveCluster(Cluster(requests), clock, events.record)
    index, turns = NodeIndex(cluster.state.ledger), SearchTurns(clock)
    watch = ClusterWatch(
        api=api, cluster=cluster, known=index.look_ahead, node_label_selector=settings.node_label_selector
    )
    sender = BindingSender(api, settings.binding_seconds, clock, left=files is not None and bool(files.left))
    leadership = Leadership(api=api, settings=lease, sender=sender, now=now, monotonic=clock)
    wait = settings.sync_wait_seconds
    readiness = VerbReadiness(leader=leadership, cache=watch, wait_seconds=wait, monotonic=clock)
    kube_scheduler = KubeScheduler(settings.kube_scheduler_healthz) if settings.kube_scheduler_healthz else None
    leads, forbidden = leadership.leads, leadership.forbidden
    actions = BindActions(api=api, cluster=cluster, settings=settings, sender=sender, now=now, forbidden=forbidden)
    sees_all = partial(_leads_and_sees_all, leadership, watch)
    lock_waited, evicts, problem = metrics.lock_waited, settings.gpu_preemption, leadership.problem
    return ExtenderParts(
        api=api,
        settings=settings,
        metrics=metrics,
        events=events,
        cluster=cluster,
        index=index,
        turns=turns,
        watch=watch,
        leadership=leadership,
        readiness=readiness,
        binder=Binder(cluster=cluster, actions=actions, settings=settings, lock_waited=lock_waited, files=files),
        evictor=Evictor(api=api, cluster=cluster, index=index, forbidden=problem, serving=evicts),
        requeuer=Requeuer(api=api, cluster=cluster, index=index, leads=leads, requeued=metrics.requeued, now=now),
        set_aside=SetAsideWriter(
            api=api, cluster=cluster, leads=sees_all, forbidden=forbidden, now=now, settings=settings
        ),
        resizer=Resizer(api=api, cluster=cluster, leads=leads, forbidden=forbidden),
        kube_scheduler=kube_scheduler,
        probes=Probes(watch=watch, leadership=leadership, certified=certified, kube_scheduler=kube_scheduler),
    )


def _leads_and_sees_all(leadership: Leadership, watch: ClusterWatch) -> bool:
    return leadership.leads() and not watch.missing()  # a node that is not listed yet is not gone


def now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - the program's clock
