"""Reads the bodies of lists and watches, within bounds (edge of aiohttp)."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp

from proto.kubernetes.wire import NotJson

LARGEST_PAGE_BYTES = 4 * 1024 * 1024
"""A longer page is requested again with fewer objects. A single object may be longer: etcd stores 1.5 MiB of it."""

LONGEST_LINE_BYTES = 16 * 1024 * 1024
"""Ten times what etcd stores of one object; a longer line is not a watch event."""


async def read_page(content: aiohttp.StreamReader, most_bytes: int | None) -> bytearray | None:
    """Returns the whole body; None as soon as it is longer. Raises what aiohttp raises."""
    body = bytearray()
    async for part in content.iter_any():
        body += part
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
        if len(pending) > LONGEST_LINE_BYTES:
            raise NotJson(f"a watch event is longer than {LONGEST_LINE_BYTES} bytes")
    if pending.strip():
        raise aiohttp.ClientPayloadError("the watch ended in the middle of an event")
