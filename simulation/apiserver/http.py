"""HTTP towards clients: requests into operations, answers and refusals into JSON (edge)."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from simulation.apiserver import access, discovery, tables
from simulation.apiserver.errors import ApiRefusal, JsonObject, bad_request, success
from simulation.apiserver.faults import FaultPlan
from simulation.apiserver.kinds import NAMESPACE, POD
from simulation.apiserver.operations import Operations
from simulation.apiserver.routes import RecordedRequest, Target, is_true, parse_target, recorded
from simulation.apiserver.selectors import selector
from simulation.apiserver.watching import Watching

_JSON_TYPES = ("application/json", "application/merge-patch+json", "application/json-patch+json")


@dataclass(slots=True)
class Handler:
    """Answers every request of one server."""

    operations: Operations
    watching: Watching
    faults: FaultPlan
    note: Callable[[RecordedRequest], None]
    changed: Callable[[], None]
    denied: set[access.Right]
    _tasks: set[asyncio.Task[object]] = field(default_factory=set)

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        seen = recorded(request.method, request.path, request.query, request.headers.get("User-Agent", ""))
        self.note(seen)
        fault = self.faults.meet(seen)
        if fault.latency_seconds:
            await asyncio.sleep(fault.latency_seconds)
        if fault.drop == "before":
            return _dropped(request)
        if fault.body:
            return web.Response(body=fault.body, content_type="application/json")
        try:
            if fault.status:
                raise fault.refusal()
            access.check(seen, self.denied)
            answer = await self._answer(request, stall=fault.stall)
        except ApiRefusal as e:
            answer = json_response(e.status(), e.code)
        finally:
            self.changed()
        return _dropped(request) if fault.drop == "after" else answer

    async def _answer(self, request: web.Request, *, stall: bool) -> web.StreamResponse:
        if request.path == access.REVIEWS and request.method == "POST":
            return json_response(access.review(_object(await _body(request)), self.denied), 201)
        target = parse_target(request.path)
        if target is None:
            return _document(request)
        if request.method == "GET":
            return await self._read(request, target, stall=stall)
        body = await _body(request)
        if request.method == "POST":
            return self._post(request, target, body)
        if request.method == "DELETE":
            return self._delete(request, target, body)
        return self._write(request, target, body)

    async def _read(self, request: web.Request, target: Target, *, stall: bool) -> web.StreamResponse:
        query = request.query
        if target.name and target.subresource not in {"", "status"}:
            raise ApiRefusal(404, "NotFound", f"{target.kind.plural}/{target.subresource} is not served here")
        if target.name and not is_true(query.get("watch", "")):
            return self._shown(request, target, [self.operations.get(target)], single=True)
        chosen = selector(target.kind, labels=query.get("labelSelector", ""), fields=query.get("fieldSelector", ""))
        if is_true(query.get("watch", "")):
            return await self.watching.stream(request, target, chosen, as_table=_wants_table(request), stall=stall)
        exact = query.get("resourceVersionMatch") == "Exact"
        page = self.operations.page(
            target,
            chosen,
            limit=number(query.get("limit", ""), "limit"),
            continue_=query.get("continue", ""),
            version=number(query.get("resourceVersion", ""), "resourceVersion") if exact else None,
        )
        metadata: JsonObject = {"resourceVersion": str(page.version)}
        if page.continue_:
            metadata |= {"continue": page.continue_}
            # With a selector the real server does not count what remains.
            if not query.get("labelSelector") and not query.get("fieldSelector"):
                metadata["remainingItemCount"] = page.remaining
        return self._shown(request, target, page.items, metadata=metadata)

    def _shown(
        self,
        request: web.Request,
        target: Target,
        items: list[JsonObject],
        *,
        metadata: JsonObject | None = None,
        single: bool = False,
    ) -> web.Response:
        if _wants_table(request):
            return json_response(tables.table(target.kind, items, self.operations.now()) | {"metadata": metadata or {}})
        if single:
            return json_response(items[0])
        kind = target.kind
        listed = {"kind": f"{kind.kind}List", "apiVersion": kind.group_version, "metadata": metadata, "items": items}
        return json_response(listed)

    def _post(self, request: web.Request, target: Target, body: object) -> web.Response:
        content = _object(body)
        if target.kind is POD and target.subresource == "binding":
            name = target.name or str((content.get("metadata") or {}).get("name", ""))
            pod = Target(kind=POD, namespace=target.namespace, name=name)
            if not _dry_run(request):
                self.operations.bind(pod, content)
            return json_response(success("pods", name) | {"code": 201}, 201)
        if target.kind is POD and target.subresource == "eviction":
            self.operations.delete(target, content.get("deleteOptions") or {}, dry_run=_dry_run(request))
            return json_response(success("pods", target.name) | {"code": 201}, 201)
        if target.name:
            raise ApiRefusal(
                405, "MethodNotAllowed", "objects are created at their collection, without a name in the URL"
            )
        if target.kind.namespaced and not target.namespace:
            raise bad_request("an object of this kind is created in a namespace")
        return json_response(self.operations.create(target, content, dry_run=_dry_run(request)), 201)

    def _write(self, request: web.Request, target: Target, body: object) -> web.Response:
        if not target.name or target.subresource not in {"", "status", "finalize"}:
            raise ApiRefusal(405, "MethodNotAllowed", f"{request.method} is not served at {request.path}")
        if request.method == "PUT":
            return json_response(self.operations.update(target, _object(body), dry_run=_dry_run(request)))
        if request.method != "PATCH":
            raise ApiRefusal(405, "MethodNotAllowed", f"{request.method} is not served at {request.path}")
        return json_response(self.operations.patch(target, body, request.content_type, dry_run=_dry_run(request)))

    def _delete(self, request: web.Request, target: Target, body: object) -> web.Response:
        options = _object(body) if body is not None else {}
        if "gracePeriodSeconds" in request.query:
            options = options | {
                "gracePeriodSeconds": number(request.query["gracePeriodSeconds"], "gracePeriodSeconds")
            }
        if not target.name:
            return self._delete_collection(request, target, options)
        item, gone = self.operations.delete(target, options, dry_run=_dry_run(request))
        if target.kind is NAMESPACE and gone and not _dry_run(request):
            self.operations.empty_namespace(target.name)
        metadata = item["metadata"]
        if gone and target.kind is not POD:
            return json_response(success(target.kind.plural, metadata["name"], metadata["uid"]))
        return json_response(item)

    def _delete_collection(self, request: web.Request, target: Target, options: JsonObject) -> web.Response:
        chosen = selector(
            target.kind,
            labels=request.query.get("labelSelector", ""),
            fields=request.query.get("fieldSelector", ""),
        )
        page = self.operations.page(target, chosen)
        for item in page.items:
            one = Target(
                kind=target.kind, namespace=item["metadata"].get("namespace", ""), name=item["metadata"]["name"]
            )
            self.operations.delete(one, options, dry_run=_dry_run(request))
        return self._shown(request, target, page.items, metadata={"resourceVersion": str(page.version)})


def json_response(content: object, status: int = 200) -> web.Response:
    headers = {"Retry-After": "1"} if status == 429 else {}
    return web.Response(
        body=msgspec.json.encode(content), status=status, content_type="application/json", headers=headers
    )


def number(text: str, field_name: str) -> int:
    """A whole number of the query; empty is 0."""
    if not text:
        return 0
    if not text.isdigit():
        raise bad_request(f"{field_name}: Invalid value: {text!r}: expected a whole number")
    return int(text)


def _document(request: web.Request) -> web.Response:
    if request.path in {"/healthz", "/livez", "/readyz"}:
        return web.Response(text="ok")
    found = discovery.document(request.path.rstrip("/")) if request.method == "GET" else None
    if found is None:
        raise ApiRefusal(404, "NotFound", "the server could not find the requested resource")
    return json_response(found)


async def _body(request: web.Request) -> object:
    raw = await request.read()
    if not raw:
        return None
    if "protobuf" in request.content_type or "yaml" in request.content_type:
        problem = f"bodies of type {request.content_type} are not served here; send JSON"
        raise ApiRefusal(415, "UnsupportedMediaType", problem)
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise bad_request(f"the body of the request is not JSON: {e}") from e


def _object(body: object) -> JsonObject:
    if not isinstance(body, dict):
        raise bad_request("the body of the request must be a JSON object")
    return body


def _dry_run(request: web.Request) -> bool:
    return request.query.get("dryRun") == "All"


def _wants_table(request: web.Request) -> bool:
    first = request.headers.get("Accept", "").partition(",")[0].replace(" ", "")
    return "as=Table" in first and "v=v1" in first.split(";")


def _dropped(request: web.Request) -> web.Response:
    """Cuts the connection: the client sees it end without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
