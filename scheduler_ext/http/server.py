"""Serves the extender over HTTP (edge of aiohttp)."""

from contextlib import suppress

from aiohttp import web
from aiohttp.typedefs import Handler

from scheduler_ext.http.messages import (
    LARGEST_BODY_BYTES,
    Endpoint,
    Endpoints,
    HttpRequest,
    Routes,
    answered,
    is_local,
    text_answer,
    too_large,
)

_FOR_THIS_HOST = "only callers on the same host get an answer: kube-scheduler in the same pod, or kubectl port-forward"


def application(endpoints: Endpoints) -> web.Application:
    """Returns a server. Callers on other hosts get nothing private."""

    async def finish(_: web.Application) -> None:
        await endpoints.finish()

    served = web.Application(client_max_size=LARGEST_BODY_BYTES)
    served.on_shutdown.append(finish)
    served.add_routes([*web_routes(endpoints.public), *web_routes(endpoints.private, private=True)])
    return served


def web_routes(routes: Routes, *, private: bool = False) -> list[web.RouteDef]:
    adders = {"GET": web.get, "POST": web.post}
    by_path = ((path, method, endpoint) for path, methods in routes.items() for method, endpoint in methods.items())
    return [adders[method](path, _handler(endpoint, private=private)) for path, method, endpoint in by_path]


def _handler(endpoint: Endpoint, *, private: bool) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        if private and not is_local(request.remote):
            given = text_answer(_FOR_THIS_HOST, 403)
        else:
            try:
                given = await answered(endpoint, HttpRequest(await request.read(), request.query))
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
