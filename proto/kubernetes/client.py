"""A client of the API server over HTTP: typed reads and watches, patches, creations and Bindings.

`kubernetes.aio` reads configuration and credentials, and aiohttp streams; the rest is in this package.
"""

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import msgspec

from proto.kubernetes.connections import LARGEST_PAGE_BYTES, Pool, lines_of, read_page
from proto.kubernetes.errors import ApiServerUnconfigured, NotFound, refusal
from proto.kubernetes.kubeconfig import Configure, load_configuration
from proto.kubernetes.objects import EVENTS, PODS, Binding, Object, ObjectList, Resource
from proto.kubernetes.transport import Transport
from proto.kubernetes.wire import (
    Added,
    Bookmark,
    Deleted,
    Modified,
    NotJson,
    Opened,
    UnreadableObject,
    WatchEvent,
    WatchFailed,
    decode_list,
    decode_object,
    decode_watch_line,
)

__all__ = [
    "Added",
    "ApiServer",
    "Bookmark",
    "Deleted",
    "Modified",
    "Opened",
    "WatchEvent",
]

T = TypeVar("T", bound=Object)

log = logging.getLogger(__name__)

LIST_SECONDS = 60.0
"""Seconds for a whole page of a list; a silence within it ends at the client's own timeout."""

SILENT_SECONDS = 65.0
"""A watch without any event for so long may be half-open. kube-apiserver sends a bookmark each minute. For a kind that
does not change it sends one only when etcd reports progress: every ten minutes by default.
"""
OPENING_SECONDS = 10.0
"""The most seconds until the API server accepts a watch; with the silence before it, below 80 s."""

_MERGE_PATCH = "application/merge-patch+json"
_STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"


class ApiServer:
    """One API server, safe for any number of concurrent calls on one event loop."""

    def __init__(
        self,
        configuration: Any,
        configure: Configure,
        *,
        timeout_seconds: float,
        user_agent: str,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        """Creates a client. `silent_seconds` applies to watches. Raises SSLError, OSError and ValueError where the
        certificates cannot be used.
        """
        self.transport = Transport(configuration, configure, timeout_seconds=timeout_seconds, user_agent=user_agent)
        self.url = self.transport.url
        self.timeout_seconds = timeout_seconds
        self._silent_seconds = silent_seconds

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | None = None,
        *,
        timeout_seconds: float = 10.0,
        silent_seconds: float = SILENT_SECONDS,
        user_agent: str = "topogpu",
    ) -> "ApiServer":
        """Returns a client for the named kubeconfig, else $KUBECONFIG, else ~/.kube/config, else for the cluster of
        this pod.

        Nothing is sent yet. Raises ApiServerUnconfigured.
        """
        configuration, configure = await load_configuration(kubeconfig)
        try:
            return cls(
                configuration,
                configure,
                timeout_seconds=timeout_seconds,
                user_agent=user_agent,
                silent_seconds=silent_seconds,
            )
        except (ssl.SSLError, OSError, ValueError) as error:
            raise ApiServerUnconfigured(f"The certificates of the kubeconfig cannot be used: {error}.") from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.transport.close()

    async def get(self, resource: Resource[T], name: str, namespace: str = "") -> T:
        """Raises ApiError (NotFound if there is none) or ApiUnreachable."""
        body = await self.transport.call("GET", _path(resource, namespace, name))
        return self._read(resource, body)

    async def list_page(
        self,
        resource: Resource[T],
        *,
        namespace: str = "",
        limit: int = 500,
        continue_: str = "",
        field_selector: str = "",
        label_selector: str = "",
        resource_version: str = "",
    ) -> ObjectList[T]:
        """Reads one page of `limit` objects, or of fewer if they are large; `metadata.continue_` names the next.
        Without a limit (0) it is the whole list. Objects that cannot be read are logged and left out.

        Raises ApiError (Gone when `continue_` has expired) or ApiUnreachable.
        """
        query = partial(
            _query,
            fieldSelector=field_selector,
            labelSelector=label_selector,
            resourceVersion=resource_version,
            **{"continue": continue_},
        )
        while (body := await self._page(_path(resource, namespace) + query(limit=limit), limit)) is None:
            limit //= 2
        try:
            return decode_list(resource.type, body, log.warning)
        except (NotJson, UnreadableObject) as error:
            raise self.transport.unusable(error) from error

    async def _page(self, path: str, limit: int) -> bytearray | None:
        """Returns the page; None if it has several objects and is too long. Raises ApiError or ApiUnreachable."""
        silence = aiohttp.ClientTimeout(sock_connect=self.timeout_seconds, sock_read=self.timeout_seconds)
        try:
            # aiohttp's own total timeout would lose a caller's deadline that passes in the same turn of the loop: its
            # TimerContext is entered twice and then swallows two cancellations.
            async with (
                asyncio.timeout(max(self.timeout_seconds, LIST_SECONDS)),
                self.transport.streaming(path, timeout=silence) as response,
            ):
                return await read_page(response.content, None if limit <= 1 else LARGEST_PAGE_BYTES)
        except TimeoutError as error:
            raise self.transport.unreachable(error) from error

    async def watch(
        self,
        resource: Resource[T],
        *,
        namespace: str = "",
        resource_version: str,
        field_selector: str = "",
        label_selector: str = "",
        timeout_seconds: int = 300,
        silent_seconds: float = SILENT_SECONDS,
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Yields Opened, then changes after `resource_version`, until the API server ends the watch after
        `timeout_seconds`.

        It also ends one client timeout after that, and after `silent_seconds` without a whole event (the client's own
        value if that is less). The next watch continues from the same position, or shows that the API server is
        unreachable.

        Raises ApiError (Gone when the position has expired), and ApiUnreachable when the connection drops or carries
        anything but events.
        """
        query = _query(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            timeoutSeconds=timeout_seconds,
            fieldSelector=field_selector,
            labelSelector=label_selector,
        )
        path = _path(resource, namespace) + query
        opening = min(self.timeout_seconds, OPENING_SECONDS)
        end = asyncio.get_running_loop().time() + timeout_seconds + self.timeout_seconds
        async with self.transport.streaming(path, timeout=aiohttp.ClientTimeout(), headers_seconds=opening) as response:
            yield Opened()
            async for line in lines_of(response.content, min(silent_seconds, self._silent_seconds), end):
                event = decode_watch_line(resource.type, line, log.warning)
                if isinstance(event, WatchFailed):
                    status = event.status
                    raise refusal(status.code or 500, status.reason, status.message)
                if event is not None:
                    yield event

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        body: Mapping[str, object],
        *,
        namespace: str = "",
        subresource: str = "",
        strategic: bool = False,
    ) -> T:
        """Sends a JSON merge patch (RFC 7386) of the object or of its `status`. Raises ApiError or ApiUnreachable.

        A `strategic` patch merges lists such as conditions by their key; the other one replaces them.
        """
        path = _path(resource, namespace, name, subresource)
        kind = _STRATEGIC_MERGE_PATCH if strategic else _MERGE_PATCH
        answer = await self.transport.call("PATCH", path, body=dict(body), content_type=kind)
        return self._read(resource, answer)

    async def create(self, resource: Resource[T], body: Object, *, namespace: str = "") -> T:
        """Creates an object and fills in `apiVersion` and `kind`. Raises ApiError (Conflict if the name is taken) or
        ApiUnreachable.
        """
        document = {"apiVersion": resource.group_version, "kind": type(body).__name__, **msgspec.to_builtins(body)}
        pool = Pool.EVENTS if resource is EVENTS else Pool.OTHER
        return self._read(
            resource, await self.transport.call("POST", _path(resource, namespace), body=document, pool=pool)
        )

    async def bind(self, binding: Binding, *, within_seconds: float | None = None) -> None:
        """Binds a pod to a node and adds the Binding's annotations in one write. Raises ApiError or ApiUnreachable.

        The API server carries it out within the client's timeout after receiving it, or not at all.
        """
        metadata = binding.metadata
        document = {"apiVersion": "v1", "kind": "Binding", **msgspec.to_builtins(binding)}
        document["target"] = {"apiVersion": "v1", "kind": "Node", **document["target"]}
        seconds = within_seconds or self.timeout_seconds
        path = f"{_path(PODS, metadata.namespace, metadata.name, 'binding')}?timeout={seconds:g}s"
        await self.transport.call("POST", path, body=document, pool=Pool.BINDINGS, timeout_seconds=seconds)

    async def evict(self, name: str, namespace: str, uid: str, *, dry_run: bool = False) -> None:
        """Evicts a pod if its PodDisruptionBudget allows that; `dry_run` only checks whether it would.

        Raises ApiError (TooManyRequests against the budget, Conflict if another pod has the name) or ApiUnreachable.
        """
        options: dict[str, object] = {"preconditions": {"uid": uid}} | ({"dryRun": ["All"]} if dry_run else {})
        document = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": options,
        }
        await self.transport.call("POST", _path(PODS, namespace, name, "eviction"), body=document)

    def _read(self, resource: Resource[T], body: bytes) -> T:
        try:
            return decode_object(resource.type, body)
        except (NotJson, UnreadableObject) as error:
            raise self.transport.unusable(error) from error


def _path(resource: Resource[T], namespace: str = "", name: str = "", subresource: str = "") -> str:
    """Returns the escaped path. `.` and `..` would change the URL, and no object can have such a name."""
    for part in (namespace, name):
        if part in (".", ".."):
            raise NotFound(404, "NotFound", f"{resource.plural} {part!r} is not a valid object name")
    return resource.path(quote(namespace, safe=""), quote(name, safe=""), subresource)


def _query(**parameters: str | int) -> str:
    return "?" + urlencode({key: value for key, value in parameters.items() if value})
