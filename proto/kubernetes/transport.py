"""Sends requests to the API server with its credentials, and makes errors of what it refuses (edge of aiohttp)."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import aiohttp

from proto.kubernetes.connections import Connections, Pool, Reply, read_reply
from proto.kubernetes.errors import ApiError, ApiServerUnconfigured, ApiUnreachable, refusal
from proto.kubernetes.kubeconfig import Configure
from proto.kubernetes.objects import Status
from proto.kubernetes.official import ConfigException
from proto.kubernetes.wire import NotJson, UnreadableObject, decode_object
from proto.shortening import shortened

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
        self._connections = Connections(configuration)
        self._configure = configure
        self._timeout_seconds = timeout_seconds
        self._user_agent = user_agent

    async def close(self) -> None:
        await self._connections.close()

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
        send = partial(self._send, method, path, pool=pool, body=body, content_type=content_type)
        try:
            async with asyncio.timeout(timeout_seconds or self._timeout_seconds):
                reply = await send()
                if reply.status == 401:
                    await self._configure()
                    reply = await send()
        except _NO_ANSWER as error:
            raise self.unreachable(error) from error
        # Log neither body: they may hold private keys.
        log.debug("%s %s: %d", method, path, reply.status)
        if not 200 <= reply.status < 300:
            raise _error_of(reply)
        return reply.body

    async def _send(
        self, method: str, path: str, *, pool: Pool, body: Mapping[str, object] | None, content_type: str
    ) -> Reply:
        headers = await self._headers(content_type)
        return await self._connections.call(pool, method, self.url + path, headers=headers, body=body)

    @asynccontextmanager
    async def following(
        self, path: str, *, timeout: aiohttp.ClientTimeout, headers_seconds: float | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yields an answer with status 2xx, its body unread; everything else becomes ApiError or ApiUnreachable."""
        response: aiohttp.ClientResponse | None = None
        try:
            async with asyncio.timeout(headers_seconds):
                response = await self._connections.follow(self.url + path, await self._headers(), timeout)
                if response.status == 401:
                    response.release()
                    await self._configure()
                    response = await self._connections.follow(self.url + path, await self._headers(), timeout)
                log.debug("GET %s: %d", path, response.status)
                if not 200 <= response.status < 300:
                    raise _error_of(await read_reply(response))
            yield response
        except NotJson as error:
            raise self.unusable(error) from error
        except _NO_ANSWER as error:
            raise self.unreachable(error) from error
        finally:
            if response is not None:
                response.release()

    async def _headers(self, content_type: str = "application/json") -> dict[str, str]:
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
    reason, message = shortened(status.reason or reply.reason, 100), shortened(status.message, _LONGEST_MESSAGE)
    return refusal(reply.status, reason, message, wait)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
