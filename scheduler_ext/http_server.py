"""The extender's verbs over HTTP, as kube-scheduler speaks them."""

import logging
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler

from proto.extender import (
    BindingArgs,
    BindingResult,
    ExtenderArgs,
    ExtenderError,
    FilterResult,
    decode_binding_args,
    decode_extender_args,
    encode_binding_result,
    encode_filter_result,
)
from proto.kubernetes.events import EventRecorder
from proto.kubernetes.notices import Notice
from proto.kubernetes.objects import ObjectReference
from scheduler_ext.apiserver import ClusterWatch, pod_reference
from scheduler_ext.binding.bind import Binder
from scheduler_ext.binding.filtering import Filtered, passed_through, refused, request_of, reserve, simulate
from scheduler_ext.binding.view import pod_name
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.requests import GpuRequest, RequestSettings
from scheduler_ext.settings import ServeSettings

log = logging.getLogger(__name__)

LARGEST_BODY_BYTES = 64 * 1024 * 1024


class Extender:
    """Answers from memory; only a bind waits for the API server."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        watch: ClusterWatch,
        binder: Binder,
        events: EventRecorder,
        requests: RequestSettings,
        settings: ServeSettings,
        monotonic: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._watch = watch
        self._binder = binder
        self._events = events
        self._requests = requests
        self._settings = settings
        self._monotonic = monotonic

    def application(self) -> web.Application:
        application = web.Application(client_max_size=LARGEST_BODY_BYTES, middlewares=[_bad_requests])
        application.add_routes(
            [
                web.post("/filter", self._filter),
                web.post("/bind", self._bind),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
            ]
        )
        return application

    async def _filter(self, request: web.Request) -> web.Response:
        args = decode_extender_args(await request.read())
        answer = await self._answer(args)
        for notice in answer.notices:
            self._events.record(pod_reference(args.pod), notice)
        return _json(encode_filter_result(answer.result))

    async def _answer(self, args: ExtenderArgs) -> Filtered:
        wanted = request_of(args.pod, self._requests)
        if isinstance(wanted, Filtered):
            return wanted
        if args.nodes is None and args.node_names is None:
            return Filtered(result=FilterResult(error="neither Nodes nor NodeNames are given"))
        if wanted is None:
            return passed_through(args)
        if args.nodes is not None:
            return Filtered(result=simulate(wanted, args.nodes, self._requests))
        return await self._live(args, wanted, args.node_names or [])

    async def _live(self, args: ExtenderArgs, wanted: GpuRequest, node_names: list[str]) -> Filtered:
        if not await self._watch.wait_until_synced(self._settings.sync_wait_seconds):
            return Filtered(result=FilterResult(error=self._not_ready()))
        if self._binder.is_binding(pod_name(args.pod)):
            return refused("the pod is being bound at this moment")
        return reserve(
            self._ledger,
            args.pod,
            wanted,
            node_names,
            now=self._monotonic(),
            lease_seconds=self._settings.reservation_lease_seconds,
        )

    def _not_ready(self) -> str:
        return f"not ready: the API server has not listed {', '.join(self._watch.missing())} yet"

    async def _bind(self, request: web.Request) -> web.Response:
        args = decode_binding_args(await request.read())
        if not await self._watch.wait_until_synced(self._settings.sync_wait_seconds):
            missing = ", ".join(self._watch.missing())
            return _json(
                encode_binding_result(BindingResult(f"not ready: the API server has not listed {missing} yet"))
            )
        problem = await self._binder.bind(args)
        self._events.record(_bound_reference(args), _bind_notice(args, problem))
        if problem:
            log.warning("%s", problem)
        return _json(encode_binding_result(BindingResult(problem)))

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _readyz(self, _: web.Request) -> web.Response:
        missing = self._watch.missing()
        if missing:
            return web.Response(status=503, text=f"waiting for the first list of {', '.join(missing)}\n")
        return web.Response()


@web.middleware
async def _bad_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    """400 with the path of the field at fault."""
    try:
        return await handler(request)
    except ExtenderError as error:
        return web.Response(status=400, text=f"{error}\n")
    except web.HTTPRequestEntityTooLarge:
        return web.Response(status=400, text=f"$: the body is larger than {LARGEST_BODY_BYTES} bytes\n")


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


def _bound_reference(args: BindingArgs) -> ObjectReference:
    return ObjectReference(
        api_version="v1", kind="Pod", name=args.pod_name, namespace=args.pod_namespace, uid=args.pod_uid
    )


def _bind_notice(args: BindingArgs, problem: str) -> Notice:
    if problem:
        return Notice(reason="BindingFailed", message=problem)
    message = f"Successfully binding node [{args.node}] to {args.pod_namespace}/{args.pod_name}"
    return Notice(reason="BindingSucceed", message=message, warning=False)
