"""The real kube-scheduler with our extender beside it, on nodes that exist as objects only."""

import asyncio
import json
import sys
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from deviceplugin.machine.discovery import NodeSharing, discover_devices
from deviceplugin.machine.topology import build_topology, pair_scores
from proto.annotations import keys
from proto.annotations.node_register import encode_register, encode_scores
from simulation import machines
from simulation.machines.described import describe_reading
from simulation.processes import ChildProcess
from tests.cluster.control_plane import ControlPlane
from tests.cluster.peers import Peer
from tests.daemonset import shipped
from tests.polling import until

JsonObject = dict[str, Any]
EXTENDER_USER = "topogpu-scheduler"
_LONGEST_SECONDS = 120.0
EXTENDER_RIGHTS = (
    ("", "nodes", "get list watch patch"),
    ("", "pods", "get list watch patch"),
    ("", "pods/binding", "create"),
    ("", "events", "create"),
    ("", "resourcequotas", "list watch"),
    ("policy", "poddisruptionbudgets", "list watch"),
    *((group, "podgroups", "list watch") for group in ("scheduling.k8s.io", "scheduling.x-k8s.io")),
    ("", "pods/eviction", "create"),
    ("coordination.k8s.io", "leases", "list watch create patch"),
)
"""What docs/security.md says the extender needs."""


@dataclass
class Recorder:
    """Stands between kube-scheduler and the extender: hands everything on, and remembers it."""

    http: aiohttp.ClientSession
    extender: str
    calls: list[tuple[str, JsonObject, JsonObject]] = field(default_factory=list)
    """Verb, question and answer."""
    binds: asyncio.Event = field(default_factory=asyncio.Event)
    """While it is not set, binds wait here, as behind a slow PreBind plugin."""

    def __post_init__(self) -> None:
        self.binds.set()

    async def hand_on(self, request: web.Request) -> web.Response:
        body = await request.read()
        if request.path == "/bind":
            await self.binds.wait()
        async with self.http.post(self.extender + request.path, data=body) as response:
            answer = await response.read()
            if response.status == 200:
                self.calls.append((request.path.strip("/"), json.loads(body), json.loads(answer)))
            return web.Response(body=answer, status=response.status, content_type="application/json")

    def of(self, verb: str) -> list[tuple[JsonObject, JsonObject]]:
        return [(asked, answered) for called, asked, answered in self.calls if called == verb]


@dataclass(frozen=True)
class Cluster:
    """A running pair of scheduler and extender, and the objects that the test made."""

    plane: ControlPlane
    peer: Peer
    recorder: Recorder
    extender: str
    namespace: str

    async def pod(self, name: str) -> JsonObject:
        status, found = await self.peer.send("GET", f"/api/v1/namespaces/{self.namespace}/pods/{name}")
        assert status == 200, found
        return found

    async def pods(self) -> dict[str, JsonObject]:
        _, found = await self.peer.send("GET", f"/api/v1/namespaces/{self.namespace}/pods")
        return {pod["metadata"]["name"]: pod for pod in found["items"]}

    async def add(self, pod: JsonObject) -> JsonObject:
        return await self.peer.create(f"/api/v1/namespaces/{self.namespace}/pods", pod)

    async def remove(self, name: str) -> None:
        """For good, as kubelet does once its containers have ended."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}?gracePeriodSeconds=0"
        status, answer = await self.peer.send("DELETE", path)
        assert status == 200, answer

    async def node_of(self, name: str) -> str:
        return str((await self.pod(name))["spec"].get("nodeName", ""))

    async def bound(self, *names: str) -> None:
        async def all_bound() -> bool:
            pods = await self.pods()
            return all(pods[name]["spec"].get("nodeName") for name in names)

        await until(all_bound)

    async def refused(self, name: str) -> JsonObject:
        """The PodScheduled condition once kube-scheduler has tried and given up for now."""

        async def condition() -> JsonObject | None:
            conditions = (await self.pod(name))["status"].get("conditions") or []
            return next((one for one in conditions if one["type"] == "PodScheduled"), None)

        async def is_there() -> bool:
            return await condition() is not None

        await until(is_there)
        return await condition() or {}


def scheduler_configuration(extender: str, verbs: Mapping[str, str], **changes: object) -> JsonObject:
    """The shipped one, with the extender's address and further verbs; who calls is the control plane's to say."""
    document = shipped.scheduler_configuration(shipped.base())
    document["extenders"][0] |= {"urlPrefix": extender, **verbs}
    del document["clientConnection"]
    return document | {"leaderElection": {"leaderElect": False}, **changes}


@asynccontextmanager
async def running(
    plane: ControlPlane,
    peer: Peer,
    folder: Path,
    *nodes: JsonObject,
    verbs: Mapping[str, str] | None = None,
    options: tuple[str, ...] = (),
    **configuration: object,
) -> AsyncIterator[Cluster]:
    """`placing` on these nodes; nodes and pods are taken away again at the end."""
    namespace = await peer.namespace(f"test-{uuid.uuid4().hex[:8]}")
    for node in nodes:
        await peer.create("/api/v1/nodes", node)
    try:
        async with placing(plane, peer, folder, namespace, verbs=verbs, options=options, **configuration) as cluster:
            yield cluster
    finally:
        await clear(peer, namespace)


@asynccontextmanager
async def placing(
    plane: ControlPlane,
    peer: Peer,
    folder: Path,
    namespace: str,
    *,
    verbs: Mapping[str, str] | None = None,
    options: tuple[str, ...] = (),
    **configuration: object,
) -> AsyncIterator[Cluster]:
    """Scheduler and extender at work on whatever nodes there are."""
    await grant_rights(peer, EXTENDER_USER, EXTENDER_RIGHTS)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(extender_of(plane, folder, options))
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        recorder = Recorder(http, url)
        front = await stack.enter_async_context(_listening(recorder))
        written = scheduler_configuration(front, verbs or {}, **configuration)
        program = await asyncio.to_thread(stack.enter_context, plane.scheduler(written, f"scheduler-{namespace}"))
        program.check_running()
        try:
            yield Cluster(plane, peer, recorder, url, namespace)
        except TimeoutError as error:
            answers = [
                (verb, asked.get("Pod", {}).get("metadata", asked), answer)
                for verb, asked, answer in recorder.calls[-3:]
            ]
            log = (folder / "extender.log").read_text()[-2000:]
            error.add_note(f"last answers: {answers}\nkube-scheduler: {program.last_lines()}\nextender: {log}")
            raise
        program.check_running()


@asynccontextmanager
async def extender_of(plane: ControlPlane, folder: Path, options: tuple[str, ...] = ()) -> AsyncIterator[str]:
    """Its address."""
    arguments = [
        *(sys.executable, "-m", "scheduler_ext", "serve", "--http_bind", "127.0.0.1:0", "--metrics-bind-address", ""),
        *("--kubeconfig", plane.kubeconfig(EXTENDER_USER), *options),
    ]
    process = await ChildProcess.start("extender", arguments, {}, folder / "extender.log")
    try:
        yield (await process.wait_for_line(r"listening on (http://\S+)", _LONGEST_SECONDS))[1]
    finally:
        await process.stop()


@asynccontextmanager
async def _listening(recorder: Recorder) -> AsyncIterator[str]:
    application = web.Application(client_max_size=2**26)
    application.router.add_post("/{verb}", recorder.hand_on)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def grant_rights(peer: Peer, user: str, rights: Sequence[tuple[str, str, str]], role: str = "") -> None:
    """API group, resource and verbs, for the whole cluster, in a role of the user's name or of this one."""
    rbac, name = "/apis/rbac.authorization.k8s.io/v1", {"metadata": {"name": role or user}}
    rules = [{"apiGroups": [group], "resources": [what], "verbs": verbs.split()} for group, what, verbs in rights]
    granted = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", **name["metadata"]}
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]
    for path, document in (
        (f"{rbac}/clusterroles", {**name, "rules": rules}),
        (f"{rbac}/clusterrolebindings", {**name, "roleRef": granted, "subjects": subjects}),
    ):
        status, answer = await peer.send("POST", path, document)
        assert status in (201, 409), answer


async def clear(peer: Peer, namespace: str) -> None:
    for path in (f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0", "/api/v1/nodes"):
        status, answer = await peer.send("DELETE", path)
        assert status == 200, answer


def gpu_node(name: str, machine: str = "dgxa100-8x-a100-40g") -> JsonObject:
    """A ready node of this kind of machine, as its daemon and kubelet would write it."""
    reading = describe_reading(machines.load(machine), name)
    devices = discover_devices(reading, NodeSharing())
    annotations = {
        keys.NODE_REGISTER: encode_register(devices),
        keys.NODE_SCORE: encode_scores(pair_scores(build_topology(reading)), [device.uuid for device in devices]),
        keys.NODE_ALLOCATION: "slots",
    }
    slots = str(sum(device.replicas for device in devices))
    amounts = {"cpu": "128", "memory": "1Ti", "pods": "110", keys.RESOURCE_COUNT: slots}
    return {
        "metadata": {"name": name, "annotations": annotations, "labels": {"kubernetes.io/hostname": name}},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def gpu_pod(
    name: str,
    gpus: int,
    *,
    cpu: str = "",
    priority_class: str = "",
    annotations: Mapping[str, str] | None = None,
    **amounts: int,
) -> JsonObject:
    """`gpu_pod("p", 1, gpumem=4000, gpucores=20)`."""
    limits = {keys.RESOURCE_COUNT: str(gpus)} | {f"nvidia.com/{key}": str(value) for key, value in amounts.items()}
    if cpu:
        limits["cpu"] = cpu
    container = {"name": "main", "image": "example.com/work:1", "resources": {"limits": limits}}
    spec: JsonObject = {"schedulerName": "topogpu-scheduler", "containers": [container]}
    if priority_class:
        spec["priorityClassName"] = priority_class
    return {"metadata": {"name": name, "annotations": dict(annotations or {})}, "spec": spec}
