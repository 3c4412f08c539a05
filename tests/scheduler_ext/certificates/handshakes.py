"""What a listener shows to a client that trusts certain authorities."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

HOST = "127.0.0.1"


@asynccontextmanager
async def served(context: ssl.SSLContext) -> AsyncIterator[int]:
    """The port of a listener that says `served`."""

    async def say(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"served")
        writer.close()

    server = await asyncio.start_server(say, HOST, 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def trusts(authorities: bytes, port: int, name: str = HOST) -> bool:
    """Whether a client that trusts these gets its answer from the server called `name`."""
    context = ssl.create_default_context(cadata=authorities.decode())
    try:
        reader, writer = await asyncio.open_connection(HOST, port, ssl=context, server_hostname=name)
    except (ssl.SSLError, ConnectionError):
        return False
    try:
        return await reader.read() == b"served"
    finally:
        writer.close()
