"""A whole extender without a socket: its verbs are called, and what the API server says comes from memory.

All the rest is as in a cluster: bodies and the lines of watches are decoded, answers encoded, events recorded.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from proto.kubernetes.client import ApiServer, Opened, WatchEvent
from proto.kubernetes.errors import NotFound
from proto.kubernetes.objects import Binding, Object, ObjectList, Resource
from proto.kubernetes.wire import WatchFailed, decode_list, decode_object, decode_watch_line
from scheduler_ext.http.messages import HttpRequest, answer_of
from scheduler_ext.requests import RequestSettings
from scheduler_ext.running import Applications, running_extender
from scheduler_ext.settings import ServeSettings
from tests.polling import until
from tests.scheduler_ext.reached import roots_of, sizes

T = TypeVar("T", bound=Object)
Json = dict[str, Any]

log = logging.getLogger(__name__)


class InMemory(ApiServer):
    """Nodes that stay as they are, and pods by name. It keeps nothing of a pod that was deleted."""

    def __init__(self, nodes: list[Json]) -> None:
        # The client's own would look for a server.
        self.url, self.timeout_seconds = "an API server in memory", 10.0
        self._items: dict[str, list[Json]] = {"nodes": nodes}
        self._pods: dict[str, Json] = {}
        self._version = 1
        self._lines: dict[str, asyncio.Queue[bytes]] = {}
        """What each watch has still to tell, by the kind."""

    def add(self, pod: Json) -> None:
        self._pods[pod["metadata"]["name"]] = pod
        self._tell("ADDED", pod)

    def change(self, name: str, **changes: Any) -> None:
        """Of its fields, such as the whole `status`."""
        self._pods[name] = changed = {**self._pods[name], **changes}
        self._tell("MODIFIED", changed)

    def delete(self, name: str) -> None:
        self._tell("DELETED", self._pods.pop(name))

    async def all_seen(self) -> None:
        """Once the extender has worked in all that was told."""
        for lines in self._lines.values():
            await lines.join()

    def _tell(self, kind: str, pod: Json) -> None:
        self._version += 1
        pod["metadata"] = {**pod["metadata"], "resourceVersion": str(self._version)}
        self._lines["pods"].put_nowait(msgspec.json.encode({"type": kind, "object": pod}))

    async def list_page(self, resource: Resource[T], **_: Any) -> ObjectList[T]:
        items = [*self._pods.values()] if resource.plural == "pods" else self._items.get(resource.plural, [])
        body = msgspec.json.encode({"metadata": {"resourceVersion": str(self._version)}, "items": items})
        return decode_list(resource.type, body, log.warning)

    async def watch(self, resource: Resource[T], **_: Any) -> AsyncGenerator[WatchEvent[T], None]:
        lines = self._lines[resource.plural] = asyncio.Queue()
        yield Opened()
        while True:
            event = decode_watch_line(resource.type, await lines.get(), log.warning)
            assert event is not None
            assert not isinstance(event, WatchFailed)
            yield event
            lines.task_done()

    async def get(self, resource: Resource[T], name: str, namespace: str = "") -> T:
        if resource.plural != "pods" or name not in self._pods:
            raise NotFound(404, "NotFound", f"{resource.plural} {name} not found")
        return decode_object(resource.type, msgspec.json.encode(self._pods[name]))

    async def create(self, resource: Resource[T], body: Object, *, namespace: str = "") -> T:
        """Of events only, which are not kept."""
        return decode_object(resource.type, msgspec.json.encode(body))

    async def bind(self, binding: Binding, *, within_seconds: float | None = None) -> None:
        pod = self._pods.get(binding.metadata.name)
        if pod is None:
            raise NotFound(404, "NotFound", f"pods {binding.metadata.name} not found")
        metadata = pod["metadata"]
        annotations = {**metadata.get("annotations", {}), **binding.metadata.annotations}
        bound = {
            **pod,
            "metadata": {**metadata, "annotations": annotations},
            "spec": {**pod["spec"], "nodeName": binding.target.name},
        }
        self._pods[binding.metadata.name] = bound
        self._tell("MODIFIED", bound)


@dataclass(frozen=True, slots=True)
class InProcess:
    """The extender and the API server that it follows."""

    api: InMemory
    applications: Applications

    def sizes(self) -> Counter[str]:
        """How many objects each store of the extender has."""
        ours = ("scheduler_ext", "proto")
        return sizes([("the applications", self.applications), *roots_of(ours)], ours)

    async def ask(self, verb: str, body: Mapping[str, Any]) -> Json:
        """As kube-scheduler does; done as soon as the answer is, with what is left for afterwards."""
        answer = await answer_of(
            self.applications.verbs.private[f"/{verb}"]["POST"], HttpRequest(msgspec.json.encode(body))
        )
        if answer.afterwards is not None:
            answer.afterwards()
        found: Json = msgspec.json.decode(answer.body)
        return found

    async def filter(self, pod: Json, node_names: list[str]) -> str:
        """The node for the pod; empty where it fits nowhere."""
        answer = await self.ask("filter", {"Pod": pod, "NodeNames": node_names})
        assert not answer["Error"], answer
        return str((answer["NodeNames"] or [""])[0])

    async def bind(self, pod: Json, node: str) -> str:
        """What went wrong; empty once it is bound."""
        metadata = pod["metadata"]
        own = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
        return str((await self.ask("bind", {**own, "Node": node}))["Error"])

    async def place(self, pod: Json, node_names: list[str]) -> str:
        """Filters and binds as kube-scheduler does; the node, or empty where the pod fits nowhere."""
        node = await self.filter(pod, node_names)
        if node:
            problem = await self.bind(pod, node)
            assert not problem
        return node


@asynccontextmanager
async def in_process(
    nodes: list[Json], settings: ServeSettings | None = None, requests: RequestSettings | None = None
) -> AsyncIterator[InProcess]:
    api = InMemory(nodes)
    async with running_extender(api, settings or ServeSettings(), requests or RequestSettings()) as applications:

        async def ready() -> bool:
            return (await applications.verbs.public["/readyz"]["GET"](HttpRequest())).status == 200

        await until(ready)
        yield InProcess(api, applications)
