"""Manages the folder of plugin sockets: ours, and those that others serve for the same resource (edge)."""

import asyncio
import fcntl
import math
import os
import socket
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Self

import grpc

from deviceplugin.socket_names import is_own_name, is_socket_name, shared_name, socket_name
from program.tasks import Tasks
from proto.kubelet import deviceplugin_v1beta1_pb2_grpc as rpc

SocketIdentity = tuple[int, int, int]
_Served = tuple[str, SocketIdentity]
_STOP_SECONDS = 0.2
_LOCK_SECONDS = 0.005
"""Between two tries, because a lock that is waited for would hold up a thread."""
_LOCK_TRIES = 200


class CannotServe(Exception):
    """No server can listen there; one sentence."""


class ServedSocket:
    """A socket on which a plugin is called."""

    def __init__(self, path: str, server: grpc.aio.Server) -> None:
        self.path = path
        self._server = server
        self._identity = identity(path)

    @classmethod
    async def start(cls, path: str, plugin: rpc.DevicePluginServicer) -> Self:
        """Raises CannotServe."""
        folder, name = os.path.split(path)
        # gRPC removes the file at its bound name, even another's; and a name that exists answers.
        bound = f"{folder}/.{name}"
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        rpc.add_DevicePluginServicer_to_server(plugin, server)
        try:
            server.add_insecure_port(f"unix:{bound}")
            await _start(server)
            os.rename(bound, path)
        except (RuntimeError, OSError) as error:
            await server.stop(None)
            raise CannotServe(f"cannot serve on {path}: {error}") from error
        return cls(path, server)

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def is_there(self) -> bool:
        """Returns whether the file is still the one that was made."""
        return self._identity is not None and identity(self.path) == self._identity

    async def stop(self) -> None:
        """Stops serving, and removes the file unless it is another's by now."""
        is_own = self.is_there
        await self._server.stop(_STOP_SECONDS)
        if is_own:
            with suppress(OSError):  # the folder may be read-only or gone; kubelet empties it at its next start
                os.unlink(self.path)


class OtherSockets:
    """The sockets of the resource that other processes serve: known when we registered, opened since, or ended."""

    def __init__(self, folder: str, resource: str) -> None:
        self._folder = folder
        self._resource = resource
        self._known: frozenset[_Served] = frozenset()
        self.served: frozenset[_Served] = frozenset()
        """The sockets that were served at the last look."""
        self._ended: set[_Served] = set()
        self.changed_at = -math.inf
        """The time when a socket last came or ended, or we registered, by the clock of `look`."""

    def look(self, own: Collection[str], now: float) -> None:
        """Blocks for no longer than the file system. What dead daemons of ours left behind is removed."""
        served = set[_Served]()
        for name in self._names():
            path = f"{self._folder}/{name}"
            known = identity(path)
            if name in own or known is None:
                continue
            if answers(path):
                served.add((name, known))
            elif is_own_name(name, self._resource):
                with suppress(OSError):
                    os.unlink(path)
        if served != self.served:
            self._ended |= self.served - served
            self.served, self.changed_at = frozenset(served), now

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Keeps other daemons from registering meanwhile, so that of two each knows which came later, and this one from
        registering another resource. Raises CannotServe.
        """
        try:
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise CannotServe(f"cannot open {self._folder}: {error.strerror}") from error
        try:
            await self._lock(folder)
            yield
        finally:
            os.close(folder)

    async def _lock(self, folder: int) -> None:
        """Locks the folder soon after it is free: all resources have a second after kubelet's restart. Raises
        CannotServe.
        """
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                await asyncio.sleep(_LOCK_SECONDS)
            except OSError as error:
                raise CannotServe(f"cannot lock {self._folder}: {error.strerror}") from error
            else:
                return
        raise CannotServe(f"another registration goes on in {self._folder}, so {self._resource} waits")

    def registered(self, now: float) -> None:
        """Notes a registration that was made just now: the sockets of the last look were there before."""
        self._known, self._ended, self.changed_at = self.served, set(), now

    @property
    def is_taken(self) -> bool:
        """Returns whether another plugin came since, such as NVIDIA's: it leaves the resource to no successor."""
        return any(name == shared_name(self._resource) for name, _ in self.served - self._known)

    @property
    def has_later(self) -> bool:
        """Returns whether a socket came since: kubelet calls that one."""
        return bool(self.served - self._known)

    @property
    def later_ended(self) -> bool:
        return bool(self._ended - self._known)

    @property
    def earlier_ended(self) -> bool:
        return bool(self._ended & self._known)

    def _names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._folder) if is_socket_name(name, self._resource)]
        except OSError:
            return []


async def _start(server: grpc.aio.Server) -> None:
    """Starts a server. A cancelled start is waited for, then the server is stopped: gRPC would leave one that listens,
    answers no call and keeps the process from ending.
    """
    starting = Tasks().begin(server.start())
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait((starting,))
        await server.stop(None)
        raise


def plugin_socket(folder: str, resource: str) -> str:
    """Returns the newest daemon's socket, one that answers first; else the name under which others may serve the
    resource, if it exists; else the pattern of our names.
    """
    try:
        names = os.listdir(folder)
    except OSError:
        names = []
    own = [f"{folder}/{name}" for name in names if is_own_name(name, resource)]
    shared = shared_name(resource)
    left = shared if shared in names else socket_name(resource, "*")
    return max(own, key=lambda path: (answers(path), _made_at(path)), default=f"{folder}/{left}")


def _made_at(path: str) -> int:
    known = identity(path)
    return known[-1] if known is not None else 0


def identity(path: str) -> SocketIdentity | None:
    """Returns device, inode and time of creation (ns), because inodes are used again at once; None without a file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def answers(path: str) -> bool:
    """Returns whether a process listens on the socket. Does not block."""
    if not Path(path).is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as peer:
        peer.setblocking(False)
        try:
            peer.connect(path)
        except BlockingIOError:
            return True  # its queue is full
        except OSError:
            return False
    return True
