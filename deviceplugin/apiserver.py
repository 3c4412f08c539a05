"""Reads this node and its pods from the API server, and writes on them (edge)."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from deviceplugin.changes import Changes
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import NODE_LOCK, NODE_LOCK_UID
from proto.annotations.node_lock import NodeLock, decode_lock, decode_lock_uid
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, Conflict, Invalid, NotFound
from proto.kubernetes.objects import (
    NODES,
    PODS,
    Node,
    Object,
    ObjectReference,
    Pod,
    Resource,
    version_number,
)
from proto.kubernetes.reflector import (
    Interrupted,
    ObjectApplied,
    ObjectRemoved,
    ReflectorPace,
    Replaced,
    reflect,
)

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

USER_AGENT = "topogpu-device-plugin"
"""The name of the daemon, and of commands on its node, for the API server."""
_RELEASE_ATTEMPTS = 5
_PACE = ReflectorPace(page_size=50)
"""Small pages, because pods are decoded whole before they are cut down."""


class OwnNode:
    """The last known state; it is used while the API server is unreachable."""

    def __init__(
        self,
        api: ApiServer,
        name: str,
        changes: Changes,
        *,
        seen: Callable[[str], None] = lambda _: None,
        slim: Callable[[Pod], None] = lambda _: None,
    ) -> None:
        """`seen` is called with the resource whenever its watch brings something. `slim` cuts down each pod."""
        self._api = api
        self._slim = slim
        self._seen = seen
        self._changes = changes
        self.name = name
        self.node: Node | None = None
        self.pods: Mapping[str, Pod] = {}
        """The node's pods by UID, in the order in which they were bound."""
        self.pods_known = False
        self.pods_version = 0
        """The resourceVersion of their last change."""
        self.returns = Changes()
        """Announces that a watch works again that was interrupted."""
        self._problems: dict[str, str] = {}
        """The reason, for each resource whose watch is interrupted."""

    @property
    def problem(self) -> str:
        """Returns why the state may be old; empty while the watches of both node and pods work."""
        return next(iter(self._problems.values()), "")

    def lock(self) -> NodeLock | None:
        """Returns the node lock if it can be read; an unreadable one proves nothing."""
        value = None if self.node is None else self.node.metadata.annotations.get(NODE_LOCK)
        try:
            return None if value is None else decode_lock(value)
        except AnnotationError as error:
            log.warning("node %s: %s", self.name, error)
            return None

    def lock_uid(self) -> str:
        """Returns the UID beside the lock; empty if there is none for this lock."""
        return "" if self.node is None else _lock_uid(self.node)

    def reference(self) -> ObjectReference:
        """Returns the Node as the subject of an event; kubelet, too, names nodes by name where a UID belongs."""
        return ObjectReference(api_version="v1", kind="Node", name=self.name, uid=self.name)

    async def follow_node(self) -> None:
        """Runs until cancelled."""
        async for change in reflect(self._api, NODES, field_selector=f"metadata.name={self.name}"):
            self._heard(NODES, change.problem if isinstance(change, Interrupted) else "")
            match change:
                case Replaced(objects):
                    self.node = objects[0] if objects else None
                    if not objects:
                        log.warning("there is no node %s in the cluster yet", self.name)
                case ObjectApplied(node):
                    self._take_node(node)
                case ObjectRemoved():
                    self.node = None
                    log.warning("node %s was removed from the cluster", self.name)
            self._changes.announce()

    async def follow_pods(self) -> None:
        """Runs until cancelled."""
        selection = f"spec.nodeName={self.name}"
        async for change in reflect(self._api, PODS, field_selector=selection, pace=_PACE, trim=self._slim):
            self._heard(PODS, change.problem if isinstance(change, Interrupted) else "")
            match change:
                case Replaced(objects, version):
                    self.pods, self.pods_known = in_order(objects, self.pods), True
                    self.pods_version = version_number(version)
                case ObjectApplied(pod):
                    self._slim(pod)
                    self.pods = {**self.pods, pod.metadata.uid: pod}
                    self.pods_version = version_number(pod.metadata.resource_version)
                case ObjectRemoved(pod):
                    self.pods_version = version_number(pod.metadata.resource_version)
                    self.pods = {uid: known for uid, known in self.pods.items() if uid != pod.metadata.uid}
            self._changes.announce()

    def recall(self, pods: Iterable[Pod]) -> None:
        """Takes an earlier daemon's state: it is used until the API server answers, and `pods_known` stays False."""
        if not self.pods_known:
            self.pods = {pod.metadata.uid: pod for pod in pods}
            self._changes.announce()

    async def read_pod(self, namespace: str, name: str) -> Pod:
        """Reads the pod as it is now, on any node. Raises ApiError or ApiUnreachable."""
        pod = await self._api.get(PODS, name, namespace=namespace)
        self._slim(pod)
        return pod

    async def patch_node(self, body: Mapping[str, object]) -> None:
        """Raises ApiError or ApiUnreachable."""
        self._take_node(await self._api.patch(NODES, self.name, body))
        self._changes.announce()

    async def patch_status(self, body: Mapping[str, object]) -> None:
        """Patches the Node's status strategically: conditions that `body` does not name stay. Raises ApiError or
        ApiUnreachable.
        """
        self._take_node(await self._api.patch(NODES, self.name, body, subresource="status", strategic=True))
        self._changes.announce()

    async def settle(self, pod: Pod, body: Mapping[str, object], *, release: bool) -> None:
        """Patches the pod; then, if `release` is set or the pod is gone, releases its lock. Raises ApiError or
        ApiUnreachable.

        If the patch is refused for good, it releases the lock anyway: the pod has been answered.
        """
        namespace, name = pod.metadata.namespace, pod.metadata.name
        lock_uids = {"", pod.metadata.uid}
        refusal: ApiError | None = None
        try:
            await self._api.patch(PODS, name, body, namespace=namespace)
        except NotFound:
            release = True
        except Invalid as error:
            if (await self.read_pod(namespace, name)).metadata.uid != pod.metadata.uid:
                # Another pod has the name: a lock without a UID may be its lock.
                lock_uids, release = {pod.metadata.uid}, True
            else:
                refusal = error
        if release:
            await self._release_lock(pod, lock_uids)
        if refusal is not None:
            raise refusal

    async def _release_lock(self, pod: Pod, uids: Collection[str]) -> None:
        """Removes the node lock if it has the pod's name and one of the UIDs. Raises ApiError or ApiUnreachable."""
        for attempt in range(_RELEASE_ATTEMPTS):
            node = await self._api.get(NODES, self.name)
            if not _holds(node, pod, uids):
                return
            gone = dict.fromkeys({NODE_LOCK, NODE_LOCK_UID} & node.metadata.annotations.keys())
            metadata = {"annotations": gone, "resourceVersion": node.metadata.resource_version}
            try:
                await self.patch_node({"metadata": metadata})
                return
            except Conflict:
                # Another program wrote the Node meanwhile, perhaps the lock: read again.
                if attempt == _RELEASE_ATTEMPTS - 1:
                    raise

    def _take_node(self, node: Node) -> None:
        """Returns the newer of two states: the answer to our write may come before the watch brings an older state."""
        if self.node is None or _version(node) >= _version(self.node):
            self.node = node

    def _heard(self, resource: Resource[T], problem: str) -> None:
        """Takes that a watch brought something, or why it is interrupted."""
        if problem:
            if not self._problems:
                log.warning("%s; using the last known state", problem)
            self._problems[resource.plural] = problem
            return
        self._seen(resource.plural)
        if self._problems.pop(resource.plural, ""):
            self.returns.announce()
            if not self._problems:
                log.info("the API server answers again")


def _holds(node: Node, pod: Pod, uids: Collection[str]) -> bool:
    value = node.metadata.annotations.get(NODE_LOCK)
    try:
        lock = None if value is None else decode_lock(value)
    except AnnotationError:
        return False
    owner = (pod.metadata.namespace, pod.metadata.name)
    return lock is not None and (lock.namespace, lock.pod) == owner and _lock_uid(node) in uids


def _lock_uid(node: Node) -> str:
    annotations = node.metadata.annotations
    return decode_lock_uid(annotations.get(NODE_LOCK, ""), annotations.get(NODE_LOCK_UID, ""))


def in_order(listed: Sequence[Pod], known: Mapping[str, Pod]) -> Mapping[str, Pod]:
    """Sorts pods: those known before, then those that kubelet has written, then those last changed when they were
    bound.
    """
    places = {uid: place for place, uid in enumerate(known)}

    def place(pod: Pod) -> tuple[int, bool, int]:
        started = bool(pod.status.init_container_statuses or pod.status.container_statuses)
        return places.get(pod.metadata.uid, len(places)), not started, _version(pod)

    return {pod.metadata.uid: pod for pod in sorted(listed, key=place)}


def _version(found: Node | Pod) -> int:
    """Returns the version of an object for comparison; one that is no number counts as newest."""
    return version_number(found.metadata.resource_version) or 2**63
