"""Keeps ledger and view current from the API server, and tells the owners of annotations nobody can read."""

import asyncio
import gc
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from typing import Any, Generic, TypeVar

import msgspec

from proto.annotations.keys import BIND_PHASE, POD_NODE
from proto.kubernetes.client import ApiServer
from proto.kubernetes.notices import Notice
from proto.kubernetes.objects import (
    NODES,
    POD_DISRUPTION_BUDGETS,
    POD_SCHEDULED,
    PODS,
    RESOURCE_QUOTAS,
    Affinity,
    Container,
    Node,
    Object,
    ObjectReference,
    Pod,
    PodStatus,
    Resource,
    ResourceQuota,
    Resources,
)
from proto.kubernetes.reflector import Applied, Interrupted, Removed, Replaced, reflect
from scheduler_ext.binding.nominations import Nominations
from scheduler_ext.binding.view import View
from scheduler_ext.cluster.budgets import Budgets
from scheduler_ext.cluster.holdings import outlives
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.orphans import ORPHAN_SECONDS
from scheduler_ext.quota_class import has_cross_namespace_affinity
from scheduler_ext.requests import pod_key
from scheduler_ext.scheduling.waiting import WaitingPods

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)
V = TypeVar("V")

OUR_DOMAINS = ("hami.io/", "topogpu.io/", "nvidia.com/")
"""Of the annotations that anybody here reads on a watched pod."""
_SHARED_VALUES = frozenset({POD_NODE, BIND_PHASE})
"""Annotations that say the same on many pods."""


@dataclass(frozen=True, slots=True)
class _Follower(Generic[T]):
    """What to do with the changes of one kind."""

    resource: Resource[T]
    replace: Callable[[Sequence[T]], None]
    apply: Callable[[T], None]
    remove: Callable[[T], None]
    label_selector: str = ""
    trim: Callable[[T], None] = lambda _: None
    """Takes out of a listed object what nobody here reads: the list of a whole cluster is in memory at once."""


class _Complaints:
    """Says of each object what is wrong with it: once, and again when that changes."""

    def __init__(self, reason: str, tell: Callable[[ObjectReference, Notice], None]) -> None:
        self._reason = reason
        self._tell = tell
        self._told: dict[str, str] = {}

    def update(self, key: str, subject: ObjectReference, problem: str) -> None:
        """`problem` is empty for an object that is well."""
        if not problem:
            self.drop(key)
        elif self._told.get(key) != problem:
            self._told[key] = problem
            self._tell(subject, Notice(reason=self._reason, message=problem, distinct=True))

    def drop(self, key: str) -> None:
        self._told.pop(key, None)

    def keep_only(self, keys: Collection[str]) -> None:
        for key in self._told.keys() - keys:
            self.drop(key)


class ClusterWatch:
    """Follows the cluster until cancelled; ready once everything has been listed once.

    `tell` takes the notices for nodes and pods whose annotations cannot be read; `freed` is called when there may be
    room for more pods, `known` whenever everything is listed, before anybody is answered from it.
    """

    def __init__(
        self,
        *,
        api: ApiServer,
        ledger: Ledger,
        view: View,
        budgets: Budgets,
        nominations: Nominations,
        waiting: WaitingPods,
        tell: Callable[[ObjectReference, Notice], None],
        freed: Callable[[], None],
        known: Callable[[], None],
        monotonic: Callable[[], float],
        node_label_selector: str = "",
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._view = view
        self._budgets = budgets
        self._nominations = nominations
        self._waiting = waiting
        self._freed = freed
        self._monotonic = monotonic
        self._known = known
        self._node_label_selector = node_label_selector
        self._nodes = _Complaints("UnreadableRegistration", tell)
        self._pods = _Complaints("UnreadableAllocation", tell)
        self._missing = [NODES.plural, PODS.plural, RESOURCE_QUOTAS.plural]
        self._interrupted: dict[str, str] = {}
        """What went wrong, by the resource whose watch it is."""
        self._synced = asyncio.Event()
        self._pods_again = asyncio.Event()

    def missing(self) -> Sequence[str]:
        """What has not been listed yet."""
        return tuple(self._missing)

    def interrupted(self) -> str:
        """Why what is known may be old; empty while the API server answers for nodes, pods and quotas."""
        return next(iter(self._interrupted.values()), "")

    async def wait_until_synced(self, seconds: float) -> bool:
        """False when it takes longer than that."""
        if self._synced.is_set():
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._synced.wait()
        except TimeoutError:
            return False
        return True

    async def list_pods_again(self) -> None:
        """Returns once pods are listed anew: a list is as new as everything written before it was asked for."""
        if PODS.plural not in self._missing:
            self._missing.append(PODS.plural)
        self._synced.clear()
        self._pods_again.set()
        await self._synced.wait()

    async def run(self) -> None:
        nodes = _Follower(NODES, self._replace_nodes, self._apply_node, self._remove_node, self._node_label_selector)
        pods = _Follower(PODS, self._replace_pods, self._apply_pod, self._remove_pod, trim=self._trim_pod)
        ledger, known = self._ledger, self._budgets
        quotas = _Follower(RESOURCE_QUOTAS, ledger.replace_quotas, self._apply_quota, self._remove_quota)
        # Nothing but evicting waits for them: a cluster that grants no right to list them is served all the same.
        budgets = _Follower(POD_DISRUPTION_BUDGETS, known.replace, known.apply, known.remove)
        async with asyncio.TaskGroup() as followers:
            followers.create_task(self._follow(nodes))
            followers.create_task(self._follow(budgets))
            followers.create_task(self._follow_anew(pods, self._pods_again))
            followers.create_task(self._follow(quotas))

    async def _follow_anew(self, follower: _Follower[T], again: asyncio.Event) -> None:
        """From a list at first and whenever `again` is set."""
        while True:
            again.clear()
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(self._follow(follower))
                await again.wait()
                following.cancel()

    async def _follow(self, follower: _Follower[T]) -> None:
        plural = follower.resource.plural
        async for change in reflect(
            self._api, follower.resource, label_selector=follower.label_selector, trim=follower.trim
        ):
            if not isinstance(change, Interrupted):
                self._interrupted.pop(plural, None)
            match change:
                case Replaced(objects):
                    follower.replace(objects)
                    self._listed(plural)
                case Applied(changed):
                    follower.apply(changed)
                case Removed(removed):
                    follower.remove(removed)
                case Interrupted(problem, seconds):
                    if plural != POD_DISRUPTION_BUDGETS.plural:
                        self._interrupted[plural] = f"the watch of {plural} is interrupted: {problem}"
                    log.warning("the watch of %s is interrupted, next try in %.1f s: %s", plural, seconds, problem)

    def _listed(self, plural: str) -> None:
        if plural in self._missing:
            self._missing.remove(plural)
            if not self._missing:
                log.info("nodes, pods and quotas are known")
                self._known()
                # They stay: a full collection over all of them would hold up an answer by tenths of a second.
                gc.freeze()
                self._synced.set()
                self._freed()

    def _replace_nodes(self, nodes: Sequence[Node]) -> None:
        self._ledger.replace_nodes(nodes)
        self._view.replace_nodes(nodes)
        self._nodes.keep_only({node.metadata.name for node in nodes})
        for node in nodes:
            self._check_node(node)

    def _apply_node(self, node: Node) -> None:
        before = self._view.node(node.metadata.name)
        self._ledger.apply_node(node)
        self._view.apply_node(node)
        after = self._view.node(node.metadata.name)
        if after is not None and (before is None or before.offer != after.offer):
            self._freed()
        self._check_node(node)

    def _remove_node(self, node: Node) -> None:
        self._ledger.remove_node(node.metadata.name)
        self._view.remove_node(node.metadata.name)
        self._nodes.drop(node.metadata.name)

    def _check_node(self, node: Node) -> None:
        name = node.metadata.name
        # Kubelet's events carry the name as uid as well, and `kubectl describe node` looks for that.
        subject = ObjectReference(api_version="v1", kind="Node", name=name, uid=name)
        self._nodes.update(name, subject, self._ledger.node_problem(name))

    def _trim_pod(self, pod: Pod) -> None:
        """Budgets select by labels, and only pods with GPUs are evicted."""
        trim_pod(pod, labelled=self._view.concerns_gpus(pod))

    def _replace_pods(self, pods: Sequence[Pod]) -> None:
        self._ledger.replace_pods(pods)
        self._view.replace_pods(pods)
        self._nominations.replace(pods)
        self._pods.keep_only({pod_key(pod) for pod in pods})
        for pod in pods:
            self._check_pod(pod)

    def _apply_pod(self, pod: Pod) -> None:
        self._ledger.apply_pod(pod)
        self._view.apply_pod(pod)
        self._nominations.apply(pod)
        self._check_pod(pod)
        if pod.spec.node_name:
            self._waiting.settled(pod_key(pod))
        if pod.has_ended and self._view.concerns_gpus(pod):
            self._freed()

    def _remove_pod(self, pod: Pod) -> None:
        self._waiting.settled(pod_key(pod))
        if self._view.concerns_gpus(pod):
            self._freed()
        until = self._monotonic() + ORPHAN_SECONDS if outlives(pod) else None
        version = pod.metadata.resource_version
        deleted_at = int(version) if version.isascii() and version.isdigit() else 0
        self._ledger.remove_pod(pod_key(pod), until, deleted_at=deleted_at)
        self._view.remove_pod(pod)
        self._nominations.remove(pod)
        self._pods.drop(pod_key(pod))

    def _apply_quota(self, quota: ResourceQuota) -> None:
        self._ledger.apply_quota(quota)
        self._freed()

    def _remove_quota(self, quota: ResourceQuota) -> None:
        self._ledger.remove_quota(quota)
        self._freed()

    def _check_pod(self, pod: Pod) -> None:
        problem = self._ledger.pod_problem(pod_key(pod))
        if problem and self._ledger.is_decided(pod_key(pod)):
            problem = f"{problem}; until it is corrected the GPUs it may be about count as full"
        self._pods.update(pod_key(pod), pod_reference(pod), problem)


def trim_pod(pod: Pod, *, labelled: bool) -> None:
    """Leaves identity, state, requests for resources, and annotations of GPU schedulers; equal parts become one.

    Labels stay if the pod is `labelled`.
    """
    metadata, spec = pod.metadata, pod.spec
    metadata.labels = _one(dict[str, str], metadata.labels if labelled else {})
    metadata.annotations = {
        key: intern(value) if key in _SHARED_VALUES else value
        for key, value in metadata.annotations.items()
        if key.startswith(OUR_DOMAINS)
    }
    metadata.namespace, spec.node_name = intern(metadata.namespace), intern(spec.node_name)
    spec.scheduler_name, spec.priority_class_name = intern(spec.scheduler_name), intern(spec.priority_class_name)
    spec.affinity = _one(Affinity, spec.affinity) if has_cross_namespace_affinity(spec) else None
    spec.resources = _one(Resources | None, spec.resources)
    for container in pod.all_containers:
        container.image, container.security_context = "", None
        container.command, container.args, container.env = [], [], []
    spec.init_containers = _one(list[Container], spec.init_containers)
    spec.containers = _one(list[Container], spec.containers)
    # What kube-scheduler says of a pod that it did not place is read while the pod waits.
    pod.status.conditions = (
        [] if spec.node_name else [one for one in pod.status.conditions if one.type == POD_SCHEDULED]
    )
    pod.status.container_statuses = []
    pod.status = _one(PodStatus, pod.status)


def _one(kind: Any, value: V) -> V:
    """The same object for each value of this type that is equal: pods are made from few templates."""
    found: V = _decoded(kind, msgspec.msgpack.encode(value))
    return found


@lru_cache(maxsize=4096)
def _decoded(kind: Any, encoded: bytes) -> Any:
    return msgspec.msgpack.decode(encoded, type=kind)


def pod_reference(pod: Pod) -> ObjectReference:
    """For events."""
    metadata = pod.metadata
    return ObjectReference(
        api_version="v1", kind="Pod", name=metadata.name, namespace=metadata.namespace, uid=metadata.uid
    )
