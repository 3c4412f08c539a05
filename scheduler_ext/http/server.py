"""Serves the extender over HTTP (edge of aiohttp).

A port on a thread of its own never makes kube-scheduler wait. Python switches threads after half a millisecond
(sys.setswitchinterval of `serve`), an event loop only after a whole answer. And TLS, the main cost of a flood, runs
outside Python's lock.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from threading import Thread

from aiohttp import web
from aiohttp.typedefs import Handler

from program.address import ListenAddress
from program.listening import Patience, serving
from scheduler_ext.http.messages import (
    LARGEST_BODY_BYTES,
    Endpoint,
    Endpoints,
    HttpRequest,
    Routes,
    answer_of,
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
                whole = request.content.is_eof()
                body = request.content.read_nowait() if whole else await request.read()
                given = await answer_of(endpoint, HttpRequest(body, request.query))
            except web.HTTPRequestEntityTooLarge:
                given = too_large()
        # The answer is sent before the event loop goes on.
        if given.afterwards is not None:
            asyncio.get_running_loop().call_soon(given.afterwards)
        return web.Response(body=given.body, status=given.status, headers={"Content-Type": given.media_type})

    return answer


SHUTDOWN_SECONDS = 5.0
"""The time for which a closing listener waits for answers under way."""
_KUBE_SCHEDULERS = Patience(most_connections=4096)


class PortTaken(Exception):
    """The address cannot be listened on. The message is one sentence."""


@asynccontextmanager
async def listening_to_kube_scheduler(endpoints: Endpoints, address: ListenAddress, flag: str) -> AsyncIterator[str]:
    """Listens as `listening` does, with room for all binds that kube-scheduler may have under way."""
    async with listening(application(endpoints), address, flag, patience=_KUBE_SCHEDULERS) as url:
        yield url


@asynccontextmanager
async def listening(
    served: web.Application,
    address: ListenAddress,
    flag: str,
    tls: ssl.SSLContext | None = None,
    *,
    patience: Patience | None = None,
) -> AsyncIterator[str]:
    """Yields the URL under which requests are served. `flag` is the setting of the address. Raises PortTaken."""
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


@asynccontextmanager
async def in_own_thread(listening: Callable[[], AbstractAsyncContextManager[str]], name: str) -> AsyncIterator[str]:
    """Runs a listener on an event loop and thread of its own. Yields and raises what `listening` does. `name` is the
    thread's.
    """
    began: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def listen() -> None:
        end = asyncio.Event()
        try:
            async with listening() as value:
                began.set_result((value, asyncio.get_running_loop(), end))
                await end.wait()
        except BaseException as error:
            if began.done():
                raise
            began.set_exception(error)

    thread = Thread(target=lambda: asyncio.run(listen()), name=name, daemon=True)
    thread.start()
    value, loop, end = await asyncio.wrap_future(began)
    try:
        yield value
    finally:
        # The loop may have ended already.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(end.set)
        await asyncio.to_thread(thread.join)
