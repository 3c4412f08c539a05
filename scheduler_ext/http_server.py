"""Serves the extender's verbs over HTTP, in the form that kube-scheduler sends and expects."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from proto.extender import (
    BindingArgs,
    BindingResult,
    ExtenderArgs,
    FilterResult,
    HostPriority,
    decode_binding_args,
    decode_extender_args,
    decode_preemption_args,
    encode_binding_result,
    encode_filter_result,
    encode_host_priorities,
    encode_preemption_result,
)
from proto.kubernetes.errors import ApiError, ApiUnreachable
from proto.kubernetes.events import EventRecorder
from proto.kubernetes.notices import Notice
from proto.kubernetes.objects import ObjectReference
from scheduler_ext.answering import Answering
from scheduler_ext.apiserver import ClusterWatch
from scheduler_ext.cluster.pod_index import PodName, pod_name, pod_reference
from scheduler_ext.debugging import Debugging, NoSuchPod
from scheduler_ext.exchange import (
    LARGEST_BODY_BYTES,
    HttpAnswer,
    HttpRequest,
    Routes,
    Verb,
    Verbs,
    answered,
    is_local,
    told,
    too_large,
)
from scheduler_ext.kube_scheduler import KubeScheduler
from scheduler_ext.leadership.lease import Leadership
from scheduler_ext.metrics import AnswerOutcome, ExtenderMetrics
from scheduler_ext.settings import ServeSettings
from scheduler_ext.verbs.binder import Binder
from scheduler_ext.verbs.filter import Filtered

log = logging.getLogger(__name__)

_FOR_THIS_HOST = "only callers on the same host get an answer: kube-scheduler in the same pod, or kubectl port-forward"


class Extender:
    """Answers from memory; only a bind waits for the API server."""

    def __init__(
        self,
        *,
        answering: Answering,
        watch: ClusterWatch,
        leadership: Leadership,
        binder: Binder,
        debugging: Debugging,
        events: EventRecorder,
        metrics: ExtenderMetrics,
        settings: ServeSettings,
        monotonic: Callable[[], float],
        certified: Callable[[], bool],
        kube_scheduler: KubeScheduler | None,
    ) -> None:
        """`certified` returns whether the webhook has a certificate to show, or there is no
        webhook.
        """
        self._answering = answering
        self._watch = watch
        self._leadership = leadership
        self._binder = binder
        self._debugging = debugging
        self._events = events
        self._metrics = metrics
        self._settings = settings
        self._monotonic = monotonic
        self._certified = certified
        self._kube_scheduler = kube_scheduler

    def verbs(self) -> Verbs:
        """Returns the verbs. kube-scheduler learns the results of its binds before its connections are closed."""
        private: Routes = {
            "/filter": {"POST": self._filter},
            "/prioritize": {"POST": self._prioritize},
            "/prioritize-without-gpus": {"POST": self._prioritize_without_gpus},
            "/preempt": {"POST": self._preempt},
            "/bind": {"POST": self._bind},
            "/debug/snapshot": {"GET": self._snapshot},
            "/debug/explain": {"GET": self._explain},
        }
        return Verbs(private=private, public=self.probes(), finish=self._binder.finish)

    def probes(self) -> Routes:
        """Returns the probes, also for a listener that kubelet can reach; these verbs' own may be out of its reach."""
        routes = {"/healthz": {"GET": self._healthz}, "/readyz": {"GET": self._readyz}}
        kube_scheduler = self._kube_scheduler
        if kube_scheduler is None:
            return routes

        async def both(_: HttpRequest) -> HttpAnswer:
            problem = await kube_scheduler.problem()
            return told(problem, 503 if problem else 200)

        return {**routes, "/healthz/kube-scheduler": {"GET": both}}

    async def _filter(self, asked: HttpRequest) -> HttpAnswer:
        began = self._monotonic()
        args = decode_extender_args(asked.body)
        answer = await self._answering.filter(args)

        def afterwards() -> None:
            self._count_filter(answer, self._monotonic() - began)
            notices = self._answering.afterwards(args.pod, answer)
            for notice in notices:
                self._events.record(pod_reference(args.pod), notice)
            if log.isEnabledFor(logging.DEBUG):
                said = "; ".join(notice.message for notice in notices) or _offered(answer.result)
                self._trace("filter", began, pod_name(args.pod), said)

        return HttpAnswer(encode_filter_result(args.as_written(answer.result)), afterwards=afterwards)

    def _trace(self, verb: str, began: float, pod: PodName, said: str) -> None:
        log.debug("/%s of pod %s took %.1f ms: %s", verb, pod, (self._monotonic() - began) * 1000, said)

    def _count_filter(self, answer: Filtered, seconds: float) -> None:
        result = answer.result
        if result.error:
            self._metrics.answered("filter", AnswerOutcome.FAILED, seconds)
            return
        fits = bool(result.node_names or result.nodes)
        self._metrics.answered("filter", AnswerOutcome.OK if fits else AnswerOutcome.REFUSED, seconds)
        if not fits and answer.choice is not None:
            self._metrics.misfits((result.failed_nodes or {}).values())
            self._metrics.misfits((result.failed_and_unresolvable_nodes or {}).values())

    async def _prioritize(self, asked: HttpRequest) -> HttpAnswer:
        return await self._prioritized(asked, self._answering.prioritize)

    async def _prioritize_without_gpus(self, asked: HttpRequest) -> HttpAnswer:
        return await self._prioritized(asked, self._answering.prioritize_without_gpus)

    async def _prioritized(
        self, asked: HttpRequest, prioritize: Callable[[ExtenderArgs], Awaitable[Sequence[HostPriority]]]
    ) -> HttpAnswer:
        began = self._monotonic()
        args = decode_extender_args(asked.body)
        scores = await prioritize(args)
        self._metrics.answered("prioritize", AnswerOutcome.OK, self._monotonic() - began)
        self._trace("prioritize", began, pod_name(args.pod), f"{len(scores)} nodes scored")
        return HttpAnswer(encode_host_priorities(scores))

    async def _preempt(self, asked: HttpRequest) -> HttpAnswer:
        began = self._monotonic()
        args = decode_preemption_args(asked.body)
        victims = await self._answering.preempt(args)
        outcome = AnswerOutcome.OK if victims else AnswerOutcome.REFUSED
        self._metrics.answered("preempt", outcome, self._monotonic() - began)
        self._trace("preempt", began, pod_name(args.pod), f"it helps on {len(victims)} of {len(args.victims)} nodes")
        return HttpAnswer(encode_preemption_result(victims))

    async def _bind(self, asked: HttpRequest) -> HttpAnswer:
        began = self._monotonic()
        args = decode_binding_args(asked.body)
        problem = await self._answering.not_ready()
        if not problem:
            problem = await self._binder.bind(args)
            self._events.record(_bound_reference(args), _bind_notice(args, problem))
        self._metrics.answered("bind", AnswerOutcome.FAILED if problem else AnswerOutcome.OK, self._monotonic() - began)
        pod = PodName(namespace=args.pod_namespace, name=args.pod_name)
        self._trace("bind", began, pod, problem or f"bound to node {args.node}")
        return HttpAnswer(encode_binding_result(BindingResult(problem)))

    async def _healthz(self, _: HttpRequest) -> HttpAnswer:
        return told("")

    async def _readyz(self, _: HttpRequest) -> HttpAnswer:
        """Answers whether the extender is ready. By default a follower is: otherwise it would block every roll-out."""
        problem = self._leadership.problem() if self._settings.readyz_requires_leader else ""
        if problem:
            return told(problem, 503)
        missing = self._watch.missing()
        if missing:
            return told(f"waiting for the first list of {', '.join(missing)}", 503)
        interrupted = self._watch.interrupted() or self._leadership.interrupted()
        if interrupted:
            return told(interrupted, 503)
        if not self._certified():
            return told("the webhook has no certificate yet; the log says why", 503)
        return told("")

    async def _snapshot(self, asked: HttpRequest) -> HttpAnswer:
        return HttpAnswer(await self._debugging.snapshot(asked.query.get("excluding", "")))

    async def _explain(self, asked: HttpRequest) -> HttpAnswer:
        name, namespace = asked.query.get("pod", ""), asked.query.get("namespace", "default")
        if not name:
            return told("name a pod: /debug/explain?pod=NAME&namespace=NAMESPACE", 400)
        try:
            return HttpAnswer(msgspec.json.encode(await self._debugging.explain(namespace, name)))
        except NoSuchPod as error:
            return told(str(error), 404)
        except (ApiError, ApiUnreachable) as error:
            return told(str(error), 502)


def application(verbs: Verbs) -> web.Application:
    """Serves an address that other hosts reach as well: they get nothing private."""

    async def finish(_: web.Application) -> None:
        await verbs.finish()

    served = web.Application(client_max_size=LARGEST_BODY_BYTES)
    served.on_shutdown.append(finish)
    served.add_routes([*web_routes(verbs.public), *web_routes(verbs.private, private=True)])
    return served


def web_routes(routes: Routes, *, private: bool = False) -> list[web.RouteDef]:
    adders = {"GET": web.get, "POST": web.post}
    by_path = ((path, method, verb) for path, methods in routes.items() for method, verb in methods.items())
    return [adders[method](path, _handler(verb, private=private)) for path, method, verb in by_path]


def _handler(verb: Verb, *, private: bool) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        if private and not is_local(request.remote):
            given = told(_FOR_THIS_HOST, 403)
        else:
            try:
                given = await answered(verb, HttpRequest(await request.read(), request.query))
            except web.HTTPRequestEntityTooLarge:
                given = too_large()
        headers = {"Content-Type": given.media_type}
        response = web.Response(body=given.body, status=given.status, headers=headers)
        # A caller that closed the connection is not an error of ours.
        with suppress(ConnectionError):
            await response.prepare(request)
            await response.write_eof()
        given.afterwards()
        return response

    return answer


def _offered(result: FilterResult) -> str:
    """Returns a short text for an answer that is not an event."""
    offered = result.node_names if result.node_names is not None else result.nodes
    return result.error or f"{len(offered or ())} nodes are offered"


def _bound_reference(args: BindingArgs) -> ObjectReference:
    return ObjectReference(
        api_version="v1", kind="Pod", name=args.pod_name, namespace=args.pod_namespace, uid=args.pod_uid
    )


def _bind_notice(args: BindingArgs, problem: str) -> Notice:
    if problem:
        return Notice(reason="BindingFailed", message=problem)
    message = f"Successfully binding node [{args.node}] to {args.pod_namespace}/{args.pod_name}"
    return Notice(reason="BindingSucceed", message=message, warning=False)
