"""What hostile clients send to a port: malformed and oversized bodies, what is no HTTP, and requests without an end."""

import asyncio
import json
import ssl
from contextlib import AsyncExitStack, suppress
from urllib.parse import urlsplit

MIB = 1024 * 1024
MALFORMED = (
    b"",
    b"{",
    b"null",
    b"[]",
    b"0",
    b'"text"',
    b"{} trailing",
    b"\xff\xfe\x00",
    b"\x00" * 64,
    b"[" * 200_000,
    b'{"Pod":' * 50_000,
    b'{"Pod": {"metadata": {"name": 7}}}',
    b'{"Pod": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": {}}}}]}}, "NodeNames": ["a"]}',
    b'{"Pod": null, "NodeNames": [null]}',
    b'{"request": {"uid": {}, "object": []}}',
    b'{"request": {"uid": "u", "operation": "CREATE", "object": {"spec": {"containers": "x"}}}}',
    b'{"PodName": "../..", "PodNamespace": "..", "PodUID": "u", "Node": "../../nodes/a?x=1#"}',
    json.dumps({"a": "b" * MIB}).encode(),
)
GARBAGE = (
    b"\x00" * 4096,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xff" * 500,
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 50_000 + b"\r\n",
    b"POST /filter HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    b"POST /filter HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"POST /filter HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / ",
    b"POST /filter HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nZZZZ\r\n",
    b"POST /filter HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)
SLOW = (
    b"",
    b"G",
    b"POST /filter HTTP/1.1\r\nHost: a\r\nX-",
    b"POST /webhook HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{",
)


async def sends(url: str, data: bytes) -> asyncio.StreamWriter | None:
    """A connection that has said `data`, by TLS where the URL does; None if it was dropped already."""
    parts = urlsplit(url)
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    with suppress(ConnectionError, ssl.SSLError):
        tls = trust if parts.scheme == "https" else None
        _, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=tls)
        writer.write(data)
        await writer.drain()
        return writer
    return None


async def hold(stack: AsyncExitStack, url: str, data: bytes, times: int) -> None:
    """So many connections that say this and nothing more, until the stack is left."""
    for writer in await asyncio.gather(*(sends(url, data) for _ in range(times))):
        if writer is not None:
            stack.callback(writer.transport.abort)
