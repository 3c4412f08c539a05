"""Connections to one API server, in pools: requests that wait in one pool do not delay another (edge).

A peer may vanish without closing a connection: a host loses power, or a load balancer forgets a flow. So every
connection has TCP keepalive.
"""

import asyncio
import socket
import ssl
from enum import Enum, auto
from typing import Any

import aiohttp
import msgspec

from proto.kubernetes.calls import Calls, Reply

KEEPALIVE_SECONDS = 15
"""An idle connection is probed after this many seconds."""
KEEPALIVE_PROBE_SECONDS = 5
"""Further probes have this interval."""
DEAD_SECONDS = 30
"""The connection is closed when no probe and no data was acknowledged for this long."""

_SOCKET_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_PROBE_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, (DEAD_SECONDS - KEEPALIVE_SECONDS) // KEEPALIVE_PROBE_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_SECONDS * 1000),
)
_READ_BUFFER_BYTES = 2**21
"""The read buffer of a connection: a watch event may be longer than aiohttp's limit for a line."""


class Pool(Enum):
    """The purpose of a request."""

    FOLLOWING = auto()
    """Lists and watches: few, and everything depends on them."""
    BINDINGS = auto()
    """Bindings: kube-scheduler binds any number of pods at once, and each waits for the API server."""
    EVENTS = auto()
    OTHER = auto()


MOST = {Pool.FOLLOWING: 0, Pool.BINDINGS: 1000, Pool.EVENTS: 4, Pool.OTHER: 100}
"""Connections at once; 0 is no limit."""
_IDLE_SECONDS = {Pool.FOLLOWING: 3.0}
"""A watch that resumes after a silence must not reuse the same, perhaps dead, connection."""


class Connections:
    """All pools of one client; made and closed on its event loop."""

    def __init__(self, configuration: Any) -> None:
        """Opens nothing yet. A Configuration has the certificates, the name to expect in them, and the proxy.

        Raises SSLError, OSError and ValueError where its certificates cannot be used.
        """
        tls, proxy = _tls(configuration), configuration.proxy
        self._url: str = configuration.host
        self._settings: dict[str, Any] = {"proxy": proxy, "proxy_headers": configuration.proxy_headers}
        if configuration.tls_server_name:
            self._settings["server_hostname"] = configuration.tls_server_name
        by_aiohttp = Pool if proxy else (Pool.FOLLOWING,)
        self._sessions = {pool: _session(pool, tls) for pool in by_aiohttp}
        self._calls = {
            pool: Calls(
                self._url,
                tls,
                configuration.tls_server_name,
                _SOCKET_OPTIONS,
                most=MOST[pool],
                idle_seconds=_idle_seconds(pool),
            )
            for pool in Pool
            if pool not in self._sessions
        }

    async def call(self, pool: Pool, method: str, path: str, *, headers: dict[str, str], body: object) -> Reply:
        """Sends a short request and returns the whole answer. `body` None sends none. Raises OSError, and what aiohttp
        raises.
        """
        data = None if body is None else msgspec.json.encode(body)
        if pool in self._calls:
            return await self._calls[pool].send(method, path, headers, data)
        timeout = aiohttp.ClientTimeout()
        asking = self._sessions[pool].request(
            method, self._url + path, headers=headers, data=data, timeout=timeout, **self._settings
        )
        async with asking as response:
            return await read_reply(response)

    async def follow(self, url: str, headers: dict[str, str], timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """Sends a list or watch request; the body is still unread. Raises what aiohttp raises."""
        session = self._sessions[Pool.FOLLOWING]
        return await session.get(url, headers=headers, timeout=timeout, **self._settings)

    async def close(self) -> None:
        for calls in self._calls.values():
            calls.close()
        await asyncio.gather(*(session.close() for session in self._sessions.values()))


async def read_reply(response: aiohttp.ClientResponse) -> Reply:
    """Raises what aiohttp raises."""
    retry_after = response.headers.get("Retry-After", "")
    return Reply(response.status, await response.read(), response.reason or "", retry_after)


def _tls(configuration: Any) -> ssl.SSLContext:
    """Builds the TLS context as the official client does. Without TLS it trusts no certificate: to read the system's
    certificates takes 30 ms and 2 MiB.
    """
    if configuration.host.startswith("http://"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data)
    if configuration.cert_file:
        tls.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    if configuration.disable_strict_ssl_verification:
        tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return tls


def _idle_seconds(pool: Pool) -> float:
    return _IDLE_SECONDS.get(pool, 15.0)


def _session(pool: Pool, tls: ssl.SSLContext) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        limit=MOST[pool], keepalive_timeout=_idle_seconds(pool), ssl=tls, socket_factory=_socket
    )
    # By default aiohttp looks for proxies and passwords on disk, in two threads, before every request.
    return aiohttp.ClientSession(connector=connector, trust_env=False, read_bufsize=_READ_BUFFER_BYTES)


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    for level, option, value in _SOCKET_OPTIONS:
        made.setsockopt(level, option, value)
    return made
