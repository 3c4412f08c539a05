"""Stands in for kube-scheduler towards an HTTP extender (edge).

One scheduling cycle at a time, of a pod or of a group; bindings in the background; replies read as kube-scheduler reads
them (`nodeCacheCapable: true`). Objects stay the JSON that the API server sent, so the extender sees whole pods.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Generic, TypeVar

import aiohttp
import msgspec

from proto.decoding import converted
from proto.kubernetes.client import ApiServer
from proto.kubernetes.objects import UNSCHEDULABLE, Node, Object, ObjectMeta, Resource
from proto.kubernetes.reflector import ObjectApplied, ObjectRemoved, Replaced, reflect
from scheduler_ext.requests import ResourceNames
from simulation import group_cycle as cycle
from simulation import scheduling_queue as queue
from simulation.extender_calls import CallRefused, ExtenderCalls, JsonObject
from simulation.plan.objects import Constraints, WholePod, constraints_of
from simulation.plan.offers import HostRequest, NodeOffers, left_to_extender, request_of
from simulation.scheduler_writes import SchedulerWrites
from simulation.words import HostPolicy

MANAGED_RESOURCES = left_to_extender(ResourceNames())
"""Resources that kube-scheduler leaves to the extender, as shipped: `ignoredByScheduler`."""


T = TypeVar("T")


class WholeObject(Object):
    """A pod or node as the API server sent it."""

    sent_metadata: JsonObject = msgspec.field(name="metadata", default_factory=dict)
    spec: JsonObject = msgspec.field(default_factory=dict)
    status: JsonObject = msgspec.field(default_factory=dict)

    @property
    def metadata(self) -> ObjectMeta:
        return converted(self.sent_metadata, ObjectMeta)

    def json(self) -> JsonObject:
        return {"metadata": self.sent_metadata, "spec": self.spec, "status": self.status}


_PODS = Resource("v1", "pods", True, WholeObject)
_NODES = Resource("v1", "nodes", False, WholeObject)
_GROUPS = Resource("scheduling.k8s.io/v1beta1", "podgroups", True, WholeObject)


class _Read(Generic[T]):
    """Values that were read of objects. A value is read once until its object changes."""

    def __init__(self, read: Callable[[JsonObject], T]) -> None:
        self._read = read
        self._known: dict[str, tuple[JsonObject, T]] = {}

    def of(self, uid: str, item: JsonObject) -> T:
        known = self._known.get(uid)
        if known is None or known[0] is not item:
            known = self._known[uid] = item, self._read(item)
        return known[1]

    def forget(self, uid: str) -> None:
        self._known.pop(uid, None)


class KubeSchedulerStandIn:
    """`async with KubeSchedulerStandIn(api, extender_url):` schedules the pods that name this scheduler."""

    def __init__(
        self,
        api: ApiServer,
        extender_url: str,
        scheduler_name: str = "topogpu-scheduler",
        *,
        managed_resources: Collection[str] = MANAGED_RESOURCES,
        extender_timeout_seconds: float = 30.0,
        also_default: bool = False,
        seed: int = 0,
    ) -> None:
        """With `also_default` it schedules pods that name no scheduler, too. `seed` is for the order of domains."""
        self._extender = ExtenderCalls(extender_url, lambda: self._http, extender_timeout_seconds)
        self.moments = self._extender.moments
        self._api = api
        self._names = frozenset({scheduler_name, queue.DEFAULT_SCHEDULER} if also_default else {scheduler_name})
        self._managed = managed_resources
        self._pods: dict[str, JsonObject] = {}
        self._nodes: dict[str, JsonObject] = {}
        self._groups: dict[str, JsonObject] = {}
        self._read_nodes = _Read(lambda node: converted(node, Node))
        self._read_pods = _Read(self._read_pod)
        self._random = Random(seed)  # noqa: S311 - an order to repeat
        self.failing_binds: set[str] = set()
        """Names of pods whose next bind fails before the extender is called, as behind a plugin that fails."""
        self._assumed: dict[str, str] = {}
        """The node of each pod that is bound or about to be, by its uid."""
        self._synced: set[str] = set()
        self._backoff = queue.QueueBackoff()
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None
        self._writes = SchedulerWrites(api.url, lambda: self._http)

    async def __aenter__(self) -> "KubeSchedulerStandIn":
        agent = {"User-Agent": "kube-scheduler-stand-in"}
        self._session = aiohttp.ClientSession(headers=agent, connector=aiohttp.TCPConnector(limit=0))
        self._start(self._follow(_PODS, self._pods))
        self._start(self._follow(_NODES, self._nodes))
        self._start(self._follow(_GROUPS, self._groups))
        self._start(self._schedule())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    @property
    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the scheduler stand-in is entered with `async with` before use")
        return self._session

    def _start(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Watching

    async def _follow(self, resource: Resource[WholeObject], held: dict[str, JsonObject]) -> None:
        """Keeps `held` (by uid) like the API server."""
        async for change in reflect(self._api, resource):
            match change:
                case Replaced(objects):
                    held.clear()
                    held.update({each.metadata.uid: each.json() for each in objects})
                    self._synced.add(resource.plural)
                    self._changed()
                case ObjectApplied(found):
                    self._apply(resource, held, found)
                case ObjectRemoved(found):
                    uid = found.metadata.uid
                    held.pop(uid, None)
                    self._backoff.forget(uid)
                    self._assumed.pop(uid, None)
                    self._read_pods.forget(uid)
                    self._read_nodes.forget(uid)
                    self._changed()

    def _apply(self, resource: Resource[WholeObject], held: dict[str, JsonObject], found: WholeObject) -> None:
        uid, item = found.metadata.uid, found.json()
        before, held[uid] = held.get(uid), item
        # What this scheduler itself writes about a waiting pod is no change of the cluster.
        own = resource is _PODS and queue.is_waiting(item, self._names)
        if not (before and own and _same(before, item)):
            self._changed()

    def _changed(self) -> None:
        self._backoff.cluster_changed()
        self._news.set()

    # Scheduling

    async def _schedule(self) -> None:
        while True:
            self._news.clear()
            now = asyncio.get_running_loop().time()
            pod = self._next(now) if {"pods", "nodes", "podgroups"} <= self._synced else None
            if pod is not None:
                group = cycle.group_of(pod, self._groups.values())
                await (
                    self._cycle(pod)
                    if group is None
                    else self._group_cycle(group, cycle.members(pod, self._pods.values()))
                )
                continue
            due = self._backoff.next_due(uid for uid, pod in self._pods.items() if self._waits(uid, pod))
            with suppress(TimeoutError):
                async with asyncio.timeout(None if due is None else max(due - now, 0.01)):
                    await self._news.wait()

    def _waits(self, uid: str, pod: JsonObject) -> bool:
        """Returns whether the pod is to be scheduled. One of a group waits until as many exist as start together."""
        if uid in self._assumed or not queue.is_waiting(pod, self._names):
            return False
        if cycle.group_key(pod) is None:
            return True
        group = cycle.group_of(pod, self._groups.values())
        return group is not None and len(cycle.members(pod, self._pods.values())) >= cycle.min_count(group)

    def _next(self, now: float) -> JsonObject | None:
        waiting = (pod for uid, pod in self._pods.items() if self._waits(uid, pod) and self._backoff.is_due(uid, now))
        return min(waiting, key=queue.order, default=None)

    async def _cycle(self, pod: JsonObject) -> None:
        """Makes one attempt: filter, take the first node, bind in the background; or record why not."""
        try:
            node, message = await self._chosen(pod, [node["metadata"]["name"] for node in self._nodes.values()])
        except (CallRefused, ValueError) as e:
            await self._failed(pod, str(e), "SchedulerError", park=False)
            return
        if not node:
            await self._failed(pod, message, UNSCHEDULABLE, park=True)
            return
        self._assumed[pod["metadata"]["uid"]] = node
        self._start(self._bind(pod, node))

    async def _chosen(self, pod: JsonObject, among: Collection[str]) -> tuple[str, str]:
        """Returns the first of these nodes that passes, or why none does. Raises CallRefused, ValueError."""
        offers, (constraints, requested) = self._offers(), self._read_pods.of(pod["metadata"]["uid"], pod)
        problems = {name: why for name, why in offers.problems(constraints, requested).items() if name in among}
        passed = sorted(name for name in among if name not in problems)
        if not queue.mentions_managed_resource(pod, self._managed):
            node = offers.best_for_hosts(passed)
            passed = [] if node is None else [node]
        elif passed:
            question = passed
            reply = await self._extender.call("filter", {"Pod": pod, "Nodes": None, "NodeNames": question})
            passed, refused = queue.passed_nodes(reply, question)
            problems |= {name: refused.get(name, "node(s) didn't pass the extender") for name in question}
        if passed:
            return passed[0], ""
        return "", queue.unschedulable_message(len(among), problems.values())

    async def _group_cycle(self, group: JsonObject, members: Sequence[JsonObject]) -> None:
        """Simulates the members that wait in each domain, and binds the winner without another question."""
        nodes = {pod["metadata"]["uid"]: pod["spec"].get("nodeName") or "" for pod in members} | self._assumed
        held = [name for pod in members if (name := nodes[pod["metadata"]["uid"]])]
        waiting = [pod for pod in members if self._waits(pod["metadata"]["uid"], pod)]
        domains = cycle.domains(group, self._nodes.values(), held, self._random)
        try:
            simulated = [await self._simulated(group, waiting, names, len(held)) for names in domains]
        except (CallRefused, ValueError) as e:
            for pod in waiting:
                await self._failed(pod, str(e), "SchedulerError", park=False)
            return
        won = cycle.winner(simulated, self._random)
        for pod in waiting:
            uid = pod["metadata"]["uid"]
            if won is not None and uid in won:
                self._assumed[uid] = won[uid]
                self._start(self._bind(pod, won[uid]))
                continue
            problem = next((each.problems[uid] for each in simulated if uid in each.problems), "")
            await self._failed(pod, problem or "pod group is unschedulable", UNSCHEDULABLE, park=True)

    async def _simulated(
        self, group: JsonObject, waiting: Sequence[JsonObject], names: Collection[str], before: int
    ) -> cycle.Simulated:
        found = cycle.Simulated(cycle.min_count(group), before, len(waiting))
        try:
            for pod in waiting:
                if found.is_hopeless:
                    break
                uid = pod["metadata"]["uid"]
                node, problem = await self._chosen(pod, names)
                if node:
                    found.placed(uid, node)
                    self._assumed[uid] = node
                else:
                    found.refused(uid, problem)
        finally:
            for uid in found.nodes:
                self._assumed.pop(uid, None)
        return found

    def _offers(self) -> NodeOffers:
        """Returns the nodes with what the pods leave of them, those that are about to be bound included."""
        nodes = [self._read_nodes.of(uid, node) for uid, node in self._nodes.items()]
        offers = NodeOffers(nodes, self._managed, HostPolicy.LEAST_ALLOCATED)
        for uid, pod in self._pods.items():
            node = pod["spec"].get("nodeName") or self._assumed.get(uid)
            if node and (pod.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}:
                offers.take(node, self._read_pods.of(uid, pod)[1])
        return offers

    def _read_pod(self, pod: JsonObject) -> tuple[Constraints, HostRequest]:
        read = converted(pod, WholePod)
        return constraints_of(read), request_of(read, self._managed)

    async def _bind(self, pod: JsonObject, node: str) -> None:
        metadata = pod["metadata"]
        try:
            if metadata["name"] in self.failing_binds:
                self.failing_binds.remove(metadata["name"])
                raise CallRefused("a plugin failed")
            if queue.mentions_managed_resource(pod, self._managed):
                body = {
                    "PodName": metadata["name"],
                    "PodNamespace": metadata["namespace"],
                    "PodUID": metadata["uid"],
                    "Node": node,
                }
                reply = await self._extender.call("bind", body)
                if problem := reply.get("Error"):
                    raise CallRefused(str(problem))
            else:
                await self._writes.binding(metadata, node)
        except CallRefused as e:
            self._assumed.pop(metadata["uid"], None)
            await self._failed(pod, f"binding rejected: {e}", "SchedulerError", park=False)
            self._news.set()
            return
        where = f"{metadata['namespace']}/{metadata['name']}"
        await self._writes.event(pod, "Normal", "Scheduled", f"Successfully assigned {where} to {node}")
        self._backoff.forget(metadata["uid"])

    async def _failed(self, pod: JsonObject, message: str, reason: str, *, park: bool) -> None:
        self._backoff.failed(pod["metadata"]["uid"], asyncio.get_running_loop().time(), park=park)
        await self._writes.condition(pod, reason, message)
        await self._writes.event(pod, "Warning", "FailedScheduling", message)


def _same(before: JsonObject, after: JsonObject) -> bool:
    """Returns whether a pod's author changed nothing."""
    own = ("labels", "annotations")
    same_metadata = all(before["metadata"].get(key) == after["metadata"].get(key) for key in own)
    return same_metadata and bool(before["spec"] == after["spec"])
