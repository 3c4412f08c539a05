"""Sends requests to the API server with its credentials, and makes errors of what it refuses (edge of aiohttp)."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from proto.decoding import shortened
from proto.kubernetes.calls import Reply
from proto.kubernetes.connections import Pool, binding_calls, read_answer, request_settings, sessions
from proto.kubernetes.errors import ApiError, ApiServerUnconfigured, ApiUnreachable, refusal
from proto.kubernetes.kubeconfig import Configure
from proto.kubernetes.objects import Status
from proto.kubernetes.official import ConfigException
from proto.kubernetes.wire import NotJson, UnreadableObject, decode_object

log = logging.getLogger(__name__)

_LONGEST_MESSAGE = 4096
"""A refusal may quote the whole object."""
_NO_ANSWER = (aiohttp.ClientError, ConfigException, ApiServerUnconfigured, TimeoutError, OSError)


class Transport:
    """The connections to one API server. After a 401 the credentials are read again, once."""

    def __init__(self, configuration: Any, configure: Configure, *, timeout_seconds: float, user_agent: str) -> None:
        """Raises SSLError, OSError and ValueError where the certificates cannot be used."""
        self.url: str = configuration.host
        self._configuration = configuration
        self._sessions, self._settings = sessions(configuration), request_settings(configuration)
        self._bindings = binding_calls(configuration)
        self._configure = configure
        self._timeout_seconds = timeout_seconds
        self._user_agent = user_agent
        self._is_closed = False

    async def close(self) -> None:
        self._is_closed = True
        if self._bindings is not None:
            self._bindings.close()
        await asyncio.gather(*(session.close() for session in self._sessions.values()))

    @contextmanager
    def _unless_closed(self) -> Iterator[None]:
        """Raises ClientConnectionError after `close`. aiohttp raises RuntimeError then, and cancels what waits for a
        connection.
        """
        try:
            yield
        except (RuntimeError, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if not self._is_closed or (task is not None and task.cancelling()):
                raise
            raise aiohttp.ClientConnectionError("the client was closed") from error

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, object] | None = None,
        content_type: str = "application/json",
        pool: Pool = Pool.OTHER,
        timeout_seconds: float | None = None,
    ) -> bytes:
        """Sends a short request, and returns the whole answer. After a lost connection aiohttp repeats a GET once, but
        no POST or PATCH.
        """
        data = None if body is None else msgspec.json.encode(body)
        send = partial(self._send, pool, method, path, content_type, data)
        try:
            async with asyncio.timeout(timeout_seconds or self._timeout_seconds):
                with self._unless_closed():
                    reply = await send()
                    if reply.status == HTTPStatus.UNAUTHORIZED:
                        await self._configure()
                        reply = await send()
        except _NO_ANSWER as error:
            raise self.unreachable(error) from error
        # Log neither body: they may hold private keys.
        log.debug("%s %s: %d", method, path, reply.status)
        if not 200 <= reply.status < 300:
            raise _error_of(reply)
        return reply.body

    async def _send(self, pool: Pool, method: str, path: str, content_type: str, data: bytes | None) -> Reply:
        """Raises OSError, and what aiohttp raises."""
        if pool is Pool.BINDINGS and self._bindings is not None:
            return await self._bindings.send(method, path, await self._headers(content_type), data or b"")
        async with await self._open(pool, method, path, content_type=content_type, data=data) as response:
            return await read_answer(response)

    @asynccontextmanager
    async def streaming(
        self, path: str, *, timeout: aiohttp.ClientTimeout, headers_seconds: float | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yields an answer with status 2xx, its body unread; everything else becomes ApiError or ApiUnreachable."""
        response: aiohttp.ClientResponse | None = None
        try:
            async with asyncio.timeout(headers_seconds):
                with self._unless_closed():
                    response = await self._open(Pool.FOLLOWING, "GET", path, timeout=timeout)
                    if response.status == HTTPStatus.UNAUTHORIZED:
                        response.release()
                        await self._configure()
                        response = await self._open(Pool.FOLLOWING, "GET", path, timeout=timeout)
                log.debug("GET %s: %d", path, response.status)
                if not 200 <= response.status < 300:
                    raise _error_of(await read_answer(response))
            yield response
        except NotJson as error:
            raise self.unusable(error) from error
        except _NO_ANSWER as error:
            raise self.unreachable(error) from error
        finally:
            if response is not None:
                response.release()

    async def _open(
        self, pool: Pool, method: str, path: str, *, content_type: str = "application/json", **request: Any
    ) -> aiohttp.ClientResponse:
        """Returns an answer, its body unread. Raises what aiohttp raises."""
        url, headers = URL(self.url + path, encoded=True), await self._headers(content_type)
        return await self._sessions[pool].request(method, url, headers=headers, **request, **self._settings)

    async def _headers(self, content_type: str) -> dict[str, str]:
        headers = {"Accept": "application/json", "Content-Type": content_type, "User-Agent": self._user_agent}
        credentials = (await self._configuration.auth_settings()).get("BearerToken")
        if credentials is None:
            return headers
        if not credentials["value"].isprintable():
            raise ConfigException("the token holds a line break: check the credentials")
        return headers | {credentials["key"]: credentials["value"]}

    def unreachable(self, error: Exception) -> ApiUnreachable:
        return ApiUnreachable(f"the API server {self.url} cannot be reached: {_reason(error)}")

    def unusable(self, error: Exception) -> ApiUnreachable:
        return ApiUnreachable(f"{self.url} does not answer as an API server: {error}")


def _error_of(reply: Reply) -> ApiError:
    try:
        status = decode_object(Status, reply.body)
    except (NotJson, UnreadableObject):
        text = " ".join(reply.body[:200].decode(errors="replace").split())
        status = Status(message=text or "no explanation")
    wait = float(reply.retry_after) if reply.retry_after.isascii() and reply.retry_after.isdigit() else None
    reason = shortened(status.reason or reply.reason, 100)
    return refusal(reply.status, reason, shortened(status.message, _LONGEST_MESSAGE), wait)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
