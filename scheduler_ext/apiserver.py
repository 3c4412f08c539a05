"""Watches the cluster: each change of nodes, pods, quotas and budgets becomes an event for the cluster state."""

import asyncio
import gc
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from sys import intern
from typing import Any, TypeVar

import msgspec

from proto.annotations.keys import BIND_PHASE, KUEUE_PREFERRED_TOPOLOGY, KUEUE_REQUIRED_TOPOLOGY, POD_NODE
from proto.annotations.spelling import DOMAINS
from proto.decoding import decoder
from proto.environment import is_judged
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable
from proto.kubernetes.objects import (
    NODES,
    POD_DISRUPTION_BUDGETS,
    POD_GROUPS,
    POD_SCHEDULED,
    PODS,
    RESOURCE_QUOTAS,
    Affinity,
    Container,
    Object,
    Pod,
    PodStatus,
    Resource,
    Resources,
    Toleration,
    version_number,
)
from proto.kubernetes.reflector import Interrupted, ObjectApplied, ObjectRemoved, Replaced, reflect
from scheduler_ext.cluster import events
from scheduler_ext.membership import GROUP_ANNOTATIONS, GROUP_LABELS, membership_of
from scheduler_ext.quota_class import has_cross_namespace_affinity
from scheduler_ext.verbs.live_cluster import LiveCluster

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)
V = TypeVar("V")

GROUPS_SECONDS = 60.0
"""The time between two looks for APIs that serve groups of pods."""
_OPTIONAL = frozenset({POD_DISRUPTION_BUDGETS.plural, *(each.plural for each in POD_GROUPS)})
"""Resources without which pods are placed all the same."""
KEPT_ANNOTATIONS = frozenset({*GROUP_ANNOTATIONS, KUEUE_REQUIRED_TOPOLOGY, KUEUE_PREFERRED_TOPOLOGY})
"""Annotations of other programs that are read of a group's members."""
_SHARED_VALUES = frozenset({POD_NODE, BIND_PHASE})
"""Annotations with the same value on many pods."""


class ClusterWatch:
    """Follows the cluster until cancelled. It is ready when everything is listed once.

    `known` is called whenever everything is listed, before the first answer from it.
    """

    def __init__(
        self, *, api: ApiServer, cluster: LiveCluster, known: Callable[[], None], node_label_selector: str = ""
    ) -> None:
        self._api = api
        self._cluster = cluster
        self._known = known
        self._node_label_selector = node_label_selector
        self.listed = False
        """True once nodes, pods and quotas have been listed, also while pods are listed again."""
        self._missing = [NODES.plural, PODS.plural, RESOURCE_QUOTAS.plural]
        self._interrupted: dict[str, str] = {}
        """The problem of each watch that is interrupted, by its resource."""
        self._synced = asyncio.Event()
        self._pods_again = asyncio.Event()

    def missing(self) -> Sequence[str]:
        """Returns the resources that are not listed yet."""
        return tuple(self._missing)

    def interrupted(self) -> str:
        """Returns why the cache may be old; empty while the API server answers for nodes, pods and quotas."""
        return next(iter(self._interrupted.values()), "")

    async def wait_until_synced(self, seconds: float) -> None:
        """Waits until everything is listed, for `seconds` at most."""
        if not self._synced.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._synced.wait()

    async def list_pods_again(self) -> None:
        """Lists pods again. The new list contains everything that was written before the call."""
        if PODS.plural not in self._missing:
            self._missing.append(PODS.plural)
        self._synced.clear()
        self._pods_again.set()
        await self._synced.wait()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as watches:
            watches.create_task(self._follow(NODES, label_selector=self._node_label_selector))
            # Only evictions wait for them: a cluster that grants no right to list them works all the same.
            watches.create_task(self._follow(POD_DISRUPTION_BUDGETS))
            watches.create_task(self._follow_pods())
            watches.create_task(self._follow(RESOURCE_QUOTAS))
            watches.create_task(self._follow_groups(watches))

    async def _follow_pods(self) -> None:
        """Follows pods, from a list at first and whenever one is requested."""
        while True:
            self._pods_again.clear()
            async with asyncio.TaskGroup() as watches:
                watch = watches.create_task(self._follow(PODS, trim=self._trim_pod))
                await self._pods_again.wait()
                watch.cancel()

    async def _follow_groups(self, watches: asyncio.TaskGroup) -> None:
        """Follows groups of pods of every API that serves them, also of one that is installed later. Without the right
        to list them the members are decided one by one.
        """
        left = list(POD_GROUPS)
        while left:
            for resource in list(left):
                try:
                    await self._api.list_page(resource, limit=1)
                except (ApiError, ApiUnreachable) as error:
                    log.debug("%s of %s are not read: %s", resource.plural, resource.group_version, error)
                else:
                    left = [each for each in left if each.type is not resource.type]
                    watches.create_task(self._follow(resource))
            await asyncio.sleep(GROUPS_SECONDS)

    async def _follow(
        self, resource: Resource[T], *, label_selector: str = "", trim: Callable[[T], None] = lambda _: None
    ) -> None:
        """`trim` removes from a listed object what the extender does not read: a whole cluster's list is in memory at
        once.
        """
        plural, apply = resource.plural, self._cluster.apply
        async for change in reflect(self._api, resource, label_selector=label_selector, trim=trim):
            was_interrupted = plural in self._interrupted
            if not isinstance(change, Interrupted):
                self._interrupted.pop(plural, None)
            match change:
                case Replaced(objects, version):
                    apply(events.Listed(resource.type, objects, version_number(version)))
                    self._listed(plural)
                case ObjectApplied(changed):
                    apply(events.Applied(changed))
                case ObjectRemoved(removed):
                    apply(events.Removed(removed))
                case Interrupted(problem, seconds):
                    if plural not in _OPTIONAL:
                        self._interrupted[plural] = f"the watch of {plural} is interrupted: {problem}"
                    log.warning("the watch of %s is interrupted, next try in %.1f s: %s", plural, seconds, problem)
            if plural == PODS.plural and was_interrupted != (plural in self._interrupted):
                apply(events.PodWatch(was_interrupted))

    def _listed(self, plural: str) -> None:
        if plural in self._missing:
            self._missing.remove(plural)
            if not self._missing:
                log.info("nodes, pods and quotas are known")
                self.listed = True
                self._known()
                # These objects stay. A full garbage collection over them would delay an answer by tenths of a second.
                gc.freeze()
                self._synced.set()
                self._cluster.freed.set()

    def _trim_pod(self, pod: Pod) -> None:
        """Budgets select by labels, and only pods with GPUs are evicted."""
        trim_pod(pod, labelled=self._cluster.state.pods.concerns_gpus(pod))


def trim_pod(pod: Pod, *, labelled: bool) -> None:
    """Keeps identity, state, resource requests, and annotations of GPU schedulers; equal parts become one object.

    Labels stay if the pod is `labelled`; those of groups stay always.
    """
    metadata, spec = pod.metadata, pod.spec
    kept = (
        metadata.labels if labelled else {key: metadata.labels[key] for key in GROUP_LABELS if key in metadata.labels}
    )
    metadata.labels = _one(dict[str, str], kept)
    metadata.annotations = {
        key: intern(value) if key in _SHARED_VALUES else value
        for key, value in metadata.annotations.items()
        if key.startswith(DOMAINS) or key in KEPT_ANNOTATIONS
    }
    metadata.namespace, spec.node_name = intern(metadata.namespace), intern(spec.node_name)
    spec.scheduler_name, spec.priority_class_name = intern(spec.scheduler_name), intern(spec.priority_class_name)
    # Members of a group that may go to the same nodes are placed together.
    if spec.node_name or membership_of(pod) is None:
        spec.affinity = _one(Affinity, spec.affinity) if has_cross_namespace_affinity(spec) else None
        spec.node_selector, spec.topology_spread_constraints = {}, ()
    spec.resources = _one(Resources | None, spec.resources)
    # Of a pod with a node no scheduler reads them again.
    metadata.owner_references = () if spec.node_name else metadata.owner_references
    spec.tolerations = () if spec.node_name else _one(tuple[Toleration, ...], spec.tolerations)
    for container in pod.all_containers:
        container.image, container.security_context = "", None
        container.command, container.args = [], []
        container.env = [] if spec.node_name else [each for each in container.env if is_judged(each.name)]
    spec.init_containers = _one(list[Container], spec.init_containers)
    spec.containers = _one(list[Container], spec.containers)
    # While the pod waits, the extender reads kube-scheduler's condition on it.
    pod.status.conditions = (
        [] if spec.node_name else [one for one in pod.status.conditions if one.type == POD_SCHEDULED]
    )
    if pod.has_ended or pod.is_pending or pod.is_running:
        # The container statuses of any other pod are kept: they show whether it has ended.
        pod.status.container_statuses = []
    pod.status = _one(PodStatus, pod.status)


def _one(kind: Any, value: V) -> V:
    """Returns one object for all equal values of this type: pods are made from few templates."""
    found: V = _decoded(kind, msgspec.msgpack.encode(value))
    return found


@lru_cache(maxsize=4096)
def _decoded(kind: Any, encoded: bytes) -> Any:
    decoder(kind)
    return msgspec.msgpack.decode(encoded, type=kind)
