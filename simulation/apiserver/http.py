"""Serves HTTP: turns requests into operations, and answers and refusals into JSON (edge)."""

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
import msgspec
import yaml
from aiohttp import web

from simulation.apiserver import access, apply, discovery, protobuf, tables
from simulation.apiserver.errors import (
    ApiRefusal,
    JsonObject,
    about,
    bad_request,
    invalid_object,
    not_allowed,
    not_served,
    runs_nothing,
    success,
)
from simulation.apiserver.faults import FaultPlan
from simulation.apiserver.kinds import NAMESPACE, POD
from simulation.apiserver.operations import Operations
from simulation.apiserver.routes import RecordedRequest, Target, is_true, parse_target, recorded
from simulation.apiserver.selectors import selector
from simulation.apiserver.watching import Watching
from simulation.moments import Moments

_PATCHABLE = frozenset({"", "status", "finalize", "scale"})
_CREATED_ONLY = frozenset({"binding", "eviction"})
_IN_CONTAINERS = frozenset({"attach", "ephemeralcontainers", "exec", "log", "portforward", "proxy"})


_PROXIED = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/:]+)(?::\d+)?/proxy(/.*)")
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)s")
_LONGEST_SECONDS = 60.0


@dataclass(slots=True)
class Handler:
    """Answers every request of one server."""

    operations: Operations
    watching: Watching
    faults: FaultPlan
    note: Callable[[RecordedRequest], None]
    changed: Callable[[], None]
    denied: set[access.Right]
    users: dict[str, str]
    moments: Moments[RecordedRequest]
    proxied: dict[tuple[str, str], str]
    """Addresses of programs that have a port, by namespace and name of the pod that stands for each."""
    _tasks: set[asyncio.Task[object]] = field(default_factory=set)

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        seen = recorded(request.method, request.path, request.query, request.headers)
        self.note(seen)
        await self.moments.before(seen)
        fault = self.faults.meet(seen)
        limit_seconds = _limit_seconds(request)
        if fault.latency_seconds:
            await asyncio.sleep(min(fault.latency_seconds, limit_seconds))
        if fault.latency_seconds > limit_seconds:
            return json_response(
                ApiRefusal(504, "Timeout", "request did not complete within its timeout").status(), 504
            )
        if fault.drop == "before":
            return _dropped(request)
        if fault.body:
            return web.Response(body=fault.body, content_type="application/json")
        try:
            if fault.status:
                raise fault.refusal()
            access.check(seen, self.denied)
            behind = self._behind_proxy(request)
            answer = await (_fetched(behind) if behind else self._answer(request, stall=fault.stall))
        except ApiRefusal as e:
            answer = json_response(e.status(), e.code)
        finally:
            self.changed()
        await self.moments.after(seen)
        return _dropped(request) if fault.drop == "after" else answer

    def _behind_proxy(self, request: web.Request) -> str:
        """Returns the address that a GET of `pods/proxy` leads to; empty for other requests."""
        found = _PROXIED.fullmatch(request.path)
        if found is None or request.method != "GET":
            return ""
        address = self.proxied.get((found[1], found[2]), "")
        return address and address + found[3]

    async def _answer(self, request: web.Request, *, stall: bool) -> web.StreamResponse:
        if access.is_review(request.path) and request.method == "POST":
            question = _object(await _body(request))
            return json_response(access.review(request.path, question, self.denied, self.users), 201)
        target = parse_target(request.path)
        if target is None:
            return _document(request)
        _check_served(request.method, target)
        if request.method == "GET":
            return await self._read(request, target, stall=stall)
        body = await _body(request)
        self.operations.warnings.clear()
        answer = {"POST": self._post, "DELETE": self._delete}.get(request.method, self._write)
        response = answer(request, target, body)
        for warning in self.operations.warnings:
            response.headers.add("Warning", f"299 - {json.dumps(warning)}")
        return response

    async def _read(self, request: web.Request, target: Target, *, stall: bool) -> web.StreamResponse:
        query = request.query
        if target.name:
            return self._shown(request, target, [self.operations.get(target)], single=True)
        chosen = selector(target.kind, labels=query.get("labelSelector", ""), fields=query.get("fieldSelector", ""))
        if is_true(query.get("watch", "")):
            return await self.watching.stream(request, target, chosen, as_table=_wants_table(request), stall=stall)
        page = self.operations.page(
            target,
            chosen,
            limit=max(number(query.get("limit", ""), "limit"), 0),
            continue_=query.get("continue", ""),
            version=self._exact_version(query),
        )
        metadata: JsonObject = {"resourceVersion": str(page.version)}
        if page.continue_:
            metadata |= {"continue": page.continue_}
            # With a selector the real server does not count what remains.
            if not query.get("labelSelector") and not query.get("fieldSelector"):
                metadata["remainingItemCount"] = page.remaining
        return self._shown(request, target, page.items, metadata=metadata)

    def _exact_version(self, query: Mapping[str, str]) -> int | None:
        """The version whose state is wanted; None for the latest, which any other version requests as well."""
        version, match = number(query.get("resourceVersion", ""), "resourceVersion"), query.get("resourceVersionMatch")
        if match and not version:
            problem = "resourceVersionMatch is forbidden unless resourceVersion is provided"
            raise invalid_object("ListOptions", "meta.k8s.io", "", f"resourceVersionMatch: Forbidden: {problem}")
        self.operations.check_reached(version)
        return version if match == "Exact" else None

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
            about_all = metadata or {"resourceVersion": items[0]["metadata"]["resourceVersion"]}
            return json_response(tables.table(target.kind, items, self.operations.now()) | {"metadata": about_all})
        if single:
            return json_response(items[0])
        kind = target.kind
        # The list has the kind of its items once.
        bare = [{key: value for key, value in item.items() if key not in {"kind", "apiVersion"}} for item in items]
        listed = {"kind": f"{kind.kind}List", "apiVersion": kind.group_version, "metadata": metadata, "items": bare}
        return json_response(listed)

    def _post(self, request: web.Request, target: Target, body: object) -> web.Response:
        content = _object(body)
        if target.subresource == "binding":
            name = str((content.get("metadata") or {}).get("name", ""))
            if target.name not in {"", name}:
                raise bad_request("name in URL does not match name in Binding object")
            if not _dry_run(request):
                self.operations.bind(Target(kind=POD, namespace=target.namespace, name=name), content)
            return json_response(success(code=201), 201)
        if target.subresource == "eviction":
            self.operations.evict(target, content, dry_run=_dry_run(request))
            return json_response(success(code=201), 201)
        return json_response(self.operations.create(target, content, dry_run=_dry_run(request)), 201)

    def _write(self, request: web.Request, target: Target, body: object) -> web.Response:
        if request.method == "PUT":
            return json_response(self.operations.update(target, _object(body), dry_run=_dry_run(request)))
        if request.content_type == apply.MEDIA_TYPE:
            manager = request.query.get("fieldManager", "")
            item, is_new = self.operations.apply(target, _object(body), manager, dry_run=_dry_run(request))
            return json_response(item, 201 if is_new else 200)
        return json_response(self.operations.patch(target, body, request.content_type, dry_run=_dry_run(request)))

    def _delete(self, request: web.Request, target: Target, body: object) -> web.Response:
        options = _object(body) if body is not None else {}
        if "gracePeriodSeconds" in request.query:
            options = options | {
                "gracePeriodSeconds": number(request.query["gracePeriodSeconds"], "gracePeriodSeconds")
            }
        if "propagationPolicy" in request.query:
            options = options | {"propagationPolicy": request.query["propagationPolicy"]}
        if not target.name:
            return self._delete_collection(request, target, options)
        item, gone = self.operations.delete(target, options, dry_run=_dry_run(request))
        if target.kind is NAMESPACE and gone and not _dry_run(request):
            self.operations.empty_namespace(target.name)
        metadata = item["metadata"]
        if gone and target.kind is not POD:
            return json_response(success(about(target.kind, metadata["name"]) | {"uid": metadata["uid"]}))
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


async def _fetched(url: str) -> web.Response:
    """Returns what the program behind a pod's port answers."""
    try:
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return web.Response(body=await answer.read(), status=answer.status, content_type=answer.content_type)
    except aiohttp.ClientError as error:
        raise ApiRefusal(503, "ServiceUnavailable", f"error trying to reach service: {error}") from error


def json_response(content: object, status: int = 200) -> web.Response:
    headers = {"Retry-After": "1"} if status == 429 else {}
    return web.Response(
        body=msgspec.json.encode(content), status=status, content_type="application/json", headers=headers
    )


def number(text: str, field_name: str) -> int:
    """Returns a whole number of the query; empty is 0."""
    if not text:
        return 0
    if not text.removeprefix("-").isdigit():
        raise bad_request(f"{field_name}: Invalid value: {text!r}: expected a whole number")
    return int(text)


def _check_served(method: str, target: Target) -> None:
    """Raises 404 for an unknown subresource, 405 for what cannot be done to the place in the URL."""
    part = target.subresource
    if target.kind is POD and part in _IN_CONTAINERS:
        raise runs_nothing(part)
    if part not in _PATCHABLE and not (part in _CREATED_ONLY and target.kind is POD):
        raise not_served()
    if part == "scale" and not target.kind.scales:
        raise not_served()
    places = {
        "GET": part not in _CREATED_ONLY,
        "POST": part in _CREATED_ONLY or (not target.name and bool(target.namespace) is target.kind.namespaced),
        "PUT": bool(target.name) and part in _PATCHABLE,
        "PATCH": bool(target.name) and part in _PATCHABLE,
        "DELETE": not part,
    }
    if not places.get(method):
        raise not_allowed()


def _document(request: web.Request) -> web.Response:
    if request.path in {"/healthz", "/livez", "/readyz"}:
        return web.Response(text="ok")
    found = discovery.document(request.path.rstrip("/"))
    if found is None and not discovery.is_served(request.path):
        return web.Response(text="404 page not found\n", status=404)
    if found is None:
        raise not_served()
    if request.method != "GET":
        raise not_allowed()
    return json_response(found)


async def _body(request: web.Request) -> object:
    raw = await request.read()
    if not raw:
        return None
    if request.content_type == protobuf.MEDIA_TYPE:
        return protobuf.decoded(raw)
    if request.method != "PATCH" and request.content_type not in {"application/json", "application/octet-stream"}:
        accepted = f"application/json, {protobuf.MEDIA_TYPE}"
        problem = f"the body of the request was in an unknown format - accepted media types include: {accepted}"
        raise ApiRefusal(415, "UnsupportedMediaType", problem)
    try:
        return yaml.safe_load(raw) if request.content_type == apply.MEDIA_TYPE else msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, yaml.YAMLError) as e:
        form = "YAML" if request.content_type == apply.MEDIA_TYPE else "JSON"
        raise bad_request(f"the body of the request is not {form}: {e}") from e


def _object(body: object) -> JsonObject:
    if not isinstance(body, dict):
        raise bad_request("the body of the request must be a JSON object")
    return body


def _dry_run(request: web.Request) -> bool:
    value = request.query.get("dryRun", "")
    if value not in {"", "All"}:
        options = {"POST": "Create", "PUT": "Update", "PATCH": "Patch", "DELETE": "Delete"}[request.method]
        problem = f'dryRun: Unsupported value: ["{value}"]: supported values: "All"'
        raise invalid_object(f"{options}Options", "meta.k8s.io", "", problem)
    return bool(value)


def _wants_table(request: web.Request) -> bool:
    first = request.headers.get("Accept", "").partition(",")[0].replace(" ", "")
    return "as=Table" in first and "v=v1" in first.split(";")


def _dropped(request: web.Request) -> web.Response:
    """Cuts the connection: the client sees it end without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _limit_seconds(request: web.Request) -> float:
    """Returns the seconds of `timeout` for a request that is no watch, in the one form that is used: `10s`."""
    written = _SECONDS.fullmatch(request.query.get("timeout", ""))
    return min(float(written[1]), _LONGEST_SECONDS) if written else _LONGEST_SECONDS
