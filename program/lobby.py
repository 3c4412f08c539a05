"""Accepted connections that wait for a place. The kernel would give them out in the order they came, so a flood from
one address would delay all others.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Mapping


class Lobby:
    """Waiting connections by their address."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[str, deque[socket.socket]] = {}
        self._count = 0
        self._came = asyncio.Event()

    async def wait(self) -> None:
        """Returns once somebody waits."""
        while not self._count:
            self._came.clear()
            await self._came.wait()

    @property
    def is_empty(self) -> bool:
        return not self._count

    def enter(self, connection: socket.socket, address: str) -> bool:
        """Returns whether there was room. Otherwise the newest connection of the address with the most is closed."""
        self._waiting.setdefault(address, deque()).append(connection)
        self._count += 1
        self._came.set()
        if self._count <= self._most:
            return True
        crowd = max(self._waiting, key=lambda each: len(self._waiting[each]))
        self._remove(crowd, -1).close()
        return False

    def alone(self) -> str | None:
        """Returns the address of all that wait, where they have the same."""
        return next(iter(self._waiting)) if len(self._waiting) == 1 else None

    def next(self, places: Mapping[str, int]) -> str:
        """Returns the address that has the fewest of the `places`."""
        return min(self._waiting, key=lambda address: places.get(address, 0))

    def take(self, address: str) -> socket.socket:
        """Returns the connection that has waited longest."""
        return self._remove(address, 0)

    def close(self) -> None:
        for connections in self._waiting.values():
            for connection in connections:
                connection.close()

    def _remove(self, address: str, index: int) -> socket.socket:
        connections = self._waiting[address]
        connection = connections[index]
        del connections[index]
        if not connections:
            del self._waiting[address]
        self._count -= 1
        return connection
