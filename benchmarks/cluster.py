"""A cluster of any size, as its API server would list it. It is generated page by page and never changes.

`python -m benchmarks.cluster NODES PODS_A_NODE` prints its URL and answers until it ends. With `different` the GPUs of
each node have another amount of memory.
"""

import asyncio
import random
import sys
from collections.abc import Iterator

import msgspec
from aiohttp import web

from proto.annotations import keys
from proto.annotations.node_register import encode_register, encode_scores
from proto.annotations.pod_devices import encode_pod_devices
from proto.devices import Device, DeviceShare, DeviceUUID, PairScores

GPUS = 8
SLOTS = 10
GPU_MIB = 81920
MEMORY_MIB = (1024, 2048, 3072, 4096)
"""MiB that running pods hold. Up to 4 of 4 GiB on a GPU leave room at 32 pods per node."""
BOOKMARK = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"1"}}}\n'
BOOKMARK_SECONDS = 20.0
"""The extender lists everything again after 65 s without a bookmark."""
FILLER = {f"example.com/note-{number}": "x" * 100 for number in range(10)}
"""Brings a pod to about 3 kB, as much as a small real one has."""


def node_name(number: int) -> str:
    return f"gpu-node-{number:05d}.cluster.example"


def gpu_uuid(node: int, number: int) -> DeviceUUID:
    return DeviceUUID(f"GPU-{node:08x}-0000-4000-8000-{number:012x}")


def node_json(number: int, memory_mib: int = GPU_MIB) -> dict[str, object]:
    """Returns a node with two islands of four GPUs; each island is a NUMA node."""
    devices = [
        Device(
            uuid=gpu_uuid(number, index),
            index=index,
            replicas=SLOTS,
            memory_mib=memory_mib,
            cores=100,
            type="NVIDIA A100-SXM4-80GB",
            numa=index // 4,
            mode="hami-core",
            healthy=True,
        )
        for index in range(GPUS)
    ]
    scores: PairScores = {
        a.uuid: {b.uuid: 420 if a.numa == b.numa else 10 for b in devices if b is not a} for a in devices
    }
    annotations = {
        keys.NODE_REGISTER: encode_register(devices),
        keys.NODE_SCORE: encode_scores(scores, [device.uuid for device in devices]),
        keys.NODE_ALLOCATION: "slots",
        **FILLER,
    }
    allocatable = {keys.RESOURCE_COUNT: str(GPUS * SLOTS), "cpu": "128", "memory": "1Ti"}
    return {
        "metadata": {"name": node_name(number), "uid": f"node-{number}", "annotations": annotations},
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def pod_json(node: int, number: int) -> dict[str, object]:
    """Returns a running pod with a share of one GPU. The size is drawn, the same in every run."""
    drawn = random.Random(node * 1000 + number)
    memory_mib = drawn.choice(MEMORY_MIB)
    share = DeviceShare(uuid=gpu_uuid(node, (number + drawn.randrange(2)) % GPUS), memory_mib=memory_mib, cores=5)
    limits = {keys.RESOURCE_COUNT: "1", keys.RESOURCE_MEMORY: str(memory_mib), keys.RESOURCE_CORES: "5"}
    name = f"worker-{node}-{number}"
    annotations = {
        keys.POD_NODE: node_name(node),
        keys.DEVICES_ALLOCATED: encode_pod_devices(((share,),)),
        keys.DEVICES_TO_ALLOCATE: "",
        keys.BIND_PHASE: "success",
        **FILLER,
    }
    environment = [{"name": f"SETTING_{number}", "value": "x" * 40} for number in range(8)]
    container = {"name": "main", "image": "example.com/work:1", "env": environment, "resources": {"limits": limits}}
    conditions = [
        {"type": kind, "status": "True"} for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    return {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}", "annotations": annotations},
        "spec": {"nodeName": node_name(node), "containers": [container], "schedulerName": "topogpu-scheduler"},
        "status": {"phase": "Running", "conditions": conditions},
    }


class _Server:
    def __init__(self, nodes: int, pods_a_node: int, *, different: bool) -> None:
        self._nodes = nodes
        self._different = different
        self._pods_a_node = pods_a_node

    def application(self) -> web.Application:
        application = web.Application()
        application.add_routes(
            [web.get("/api/v1/{plural}", self._list), web.post("/api/v1/namespaces/{namespace}/events", self._event)]
        )
        return application

    async def _list(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            answer = web.StreamResponse()
            await answer.prepare(request)
            while True:
                await answer.write(BOOKMARK)
                await asyncio.sleep(BOOKMARK_SECONDS)
        start, limit = int(request.query.get("continue", "0")), int(request.query["limit"])
        items = list(self._page(request.match_info["plural"], start, limit))
        following = str(start + limit) if len(items) == limit else ""
        metadata = {"resourceVersion": "1", "continue": following}
        return web.Response(body=msgspec.json.encode({"metadata": metadata, "items": items}))

    def _page(self, plural: str, start: int, limit: int) -> Iterator[dict[str, object]]:
        counts = {"nodes": self._nodes, "pods": self._nodes * self._pods_a_node}
        for position in range(start, min(start + limit, counts.get(plural, 0))):
            if plural == "nodes":
                yield node_json(position, GPU_MIB - position * self._different)
            else:
                yield pod_json(*divmod(position, self._pods_a_node))

    async def _event(self, request: web.Request) -> web.Response:
        return web.Response(body=await request.read(), status=201)


async def main(nodes: int, pods_a_node: int, *, different: bool) -> None:
    runner = web.AppRunner(_Server(nodes, pods_a_node, different=different).application(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), different="different" in sys.argv[3:]))
