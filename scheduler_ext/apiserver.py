"""Keeps ledger and view current from the API server, and tells the owners of annotations nobody can read."""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from proto.kubernetes.client import ApiServer
from proto.kubernetes.notices import Notice
from proto.kubernetes.objects import NODES, PODS, RESOURCE_QUOTAS, Node, Object, ObjectReference, Pod, Resource
from proto.kubernetes.reflector import Applied, Interrupted, Removed, Replaced, reflect
from scheduler_ext.binding.view import View
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.requests import pod_key

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)


@dataclass(frozen=True, slots=True)
class _Follower(Generic[T]):
    """What to do with the changes of one kind."""

    resource: Resource[T]
    replace: Callable[[Sequence[T]], None]
    apply: Callable[[T], None]
    remove: Callable[[T], None]


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

    `tell` takes the notices for nodes and pods whose annotations cannot be read.
    """

    def __init__(
        self, *, api: ApiServer, ledger: Ledger, view: View, tell: Callable[[ObjectReference, Notice], None]
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._view = view
        self._nodes = _Complaints("UnreadableRegistration", tell)
        self._pods = _Complaints("UnreadableAllocation", tell)
        self._missing = [NODES.plural, PODS.plural, RESOURCE_QUOTAS.plural]
        self._synced = asyncio.Event()

    def missing(self) -> Sequence[str]:
        """What has not been listed yet."""
        return tuple(self._missing)

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

    async def run(self) -> None:
        nodes = _Follower(NODES, self._replace_nodes, self._apply_node, self._remove_node)
        pods = _Follower(PODS, self._replace_pods, self._apply_pod, self._remove_pod)
        ledger = self._ledger
        quotas = _Follower(RESOURCE_QUOTAS, ledger.replace_quotas, ledger.apply_quota, ledger.remove_quota)
        async with asyncio.TaskGroup() as followers:
            followers.create_task(self._follow(nodes))
            followers.create_task(self._follow(pods))
            followers.create_task(self._follow(quotas))

    async def _follow(self, follower: _Follower[T]) -> None:
        plural = follower.resource.plural
        async for change in reflect(self._api, follower.resource):
            match change:
                case Replaced(objects):
                    follower.replace(objects)
                    self._listed(plural)
                case Applied(changed):
                    follower.apply(changed)
                case Removed(removed):
                    follower.remove(removed)
                case Interrupted(problem, seconds):
                    log.warning("the watch of %s is interrupted, next try in %.1f s: %s", plural, seconds, problem)

    def _listed(self, plural: str) -> None:
        if plural in self._missing:
            self._missing.remove(plural)
            if not self._missing:
                log.info("nodes, pods and quotas are known")
                self._synced.set()

    def _replace_nodes(self, nodes: Sequence[Node]) -> None:
        self._ledger.replace_nodes(nodes)
        self._view.replace_nodes(nodes)
        self._nodes.keep_only({node.metadata.name for node in nodes})
        for node in nodes:
            self._check_node(node)

    def _apply_node(self, node: Node) -> None:
        self._ledger.apply_node(node)
        self._view.apply_node(node)
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

    def _replace_pods(self, pods: Sequence[Pod]) -> None:
        self._ledger.replace_pods(pods)
        self._view.replace_pods(pods)
        self._pods.keep_only({pod_key(pod) for pod in pods})
        for pod in pods:
            self._check_pod(pod)

    def _apply_pod(self, pod: Pod) -> None:
        self._ledger.apply_pod(pod)
        self._view.apply_pod(pod)
        self._check_pod(pod)

    def _remove_pod(self, pod: Pod) -> None:
        self._ledger.remove_pod(pod_key(pod))
        self._view.remove_pod(pod)
        self._pods.drop(pod_key(pod))

    def _check_pod(self, pod: Pod) -> None:
        problem = self._ledger.pod_problem(pod_key(pod))
        if problem:
            problem = f"{problem}; until it is corrected the GPUs it may be about count as full"
        self._pods.update(pod_key(pod), pod_reference(pod), problem)


def pod_reference(pod: Pod) -> ObjectReference:
    """For events."""
    metadata = pod.metadata
    return ObjectReference(
        api_version="v1", kind="Pod", name=metadata.name, namespace=metadata.namespace, uid=metadata.uid
    )
