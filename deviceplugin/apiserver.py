"""Edge to the API server: this node and the pods bound to it, and what the daemon writes on them."""

import asyncio
import logging
from collections.abc import Mapping

from proto.annotations.errors import AnnotationError
from proto.annotations.keys import NODE_LOCK
from proto.annotations.node_lock import NodeLock, decode_lock
from proto.kubernetes.client import ApiError, ApiServer
from proto.kubernetes.objects import NODES, PODS, Node, Pod
from proto.kubernetes.reflector import Applied, Interrupted, Removed, Replaced, reflect

log = logging.getLogger(__name__)

_RELEASE_ATTEMPTS = 5
_NOT_FOUND = 404
_CONFLICT = 409


class News:
    """Wakes everybody who waits for something to change."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        told, self._event = self._event, asyncio.Event()
        told.set()

    def next(self) -> asyncio.Event:
        """Set by the next change. Take it before looking, so that no change is missed."""
        return self._event


class OwnNode:
    """The last state known; it stands while the API server is away."""

    def __init__(self, api: ApiServer, name: str, news: News) -> None:
        self._api = api
        self._news = news
        self.name = name
        self.node: Node | None = None
        self.pods: Mapping[str, Pod] = {}
        """By UID."""
        self.pods_known = False
        self.problem = ""
        """Why the state may be old; empty while the API server answers."""

    def lock(self) -> NodeLock | None:
        """The node lock as far as it can be read; an unreadable one proves nothing."""
        value = None if self.node is None else self.node.metadata.annotations.get(NODE_LOCK)
        try:
            return None if value is None else decode_lock(value)
        except AnnotationError as error:
            log.warning("node %s: %s", self.name, error)
            return None

    async def follow_node(self) -> None:
        """Until cancelled."""
        async for change in reflect(self._api, NODES, field_selector=f"metadata.name={self.name}"):
            match change:
                case Replaced(objects):
                    self._answered()
                    self.node = objects[0] if objects else None
                    if not objects:
                        log.warning("there is no node %s in the cluster yet", self.name)
                case Applied(node):
                    self._answered()
                    self._take_node(node)
                case Removed():
                    self.node = None
                    log.warning("node %s was removed from the cluster", self.name)
                case Interrupted(problem):
                    self._interrupted(problem)
            self._news.tell()

    async def follow_pods(self) -> None:
        """Until cancelled."""
        async for change in reflect(self._api, PODS, field_selector=f"spec.nodeName={self.name}"):
            match change:
                case Replaced(objects):
                    self._answered()
                    self.pods, self.pods_known = {pod.metadata.uid: pod for pod in objects}, True
                case Applied(pod):
                    self._answered()
                    self.pods = {**self.pods, pod.metadata.uid: pod}
                case Removed(pod):
                    self.pods = {uid: known for uid, known in self.pods.items() if uid != pod.metadata.uid}
                case Interrupted(problem):
                    self._interrupted(problem)
            self._news.tell()

    async def patch_node(self, body: Mapping[str, object]) -> None:
        """Raises ApiError or ApiUnreachable."""
        self._take_node(await self._api.patch(NODES, self.name, body))
        self._news.tell()

    async def settle(self, pod: Pod, body: Mapping[str, object], *, release: bool) -> None:
        """Patch the pod; then, if asked to or if it is gone, release its lock. Raises ApiError or ApiUnreachable."""
        namespace, name = pod.metadata.namespace, pod.metadata.name
        try:
            await self._api.patch(PODS, name, body, namespace=namespace)
        except ApiError as error:
            if error.status != _NOT_FOUND:
                raise
            release = True
        if release:
            await self._release_lock(namespace, name)

    async def _release_lock(self, namespace: str, name: str) -> None:
        """Remove the node lock if this pod holds it. Raises ApiError or ApiUnreachable."""
        for attempt in range(_RELEASE_ATTEMPTS):
            node = await self._api.get(NODES, self.name)
            if not _holds(node, namespace, name):
                return
            metadata = {"annotations": {NODE_LOCK: None}, "resourceVersion": node.metadata.resource_version}
            try:
                await self.patch_node({"metadata": metadata})
                return
            except ApiError as error:
                # Somebody else wrote the node meanwhile, perhaps the lock: look again.
                if error.status != _CONFLICT or attempt == _RELEASE_ATTEMPTS - 1:
                    raise

    def _take_node(self, node: Node) -> None:
        """The newer of two states: our own write may be answered before the watch brings what was there before."""
        if self.node is None or _version(node) >= _version(self.node):
            self.node = node

    def _answered(self) -> None:
        if self.problem:
            log.info("the API server answers again")
        self.problem = ""

    def _interrupted(self, problem: str) -> None:
        if not self.problem:
            log.warning("%s; the last known state stands", problem)
        self.problem = problem


def _holds(node: Node, namespace: str, name: str) -> bool:
    value = node.metadata.annotations.get(NODE_LOCK)
    try:
        lock = None if value is None else decode_lock(value)
    except AnnotationError:
        return False
    return lock is not None and (lock.namespace, lock.pod) == (namespace, name)


def _version(node: Node) -> int:
    """Resource versions of one object grow (Kubernetes 1.35 promises it); anything else counts as newest."""
    text = node.metadata.resource_version
    return int(text) if text.isascii() and text.isdigit() else 2**63
