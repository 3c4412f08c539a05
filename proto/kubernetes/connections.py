"""Connections to one API server, in pools: requests that wait in one pool do not delay another (edge).

A peer may vanish without closing a connection: a host loses power, or a load balancer forgets a flow. So every
connection has TCP keepalive.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from enum import Enum, auto
from typing import Any

import aiohttp

from proto.kubernetes.calls import Calls, Reply
from proto.kubernetes.wire import NotJson

LARGEST_PAGE_BYTES = 4 * 1024 * 1024
"""A longer page is requested again with fewer objects. A single object may be longer: etcd stores 1.5 MiB of it."""
LARGEST_ANSWER_BYTES = 16 * 1024 * 1024
"""The longest object or watch event: ten times what etcd stores."""
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


def sessions(configuration: Any) -> Mapping[Pool, aiohttp.ClientSession]:
    """Returns the connections to one API server; none is open yet. A Configuration has the certificates.

    Raises SSLError, OSError and ValueError where its certificates cannot be used.
    """
    tls = _tls(configuration)
    return {pool: _session(pool, tls) for pool in Pool}


def binding_calls(configuration: Any) -> Calls | None:
    """Returns the connections for Bindings; none is open yet. None where a proxy stands between. Raises what `sessions`
    does.
    """
    if configuration.proxy:
        return None
    most, idle_seconds = MOST[Pool.BINDINGS], _idle_seconds(Pool.BINDINGS)
    tls, name = _tls(configuration), configuration.tls_server_name
    return Calls(configuration.host, tls, name, _socket, most=most, idle_seconds=idle_seconds)


def request_settings(configuration: Any) -> Mapping[str, Any]:
    """Returns the proxy of all requests, and the name to expect in certificates."""
    settings = {"proxy": configuration.proxy, "proxy_headers": configuration.proxy_headers, "allow_redirects": False}
    name = configuration.tls_server_name
    return settings | ({"server_hostname": name} if name else {})


async def read_answer(response: aiohttp.ClientResponse) -> Reply:
    """Raises what aiohttp raises."""
    body = await read_page(response.content, LARGEST_ANSWER_BYTES)
    if body is None:
        raise aiohttp.ClientPayloadError(f"the answer is longer than {LARGEST_ANSWER_BYTES} bytes")
    return Reply(response.status, bytes(body), response.reason or "", response.headers.get("Retry-After", ""))


async def read_page(content: aiohttp.StreamReader, most_bytes: int | None) -> bytearray | None:
    """Returns the whole body; None as soon as it is longer. Raises what aiohttp raises."""
    body = bytearray()
    while not content.at_eof():
        body += await content.readany()
        if most_bytes is not None and len(body) > most_bytes:
            return None
    return body


async def lines_of(content: aiohttp.StreamReader, silent_seconds: float, end: float) -> AsyncIterator[bytes]:
    """Yields whole lines without line ends, until `end` on the loop's clock, or after `silent_seconds` without one.
    Parts of a line do not count.

    Raises NotJson for a line that is too long, ClientPayloadError for one that is cut off.
    """
    pending = bytearray()
    now = asyncio.get_running_loop().time
    silent_at = now() + silent_seconds
    while True:
        try:
            async with asyncio.timeout_at(min(silent_at, end)):
                chunk = await content.readany()
        except TimeoutError:
            return
        if not chunk:
            break
        pending += chunk
        if b"\n" in chunk:
            *complete, rest = pending.split(b"\n")
            pending = rest
            for line in complete:
                if line.strip():
                    yield bytes(line)
                    silent_at = now() + silent_seconds
        if len(pending) > LARGEST_ANSWER_BYTES:
            raise NotJson(f"a watch event is longer than {LARGEST_ANSWER_BYTES} bytes")
    if pending.strip():
        raise aiohttp.ClientPayloadError("the watch ended in the middle of an event")


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
    # By default aiohttp looks for proxies and passwords on disk, in two threads, before every request. The caller's own
    # deadline ends a call.
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        read_bufsize=_READ_BUFFER_BYTES,
        timeout=aiohttp.ClientTimeout(),
    )


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    for level, option, value in _SOCKET_OPTIONS:
        made.setsockopt(level, option, value)
    return made
