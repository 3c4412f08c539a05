"""A relay between a client and a server, such as a load balancer or a firewall. It can fall silent (edge)."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

_CHUNK_BYTES = 65536


@dataclass(eq=False, slots=True)
class _Flow:
    silent: bool
    writers: list[asyncio.StreamWriter] = field(default_factory=list)


class Relay:
    """`async with Relay(port) as relay:` hands connections to `relay.port` of 127.0.0.1 on to `port`, byte by byte.

    A connection that fell silent is half-open: each side finds it open, what it sends is taken, and nothing comes.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._silent = False
        self._flows: set[_Flow] = set()
        self._relaying: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> "Relay":
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        await asyncio.gather(*self._relaying, return_exceptions=True)

    def silence_open(self) -> int:
        """Silences the connections that are open now. Returns how many there are."""
        for flow in self._flows:
            flow.silent = True
        return len(self._flows)

    def silence(self) -> None:
        """Nothing is carried: connections that are open stay so, and new ones are taken."""
        self._silent = True
        self.silence_open()

    def cut(self) -> None:
        """Ends the connections that are open now: both sides see it."""
        for flow in self._flows:
            for writer in flow.writers:
                writer.transport.abort()

    def restore(self) -> None:
        """New connections work again; those that fell silent stay half-open."""
        self._silent = False

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relaying = asyncio.create_task(self._relay(reader, writer))
        self._relaying.add(relaying)
        relaying.add_done_callback(self._relaying.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        flow = _Flow(self._silent, [writer])
        self._flows.add(flow)
        try:
            with suppress(OSError):
                theirs, onwards = await asyncio.open_connection("127.0.0.1", self._target)
                flow.writers.append(onwards)
                await asyncio.gather(_carry(flow, reader, onwards), _carry(flow, theirs, writer))
        finally:
            self._flows.discard(flow)
            for each in flow.writers:
                each.transport.abort()


async def _carry(flow: _Flow, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Waits until either side ends, which a silent flow does not show."""
    with suppress(ConnectionError):
        while data := await source.read(_CHUNK_BYTES):
            if not flow.silent:
                target.write(data)
                await target.drain()
    if not flow.silent:
        target.transport.abort()
