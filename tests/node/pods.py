"""Pods on the real node: made, awaited, and compared with what was decided for them."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from proto.annotations import keys
from proto.annotations.pod_devices import decode_pod_devices
from proto.devices import ContainerShares, PodShares
from tests.cluster.peers import Peer
from tests.deviceplugin.gpus import bound_annotations
from tests.node import image
from tests.node.observed import Start
from tests.node.real_node import NODE, RealNode
from tests.polling import until

JsonObject = dict[str, Any]
COUNTS_INIT_CONTAINERS = 31
"""The first minor release whose kubelet leaves resources that its node lacks to others in init containers too."""
REPLICAS = 80
"""Ten of each GPU."""
SEVERAL = ("--limits", "driver,hami-core,unenforced")
"""With these flags the daemon serves containers with parts of several GPUs."""


@dataclass(frozen=True, slots=True)
class Pods:
    """Those of one test."""

    node: RealNode
    peer: Peer
    namespace: str

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    async def serve(self, *flags: str, replicas: int = REPLICAS) -> None:
        """A fresh daemon has registered, and kubelet counts its GPUs."""
        await asyncio.to_thread(self.node.start_daemon, *flags)
        await self.logged("registered nvidia.com/gpu with kubelet")
        await self.offered(replicas)

    async def logged(self, text: str, times: int = 1) -> None:
        """The daemon says so."""

        async def said() -> bool:
            return self.node.daemon is not None and self.node.daemon.text().count(text) >= times

        await until(said)

    async def add(self, *pods: JsonObject) -> None:
        for pod in pods:
            await self.peer.create(self.path, pod)

    async def add_bound(self, pod: JsonObject, decided: PodShares) -> None:
        """On the node, as if a scheduler had decided so."""
        metadata = pod["metadata"] | {"annotations": bound_annotations(decided) | {keys.POD_NODE: NODE}}
        await self.add(pod | {"metadata": metadata, "spec": pod["spec"] | {"nodeName": NODE}})

    async def get(self, name: str) -> JsonObject:
        status, found = await self.peer.send("GET", f"{self.path}/{name}")
        assert status == 200, found
        return found

    async def all(self) -> dict[str, JsonObject]:
        _, found = await self.peer.send("GET", self.path)
        return {pod["metadata"]["name"]: pod for pod in found["items"]}

    async def init_memory(self, memory_mib: int) -> int | None:
        """For init containers: kubelets before 1.31 refuse pods whose init containers name what the node lacks."""
        return memory_mib if await self.peer.minor() >= COUNTS_INIT_CONTAINERS else None

    async def remove(self, *names: str) -> None:
        """Returns once kubelet has let them go."""
        for name in names:
            await self.peer.send("DELETE", f"{self.path}/{name}?gracePeriodSeconds=1")

        async def gone() -> bool:
            return not (await self.all()).keys() & set(names)

        await until(gone)

    async def clear(self) -> None:
        await self.remove(*(await self.all()))

    async def started(self, *names: str) -> dict[str, JsonObject]:
        """The pods, once all their containers run or have ended well."""

        async def all_run() -> bool:
            pods = await self.all()
            return all(pods[name]["status"]["phase"] in ("Running", "Succeeded") for name in names)

        try:
            await until(all_run)
        except AssertionError as error:
            raise AssertionError(f"{error}: {await self._report(names)}") from None
        return {name: pod for name, pod in (await self.all()).items() if name in names}

    async def _report(self, names: tuple[str, ...]) -> str:
        """Of those that do not run."""
        waiting = [name for name, pod in (await self.all()).items() if pod["status"]["phase"] != "Running"]
        return "\n".join([f"{name}: {await self.messages(name)}" for name in waiting if name in names])

    async def failed(self, name: str) -> JsonObject:
        """The status of a pod that kubelet has refused."""

        async def refused() -> bool:
            return bool((await self.get(name))["status"]["phase"] == "Failed")

        await until(refused)
        status: JsonObject = (await self.get(name))["status"]
        return status

    async def starts(self, name: str, container: str = "main", number: int = 0) -> list[Start]:
        """The container's last starts, once it has told of one with this number or a later one."""

        async def told() -> bool:
            starts = self.node.starts(await self.get(name), container)
            return bool(starts) and starts[-1].number >= number

        await until(told)
        return self.node.starts(await self.get(name), container)

    async def check(self, name: str, *containers: str, number: int = 0) -> None:
        """The starts of these containers, up to one with this number, were given exactly what the annotation says."""
        for container in containers:
            for start in await self.starts(name, container, number):
                assert given(start) == decided_for(self.node, decided(await self.get(name), container))

    async def allocatable(self, resource: str = keys.RESOURCE_COUNT) -> int:
        _, node = await self.peer.send("GET", f"/api/v1/nodes/{NODE}")
        return int(node["status"].get("allocatable", {}).get(resource, 0))

    async def offered(self, replicas: int) -> None:
        """Kubelet counts so many."""

        async def so_many() -> bool:
            return await self.allocatable() == replicas

        await until(so_many)

    async def messages(self, name: str) -> list[str]:
        """Of the pod's events."""
        path = f"/api/v1/namespaces/{self.namespace}/events?fieldSelector=involvedObject.name={name}"
        _, found = await self.peer.send("GET", path)
        return [f"{event['reason']}: {event['message']}" for event in found["items"]]


async def node_is_ready(peer: Peer) -> None:
    """Kubelet has registered the node and calls it ready."""

    async def ready() -> bool:
        _, node = await peer.send("GET", f"/api/v1/nodes/{NODE}")
        conditions = node["status"].get("conditions", ()) if node["kind"] == "Node" else ()
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    await until(ready)


def pod(
    name: str,
    *containers: JsonObject,
    init: tuple[JsonObject, ...] = (),
    restart: str = "Always",
    annotations: Mapping[str, str] | None = None,
) -> JsonObject:
    """For our scheduler; `add_bound` needs none."""
    spec = {
        "schedulerName": "topogpu-scheduler",
        "hostNetwork": True,
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": 1,
        "enableServiceLinks": False,
        "initContainers": list(init),
        "containers": list(containers),
    }
    return {"metadata": {"name": name, "annotations": dict(annotations or {})}, "spec": spec}


def container(name: str = "main", gpus: int = 1, *, ends: bool = False, **amounts: int | None) -> JsonObject:
    """`container(gpus=2, gpumem=4000, gpucores=20)`. One that `ends` does so at once."""
    limits = {f"nvidia.com/{key}": str(value) for key, value in amounts.items() if value is not None}
    if gpus:
        limits[keys.RESOURCE_COUNT] = str(gpus)
    words = [image.PROGRAM, "show", *(["0"] if ends else [])]
    return {
        "name": name,
        "image": image.NAME,
        "imagePullPolicy": "Never",
        "command": words,
        "resources": {"limits": limits},
    }


def decided(pod: JsonObject, container: str) -> ContainerShares:
    """By the pod's annotation, whose entries stand in the order of init containers and containers."""
    names = [one["name"] for part in ("initContainers", "containers") for one in pod["spec"].get(part, ())]
    key = keys.DEVICES_ALLOCATED
    return decode_pod_devices(key, pod["metadata"]["annotations"][key], len(names))[names.index(container)]


_FEATURES = ("NVIDIA_NVSWITCH", "NVIDIA_GDRCOPY", "NVIDIA_GDS", "NVIDIA_MOFED")
"""What NVIDIA's runtime would add for an image that asks for it."""


def decided_for(node: RealNode, shares: ContainerShares) -> JsonObject:
    """What a container with these shares must see, GPUs in the order of their PCI addresses, which is NVML's here."""
    indices = {node.uuid(gpu): gpu for gpu in range(len(node.description.gpus))}
    ordered = sorted(shares, key=lambda share: indices[share.uuid])
    env = {"NVIDIA_VISIBLE_DEVICES": ",".join(share.uuid for share in ordered)}
    for position, share in enumerate(ordered):
        env[f"CUDA_DEVICE_MEMORY_LIMIT_{position}"] = f"{share.memory_mib}m"
        env[f"CUDA_DEVICE_SM_LIMIT_{position}"] = str(share.cores)
    env["CUDA_DEVICE_SM_LIMIT"] = str(ordered[0].cores)
    env["LIBCUDA_LOG_LEVEL"] = "1"
    is_limited = any(share.memory_mib < node.description.gpus[indices[share.uuid]].memory_mib for share in ordered)
    if is_limited:
        env |= {"CUDA_DISABLE_CONTROL": "false", "GPU_CORE_UTILIZATION_POLICY": "default"}
    if is_limited or len(ordered) > 1:
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    env |= {"NVIDIA_IMEX_CHANNELS": "void"} | dict.fromkeys(_FEATURES, "disabled")
    files = {f"/dev/nvidia{indices[share.uuid]}": f"195:{indices[share.uuid]}" for share in ordered}
    return {"env": env, "devices": files | {"/dev/nvidiactl": "195:255"}}


def given(start: Start) -> JsonObject:
    """The same of what the container saw."""
    names = ("NVIDIA_", "CUDA_", "LIBCUDA_", "GPU_")
    # Where HAMi-core's files are, which are looked at by themselves.
    places = ("CUDA_DEVICE_MEMORY_SHARED_CACHE", "CUDA_REDIRECT")
    env = {name: value for name, value in start.env.items() if name.startswith(names) and name not in places}
    return {"env": env, "devices": dict(start.devices)}
