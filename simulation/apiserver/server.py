"""The embedded API server: the Kubernetes API in memory, for tests and the demo (edge)."""

import asyncio
import json
import socket
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from aiohttp import web

from simulation.apiserver.access import Right
from simulation.apiserver.errors import JsonObject
from simulation.apiserver.faults import Fault, FaultPlan
from simulation.apiserver.http import Handler
from simulation.apiserver.kinds import BY_NAME, BY_PLURAL
from simulation.apiserver.operations import Operations
from simulation.apiserver.routes import RecordedRequest, Target
from simulation.apiserver.store import Backup, Store
from simulation.apiserver.watching import Watching
from simulation.moments import Moments

_LARGEST_BODY = 16 * 1024 * 1024
_RESTORING_SECONDS = 0.3
_AT_ONCE: JsonObject = {"gracePeriodSeconds": 0}
_FIRST_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_FIRST_PRIORITIES = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}


def utc_now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - the server's clock


class EmbeddedApiServer:
    """`async with EmbeddedApiServer() as server:` serves the API on 127.0.0.1 at `server.url`.

    Watches are sent a bookmark every `bookmark_seconds`, by default as seldom as kube-apiserver does.
    `store` and `requests` are open to inspection; `create`, `patch` and `delete` write directly, past faults and log.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        now: Callable[[], datetime] = utc_now,
        new_uid: Callable[[], str] = lambda: str(uuid.uuid4()),
        bookmark_seconds: float = 60.0,
        longest_grace_seconds: int = 30,
        history: int = 20_000,
    ) -> None:
        self.store = Store(history=history)
        self.requests: list[RecordedRequest] = []
        self.faults = FaultPlan()
        self.denied: set[Right] = set()
        """What clients may not do."""
        self.users: dict[str, str] = {}
        """The users whose tokens a TokenReview knows, by token."""
        self.moments = Moments[RecordedRequest]()
        """Observers of every request: the first is called before it meets a fault."""
        self.proxied: dict[tuple[str, str], str] = {}
        """Addresses behind pods' ports, by namespace and name, for `pods/proxy`."""
        self.written: Callable[[], None] = lambda: None
        """Called after every write, whichever program made it."""
        self._port = port
        self._operations = Operations(self.store, now, new_uid, longest_grace_seconds)
        self.webhooks = self._operations.webhooks
        """Functions that complete or refuse new pods; none at first."""
        self._watching = Watching(self._operations, bookmark_seconds)
        self._seen_version = 0
        self._held: socket.socket | None = None
        """A socket that is bound but never listens, so that no program gets the port while the server is offline."""
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self._reaper: asyncio.Task[None] | None = None
        for namespace in _FIRST_NAMESPACES:
            self.create({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": namespace}})
        for name, value in _FIRST_PRIORITIES.items():
            self.create({"kind": "PriorityClass", "metadata": {"name": name}, "value": value})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def open_watches(self) -> int:
        return self._watching.count()

    async def __aenter__(self) -> "EmbeddedApiServer":
        handler = Handler(
            self._operations,
            self._watching,
            self.faults,
            self.requests.append,
            self._wake_if_written,
            self.denied,
            self.users,
            self.moments,
            self.proxied,
        )
        application = web.Application(client_max_size=_LARGEST_BODY)
        application.router.add_route("*", "/{path:.*}", handler.__call__)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.2, handler_cancellation=True)
        await self._runner.setup()
        await self.go_online()
        self._reaper = asyncio.create_task(self._finish_deletions())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watching.close()
        if self._reaper is not None:
            self._reaper.cancel()
            with suppress(asyncio.CancelledError):
                await self._reaper
        if self._runner is not None:
            await self._runner.cleanup()
        if self._held is not None:
            self._held.close()

    async def go_offline(self) -> None:
        """Refuses connections and cuts the open ones until `go_online`; the objects stay."""
        if self._site is not None:
            await self._site.stop()
            self._site = None
        if self._runner is not None and self._runner.server is not None:
            for connection in list(self._runner.server.connections):
                if connection.transport is not None:
                    connection.transport.abort()

    async def go_online(self) -> None:
        """Listens, on the same port as before."""
        if self._runner is None:
            raise RuntimeError("the embedded API server is entered with `async with` before it can listen")
        if self._site is None:
            if self._held is None:
                self._held = _bound(self._port)
                self._port = self._held.getsockname()[1]
            self._site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
            await self._site.start()

    def kubeconfig(self, *, user: str = "simulation") -> str:
        """Returns a kubeconfig for this server (JSON, which is YAML)."""
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "simulation", "cluster": {"server": self.url}}],
                "users": [{"name": user, "user": {}}],
                "contexts": [{"name": "simulation", "context": {"cluster": "simulation", "user": user}}],
                "current-context": "simulation",
            },
            indent=2,
        )

    def create(self, item: JsonObject) -> JsonObject:
        """Creates an object directly, and its namespace (default: `default`) if that is missing."""
        kind = BY_NAME[str(item["kind"])]
        namespace = ""
        if kind.namespaced:
            namespace = item["metadata"].get("namespace") or "default"
            if self.store.get("namespaces", "", namespace) is None:
                self.create({"kind": "Namespace", "metadata": {"name": namespace}})
        stored = self._operations.create(Target(kind=kind, namespace=namespace), json.loads(json.dumps(item)))
        self._wake_if_written()
        return stored

    def patch(
        self, plural: str, name: str, body: JsonObject, *, namespace: str = "", subresource: str = ""
    ) -> JsonObject:
        """Applies a merge patch directly."""
        target = Target(kind=BY_PLURAL[plural], namespace=namespace, name=name, subresource=subresource)
        stored = self._operations.patch(target, body, "application/merge-patch+json")
        self._wake_if_written()
        return stored

    def delete(self, plural: str, name: str, *, namespace: str = "", options: JsonObject = _AT_ONCE) -> None:
        """Removes an object directly; with other options a pod has its time to stop."""
        target = Target(kind=BY_PLURAL[plural], namespace=namespace, name=name)
        self._operations.delete(target, options)
        self._wake_if_written()

    def compact(self) -> None:
        """Forgets the history: older watches and list pages are answered 410."""
        self.store.compact()
        self._watching.wake()

    async def restore(self, backup: Backup) -> None:
        """Goes back to a backup of `store`, as after etcd was restored: the server is offline meanwhile, longer than
        from a client's list to its watch.
        """
        await self.go_offline()
        await asyncio.sleep(_RESTORING_SECONDS)
        self.store.restore(backup)
        self._seen_version = backup.version
        await self.go_online()

    def inject(self, fault: Fault) -> Fault:
        """Switches a fault on; `faults.remove` or `faults.clear` switches it off."""
        self.faults.add(fault)
        return fault

    def drop_watches(self) -> int:
        """Cuts the connection of every open watch; how many there were."""
        return self._watching.drop_all()

    def _wake_if_written(self) -> None:
        if self.store.version != self._seen_version:
            self._seen_version = self.store.version
            self._watching.wake()
            self.written()

    async def _finish_deletions(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            self._operations.finish_deletions()
            self._wake_if_written()


def _bound(port: int) -> socket.socket:
    """Raises OSError where the port cannot be had."""
    held = socket.socket()
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", port))
    except OSError:
        held.close()
        raise
    return held
