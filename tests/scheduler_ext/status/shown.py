"""An extender with its status page, before an embedded API server with a cluster worth looking at."""

import random
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from tempfile import NamedTemporaryFile
from typing import Any

import aiohttp
import msgspec

from proto.annotations import keys
from proto.annotations.pod_devices import encode_pod_devices
from proto.devices import Device, DeviceShare, DeviceUUID, PairScores
from proto.kubernetes.client import ApiServer
from proto.kubernetes.objects import Node, Pod
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.http.server import in_own_thread, listening, listening_to_kube_scheduler
from scheduler_ext.requests import RequestSettings
from scheduler_ext.running import Applications, running_extender
from scheduler_ext.status.view import NodePoll
from simulation.apiserver import EmbeddedApiServer
from tests import builders
from tests.builders import as_json, pod_json
from tests.polling import until
from tests.scheduler_ext.rig import ANY_PORT, API_SECONDS, FAST, Rig

MODELS = (
    ("NVIDIA H100-SXM5-80GB", 81_559, 1_800),
    ("NVIDIA A100-SXM4-40GB", 40_960, 1_200),
    ("NVIDIA L40S", 46_068, 0),
)
"""Model, MiB, and the score that NVLink adds between any two GPUs."""
REPLICAS = 10
TEAMS = ("vision", "speech", "search", "ml-platform")
KINDS = ("train", "infer", "notebook", "embed", "rank")


def node(
    name: str, *, gpus: int = 8, model: int = 0, unhealthy: Iterable[int] = (), labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    kind, memory_mib, nvlink = MODELS[model]
    devices = [
        Device(
            uuid=uuid(name, index),
            index=index,
            replicas=REPLICAS,
            memory_mib=memory_mib,
            cores=100,
            type=kind,
            numa=index * 2 // gpus,
            mode="hami-core",
            healthy=index not in unhealthy,
        )
        for index in range(gpus)
    ]
    near = {True: 30, False: 10}
    scores: PairScores = {
        a.uuid: {b.uuid: near[a.numa == b.numa] + nvlink for b in devices if b is not a} for a in devices
    }
    allocation = {keys.NODE_ALLOCATION: "slots"}
    return as_json(
        builders.node(name, devices, scores, annotations=allocation, labels=labels, ready=True, cpu="128", memory="1Ti")
    )


def uuid(node_name: str, index: int) -> DeviceUUID:
    return DeviceUUID(f"GPU-{node_name}-{index}")


def running_pod(
    name: str, on: str, gpus: Iterable[int], *, namespace: str = "default", memory_mib: int, cores: int = 0
) -> dict[str, Any]:
    """It was placed before the extender came."""
    shares = tuple(DeviceShare(uuid=uuid(on, index), memory_mib=memory_mib, cores=cores) for index in gpus)
    annotations = {
        keys.POD_NODE: on,
        keys.DEVICES_ALLOCATED: encode_pod_devices((shares,)),
        keys.DEVICES_TO_ALLOCATE: "",
    }
    return pod_json(
        name,
        namespace=namespace,
        gpus=len(shares),
        memory_mib=memory_mib,
        cores=cores,
        node_name=on,
        phase="Running",
        annotations=annotations,
    )


def busy_cluster(nodes: int, *, seed: int = 1) -> Iterable[dict[str, Any]]:
    """Nodes of eight GPUs and the pods on them: whole GPUs, shares, idle GPUs, a few unhealthy ones."""
    drawn = random.Random(seed)
    for number in range(nodes):
        name, model = f"gpu-{number + 1}", number % len(MODELS)
        yield node(name, model=model, unhealthy=(drawn.randrange(8),) if drawn.random() < 0.04 else ())
        yield from _pods_of(name, MODELS[model][1], drawn)


def _pods_of(name: str, memory_mib: int, drawn: random.Random) -> Iterable[dict[str, Any]]:
    index = 0
    while index < 8:
        called = f"{drawn.choice(KINDS)}-{drawn.randrange(16**5):05x}"
        team, kind = drawn.choice(TEAMS), drawn.random()
        if kind < 0.25:
            index += drawn.choice((1, 1, 2))
        elif kind < 0.55:
            wanted = min(drawn.choice((1, 1, 2, 4)), 8 - index)
            gpus = range(index, index + wanted)
            yield running_pod(called, name, gpus, namespace=team, memory_mib=memory_mib, cores=100)
            index += wanted
        else:
            for part in range(drawn.choice((1, 2, 3, 4))):
                share = drawn.choice((4096, 8192, 10240))
                cores = drawn.choice((0, 10, 20, 25))
                own = f"{called}-{part}"
                yield running_pod(own, name, (index,), namespace=team, memory_mib=share, cores=cores)
            index += 1


def looked(*bodies: dict[str, Any]) -> Mapping[str, NodePoll]:
    """All nodes of these objects, as a poll finds them."""
    ledger = Ledger()
    ledger.replace_nodes([msgspec.convert(body, Node) for body in bodies if body["kind"] == "Node"])
    ledger.replace_pods([msgspec.convert(body, Pod) for body in bodies if body["kind"] == "Pod"])
    found = {}
    for name, usage in ledger.nodes.usages().items():
        alone = ledger.alone(name)
        assert alone is not None
        found[name] = NodePoll(usage=usage, alone=alone, names={})
    return found


@dataclass(frozen=True)
class Shown:
    rig: Rig
    page: str
    """Its URL."""
    applications: Applications

    async def place(self, body: dict[str, Any], *nodes: str) -> str:
        """Asks for a new pod as kube-scheduler does, and binds it. The node, or empty where it fits nowhere."""
        created = self.rig.server.create(body)
        answer = await self.rig.filter(created, *nodes)
        chosen = str((answer["NodeNames"] or [""])[0])
        if chosen:
            assert await self.rig.bind(created, chosen) == ""
        return chosen


@asynccontextmanager
async def shown(server: EmbeddedApiServer, *, for_other_hosts: bool = False) -> AsyncIterator[Shown]:
    """As `serve` runs them: the page has an event loop and a thread of its own."""
    with NamedTemporaryFile("w") as kubeconfig:
        kubeconfig.write(server.kubeconfig())
        kubeconfig.flush()
        api = await ApiServer.connect(kubeconfig.name, timeout_seconds=API_SECONDS)
    try:
        async with running_extender(api, FAST, RequestSettings()) as applications:
            page = applications.status_page(for_other_hosts=for_other_hosts)
            async with (
                listening_to_kube_scheduler(applications.verbs, ANY_PORT, "--http_bind") as url,
                in_own_thread(lambda: listening(page, ANY_PORT, "--status-bind-address"), "status page") as page_url,
                aiohttp.ClientSession() as http,
            ):
                rig = Rig(server=server, url=url, metrics_url="", http=http)

                async def ready() -> bool:
                    return (await rig.status("/readyz"))[0] == 200

                await until(ready)
                yield Shown(rig, f"{page_url}/", applications)
    finally:
        await api.close()
