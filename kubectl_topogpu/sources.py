"""Sources of objects: the cluster, or a file that kubectl wrote (edge). They are read page by page."""

import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import msgspec

from kubectl_topogpu.cluster import GpuCluster, GpuNode, Objects
from kubectl_topogpu.extender import EXTENDER_LABELS, is_extender
from kubectl_topogpu.kubectl import Api, Connection, ObjectsUnreadable, RequestRefused, connected, decoded, namespace
from kubectl_topogpu.used import Readings, joined, read_use
from program.words import nearest
from proto import decoding
from proto.daemon_usage import LARGEST_USAGE_BYTES, USAGE_PATH, DaemonPod, UsageUnreadable
from proto.kubernetes.objects import (
    NODES,
    PODS,
    RESOURCE_QUOTAS,
    ListMeta,
    Node,
    Object,
    ObjectList,
    ObjectMeta,
    Pod,
    Resource,
    ResourceQuota,
)

T = TypeVar("T", bound=Object)

PAGE = 1000
"""Objects of one request."""
MOST_EXTENDERS = 50
USE_SECONDS = 10
"""The longest wait for a daemon. It waits 3 s for the driver."""
_FORBIDDEN, _NOT_FOUND = 403, 404
_NAMESPACES = "/api/v1/namespaces"
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
_HOW = "kubectl get nodes,pods,resourcequotas -A -o json"
_ROLE = "the ClusterRole topogpu-view of docs/kubectl.md allows all that is needed"


class Live:
    """The cluster."""

    def __init__(self, api: Api, connection: Connection, threads: ThreadPoolExecutor) -> None:
        self._api = api
        self._connection = connection
        self._threads = threads

    def objects(self) -> Objects:
        """Reads the objects; a note is added if quotas may not be listed."""
        nodes = self._threads.submit(lambda: tuple(self._all(NODES)))
        try:
            quotas = tuple(self._all(RESOURCE_QUOTAS))
        except RequestRefused as refusal:
            if refusal.code != _FORBIDDEN:
                raise
            note = f"ResourceQuotas do not count here: {refusal}"
            return Objects(nodes=nodes.result(), pods=self._all(PODS), notes=(note,))
        return Objects(nodes=nodes.result(), pods=self._all(PODS), quotas=quotas)

    def pod(self, namespace: str, name: str) -> Pod | None:
        if not (_NAME.fullmatch(namespace) and _NAME.fullmatch(name)):  # it would be another path, or none
            return None
        path = PODS.path(namespace, name)
        try:
            found: Pod = decoded(path, self._api.get(path), Pod)
        except RequestRefused as refusal:
            if refusal.code == _NOT_FOUND:
                return None
            raise
        return found

    def pod_names(self, namespace: str) -> Iterable[str]:
        return [pod.metadata.name for pod in self._all(PODS, namespace)] if _NAME.fullmatch(namespace) else []

    def extenders(self) -> Iterable[Pod]:
        labels = ",".join(f"{name}={value}" for name, value in EXTENDER_LABELS.items())
        path = f"{PODS.path()}?labelSelector={quote(labels)}&limit={MOST_EXTENDERS}"
        found: ObjectList[Pod] = decoded(path, self._page(path), ObjectList[Pod])
        return found.items

    def check_namespace(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise LookupError(f"there is no namespace {name}")
        try:
            self._api.get(f"{_NAMESPACES}/{name}")
        except RequestRefused as refusal:
            if refusal.code != _NOT_FOUND:  # a user may read the pods of a namespace and not the namespace
                return
            known = [each.metadata.name for each in self._listed(_NAMESPACES, _Named)]
            raise LookupError(f"there is no namespace {name}; {nearest(name, known)}".rstrip(" ;")) from refusal

    def usage(self, namespace: str, pod: str) -> bytes:
        """Returns what a pod of the node daemon serves."""
        path = PODS.path(namespace, pod)
        found: DaemonPod = decoded(path, self._api.get(path), DaemonPod)
        if not found.port:
            raise ObjectsUnreadable(f"pod {namespace}/{pod} has no port named metrics")
        served = f"{PODS.path(namespace, f'{pod}:{found.port}')}/proxy{USAGE_PATH}"
        return self._api.get(served, LARGEST_USAGE_BYTES, USE_SECONDS)

    def namespace(self) -> str:
        return namespace(self._connection)

    def _all(self, kind: Resource[T], namespace: str = "") -> Iterator[T]:
        return self._listed(kind.path(namespace), kind.type)

    def _listed(self, path: str, kind: type[T]) -> Iterator[T]:
        """Fetches the next page while the caller uses this one."""
        coming = self._threads.submit(self._page, f"{path}?limit={PAGE}")
        while True:
            body = coming.result()
            token = decoded(path, body, _Head).metadata.continue_
            if token:
                coming = self._threads.submit(self._page, f"{path}?limit={PAGE}&continue={token}")
            page: ObjectList[T] = decoded(path, body, ObjectList[kind])  # type: ignore[valid-type]
            yield from page.items
            if not token:
                return

    def _page(self, path: str) -> bytes:
        try:
            return self._api.get(path)
        except RequestRefused as refusal:
            if refusal.code == _FORBIDDEN:
                raise RequestRefused(refusal.code, f"{refusal}; {_ROLE}") from refusal
            raise


class _Named(Object):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


class _Head(Object):
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)


class _Kind(Object):
    kind: str = ""


class _File(Object):
    items: list[msgspec.Raw] | None = None


class Recorded:
    """The output of `kubectl get nodes,pods,resourcequotas -A -o json`."""

    def __init__(self, file: str) -> None:
        """`-` is standard input. Raises Unreadable."""
        self._file = file
        try:
            text = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
            items = decoding.decoded(text, _File).items
        except OSError as error:
            raise ObjectsUnreadable(f"{file}: {error.strerror or error}") from error
        except msgspec.DecodeError as error:
            raise ObjectsUnreadable(f"{file}: is not what kubectl prints ({error}); write it with {_HOW}") from error
        if items is None:
            raise ObjectsUnreadable(f"{file}: has no list of objects; write it with {_HOW}")
        self._items: dict[str, list[tuple[int, msgspec.Raw]]] = {}
        for at, item in enumerate(items):
            self._items.setdefault(self._decoded(at, item, _Kind).kind, []).append((at, item))
        if "Node" not in self._items:
            raise ObjectsUnreadable(f"{file}: lists no node; write it with {_HOW}")

    def objects(self) -> Objects:
        return Objects(
            nodes=tuple(self._all("Node", Node)),
            pods=self._all("Pod", Pod),
            quotas=tuple(self._all("ResourceQuota", ResourceQuota)),
        )

    def pod(self, namespace: str, name: str) -> Pod | None:
        return next(
            (
                pod
                for pod in self._all("Pod", Pod)
                if (pod.metadata.namespace or "default", pod.metadata.name) == (namespace, name)
            ),
            None,
        )

    def pod_names(self, namespace: str) -> Iterable[str]:
        return [
            each.metadata.name for each in self._all("Pod", Pod) if (each.metadata.namespace or "default") == namespace
        ]

    def extenders(self) -> Iterable[Pod]:
        return filter(is_extender, self._all("Pod", Pod))

    def check_namespace(self, name: str) -> None:
        """Accepts every name: a file has no namespaces."""

    def usage(self, namespace: str, pod: str) -> bytes:  # noqa: ARG002 - as of the cluster
        raise ObjectsUnreadable("a file does not show what is used")

    def namespace(self) -> str:
        return "default"

    def _all(self, name: str, kind: type[T]) -> Iterator[T]:
        for at, item in self._items.get(name, ()):
            yield self._decoded(at, item, kind)

    def _decoded(self, at: int, item: msgspec.Raw, kind: type[T]) -> T:
        try:
            return decoding.decoded(item, kind)
        except msgspec.DecodeError as error:
            raise ObjectsUnreadable(f"{self._file}: items[{at}]: {error}") from error


Source = Live | Recorded
"""The place where the objects are. Every method raises Unreadable."""


@contextmanager
def live(connection: Connection) -> Iterator[Live]:
    """Raises Unreadable."""
    # kubectl ends first, and with it the requests for which the threads wait.
    with ThreadPoolExecutor(8) as threads, connected(connection) as api:
        yield Live(api, connection, threads)


_AT_ONCE = 8
MOST_SECONDS = 60
"""No daemon is read later: where a network is down, each takes as long as it may."""


def readings(source: Source, cluster: GpuCluster, nodes: Sequence[GpuNode]) -> Readings:
    """Reads the daemons of these nodes. A daemon that cannot be read is named in `missing`."""
    ends = time.monotonic() + MOST_SECONDS

    def read(node: GpuNode) -> Readings:
        try:
            return _read(source, cluster, node, ends)
        except (ObjectsUnreadable, UsageUnreadable) as error:
            return Readings(missing={node.name: str(error)})

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return joined(threads.map(read, nodes))


def _read(source: Source, cluster: GpuCluster, node: GpuNode, ends: float) -> Readings:
    """Raises Unreadable and UsageUnreadable."""
    daemons = cluster.daemons.get(node.name, ())
    if not daemons:
        raise ObjectsUnreadable("no pod of the node daemon runs there")
    if len(daemons) > 1:
        raise ObjectsUnreadable(f"several pods have the node daemon's labels: {', '.join(map('/'.join, daemons))}")
    if time.monotonic() > ends:
        raise ObjectsUnreadable(f"its daemon was not asked, because others took more than {MOST_SECONDS} s")
    return read_use(source.usage(*daemons[0]), node.name, {gpu.device.uuid for gpu in node.gpus})
