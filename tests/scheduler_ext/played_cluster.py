"""An API server without a network: the JSON of its objects, and what its watches still have to tell."""

import json
from collections import deque
from typing import Any

import msgspec

from proto.kubernetes.errors import ApiUnreachable, Conflict, Forbidden, NotFound
from proto.kubernetes.objects import Binding, Node, Pod

Json = dict[str, Any]


class Cluster:
    """The API server: objects by name, and what its watches still have to tell."""

    def __init__(self) -> None:
        self.pods: dict[str, Json] = {}
        self.nodes: dict[str, Json] = {}
        self.news: deque[tuple[str, Json]] = deque()
        self.mood = "well"
        self.timeout_seconds = 10.0
        self.version = 0
        self.sent: set[str] = set()
        """UIDs of the pods for which a Binding came that was not refused outright."""

    def write(self, pod: Json) -> None:
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)
        self.pods[pod["metadata"]["name"]] = pod
        self.news.append(("pod", copied(pod)))

    def write_node(self, node: Json) -> None:
        self.nodes[node["metadata"]["name"]] = node
        self.news.append(("node", copied(node)))

    async def get(self, resource: Any, name: str, namespace: str = "") -> Any:
        if self.mood == "silent":
            raise ApiUnreachable("no answer")
        found, kind = (self.nodes, Node) if resource.plural == "nodes" else (self.pods, Pod)
        if name not in found:
            raise NotFound(404, "NotFound", f"{name} not found")
        return msgspec.convert(found[name], kind)

    async def bind(self, binding: Binding, *, within_seconds: float) -> None:
        mood, pod = self.mood, self.pods.get(binding.metadata.name)
        if mood == "refuses":
            raise Forbidden(403, "Forbidden", "not today")
        self.sent.add(binding.metadata.uid)
        if mood == "silent":
            raise ApiUnreachable("no answer")
        if pod is None:
            raise NotFound(404, "NotFound", "no such pod")
        taken = pod["spec"].get("nodeName") or pod["metadata"]["uid"] != binding.metadata.uid
        if taken or pod["metadata"].get("deletionTimestamp"):
            raise Conflict(409, "Conflict", "already assigned")
        bound = copied(pod)
        bound["spec"]["nodeName"] = binding.target.name
        bound["metadata"].setdefault("annotations", {}).update(binding.metadata.annotations)
        self.write(bound)
        if mood == "loses answers":
            self.mood = "silent"
            raise ApiUnreachable("the connection broke")


def pod_json(name: str, asked: list[tuple[str, Json]], *, restart_policy: str) -> Json:
    """`asked` is the kind and the limits of each container."""
    inits, apps = [], []
    for position, (kind, limits) in enumerate(asked):
        container: Json = {"name": f"c{position}", "resources": {"limits": limits}}
        if kind == "app":
            apps.append(container)
        else:
            inits.append(container | ({"restartPolicy": "Always"} if kind == "sidecar" else {}))
    spec = {"initContainers": inits, "containers": apps, "restartPolicy": restart_policy}
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return {"metadata": metadata, "spec": spec, "status": {}}


def copied(item: Json) -> Json:
    found: Json = json.loads(json.dumps(item))
    return found
