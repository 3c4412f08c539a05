"""The extender's verbs over HTTP, as kube-scheduler speaks them."""

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from proto.extender import (
    BindingArgs,
    BindingResult,
    ExtenderError,
    FilterResult,
    decode_binding_args,
    decode_extender_args,
    decode_preemption_args,
    encode_binding_result,
    encode_filter_result,
    encode_host_priorities,
    encode_preemption_result,
)
from proto.kubernetes.client import ApiError, ApiUnreachable
from proto.kubernetes.events import EventRecorder
from proto.kubernetes.notices import Notice
from proto.kubernetes.objects import ObjectReference
from scheduler_ext.answering import Answering
from scheduler_ext.apiserver import ClusterWatch, pod_reference
from scheduler_ext.binding.bind import Binder
from scheduler_ext.binding.filtering import Filtered
from scheduler_ext.binding.lock import PodName
from scheduler_ext.binding.view import pod_name
from scheduler_ext.debugging import Debugging, NoSuchPod
from scheduler_ext.leadership.lease import Leadership
from scheduler_ext.metrics import Metrics, Outcome
from scheduler_ext.settings import ServeSettings

log = logging.getLogger(__name__)

LARGEST_BODY_BYTES = 64 * 1024 * 1024


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
        metrics: Metrics,
        settings: ServeSettings,
        monotonic: Callable[[], float],
        certified: Callable[[], bool],
    ) -> None:
        """`certified` says whether the webhook, if there is one, has a certificate to show."""
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

    def application(self) -> web.Application:
        application = web.Application(client_max_size=LARGEST_BODY_BYTES, middlewares=[_bad_requests])
        application.on_shutdown.append(self._finish_binds)
        application.add_routes(
            [
                web.post("/filter", self._filter),
                web.post("/prioritize", self._prioritize),
                web.post("/preempt", self._preempt),
                web.post("/bind", self._bind),
                *self.probes(),
                web.get("/debug/snapshot", self._snapshot),
                web.get("/debug/explain", self._explain),
            ]
        )
        return application

    def probes(self) -> list[web.RouteDef]:
        """`/healthz` and `/readyz`; also for a listener that kubelet can reach, as these verbs' need not be."""
        return [web.get("/healthz", self._healthz), web.get("/readyz", self._readyz)]

    async def _filter(self, request: web.Request) -> web.Response:
        began = self._monotonic()
        args = decode_extender_args(await request.read())
        answer = await self._answering.filter(args)
        response = _json(encode_filter_result(args.as_written(answer.result)))
        # A caller that has gone away is no error of ours.
        with suppress(ConnectionError):
            await response.prepare(request)
            await response.write_eof()
        # kube-scheduler has its answer and need not wait for the rest.
        self._count_filter(answer, self._monotonic() - began)
        notices = self._answering.afterwards(args.pod, answer)
        for notice in notices:
            self._events.record(pod_reference(args.pod), notice)
        if log.isEnabledFor(logging.DEBUG):
            said = "; ".join(notice.message for notice in notices) or _offered(answer.result)
            self._trace("filter", began, pod_name(args.pod), said)
        return response

    def _trace(self, verb: str, began: float, pod: PodName, said: str) -> None:
        log.debug("/%s of pod %s took %.1f ms: %s", verb, pod, (self._monotonic() - began) * 1000, said)

    def _count_filter(self, answer: Filtered, seconds: float) -> None:
        result = answer.result
        if result.error:
            self._metrics.answered("filter", Outcome.FAILED, seconds)
            return
        fits = bool(result.node_names or result.nodes)
        self._metrics.answered("filter", Outcome.OK if fits else Outcome.REFUSED, seconds)
        if not fits and answer.choice is not None:
            self._metrics.misfits((result.failed_nodes or {}).values())
            self._metrics.misfits((result.failed_and_unresolvable_nodes or {}).values())

    async def _prioritize(self, request: web.Request) -> web.Response:
        began = self._monotonic()
        args = decode_extender_args(await request.read())
        scores = await self._answering.prioritize(args)
        self._metrics.answered("prioritize", Outcome.OK, self._monotonic() - began)
        self._trace("prioritize", began, pod_name(args.pod), f"{len(scores)} nodes scored")
        return _json(encode_host_priorities(scores))

    async def _preempt(self, request: web.Request) -> web.Response:
        began = self._monotonic()
        args = decode_preemption_args(await request.read())
        victims = await self._answering.preempt(args)
        outcome = Outcome.OK if victims else Outcome.REFUSED
        self._metrics.answered("preempt", outcome, self._monotonic() - began)
        self._trace("preempt", began, pod_name(args.pod), f"it helps on {len(victims)} of {len(args.victims)} nodes")
        return _json(encode_preemption_result(victims))

    async def _bind(self, request: web.Request) -> web.Response:
        began = self._monotonic()
        args = decode_binding_args(await request.read())
        problem = await self._answering.not_ready()
        if not problem:
            problem = await self._binder.bind(args)
            self._events.record(_bound_reference(args), _bind_notice(args, problem))
        if problem:
            log.warning("%s", problem)
        self._metrics.answered("bind", Outcome.FAILED if problem else Outcome.OK, self._monotonic() - began)
        pod = PodName(namespace=args.pod_namespace, name=args.pod_name)
        self._trace("bind", began, pod, problem or f"bound to node {args.node}")
        return _json(encode_binding_result(BindingResult(problem)))

    async def _finish_binds(self, _: web.Application) -> None:
        """kube-scheduler is told how its binds ended before its connections are closed."""
        await self._binder.finish()

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _readyz(self, _: web.Request) -> web.Response:
        """A follower is ready by default: one that is not would hold up every roll-out."""
        problem = self._leadership.problem() if self._settings.readyz_requires_leader else ""
        if problem:
            return web.Response(status=503, text=f"{problem}\n")
        missing = self._watch.missing()
        if missing:
            return web.Response(status=503, text=f"waiting for the first list of {', '.join(missing)}\n")
        if not self._certified():
            return web.Response(status=503, text="the webhook has no certificate yet; the log says why\n")
        return web.Response()

    async def _snapshot(self, request: web.Request) -> web.Response:
        _refuse_strangers(request)
        return _json(await self._debugging.snapshot(request.query.get("excluding", "")))

    async def _explain(self, request: web.Request) -> web.Response:
        _refuse_strangers(request)
        name, namespace = request.query.get("pod", ""), request.query.get("namespace", "default")
        if not name:
            return web.Response(status=400, text="which pod? ask /debug/explain?pod=NAME&namespace=NAMESPACE\n")
        try:
            return _json(msgspec.json.encode(await self._debugging.explain(namespace, name)))
        except NoSuchPod as error:
            return web.Response(status=404, text=f"{error}\n")
        except (ApiError, ApiUnreachable) as error:
            return web.Response(status=502, text=f"{error}\n")


@web.middleware
async def _bad_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    """400 with the path of the field at fault; 403 for a verb that comes from elsewhere."""
    if request.method == "POST":
        _refuse_strangers(request)
    try:
        return await handler(request)
    except ExtenderError as error:
        return web.Response(status=400, text=f"{error}\n")
    except web.HTTPRequestEntityTooLarge:
        return web.Response(status=400, text=f"$: the body is larger than {LARGEST_BODY_BYTES} bytes\n")


def _refuse_strangers(request: web.Request) -> None:
    """What all pods hold, and get, is nobody's business outside this host, whatever address is listened on."""
    if not is_local(request.remote):
        text = "only answered to callers on the same host: kube-scheduler in the same pod, or kubectl port-forward\n"
        raise web.HTTPForbidden(text=text)


@lru_cache(maxsize=256)
def is_local(remote: str | None) -> bool:
    """Whether a caller's address is of this host's loopback, also as a listener on IPv6 sees IPv4."""
    if not remote:
        return False
    address = ip_address(remote)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


def _offered(result: FilterResult) -> str:
    """In words, of an answer that is no event."""
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
