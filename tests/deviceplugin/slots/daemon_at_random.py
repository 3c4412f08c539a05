"""The daemon's half of the node at random: the real slot allocator, with peers that answer when they are told to."""

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from deviceplugin.allocation.sources import AllocationSources
from deviceplugin.apiserver import OwnNode
from deviceplugin.changes import Changes
from deviceplugin.configuration.table import Configuration
from deviceplugin.container.edits import AllocationSettings
from deviceplugin.gpus import Gpus
from deviceplugin.inventory import Inventory
from deviceplugin.limits.driver import DriverLimits
from deviceplugin.own_threads import OwnThreads
from deviceplugin.records.holdings import ListedContainer
from deviceplugin.records.pod_resources import PodResources, PodResourcesUnavailable
from deviceplugin.settings import AgentSettings
from deviceplugin.slots.allocator import SlotAllocator
from deviceplugin.slots.files import SlotFiles
from proto.devices import DeviceUUID
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiUnreachable, NotFound
from proto.kubernetes.objects import Pod
from tests.deviceplugin.gpus import NODE
from tests.deviceplugin.slots.one_thread import Process
from tests.deviceplugin.slots.pods_at_random import DEVICES, GPU

if TYPE_CHECKING:
    from tests.deviceplugin.slots.node_at_random import NodeAtRandom


class Watch(OwnNode):
    """The daemon's view of the API server, which lags as far as it likes."""

    def __init__(self, node: "NodeAtRandom", changes: Changes) -> None:
        super().__init__(ApiServer.__new__(ApiServer), NODE, changes)
        self._node = node
        self._told = changes

    async def follow_pods(self) -> None:
        await self._node.api_answers()
        api, position = self._node.api, len(self._node.api.log)
        self.pods, self.pods_known = {uid: bound.pod for uid, bound in api.pods.items()}, True
        self._told.announce()
        while True:
            following = api.changes.next()
            if position == len(api.log):
                await following.wait()
                continue
            await self._node.api_answers()
            uid, pod = api.log[position]
            position += 1
            others = {known: each for known, each in self.pods.items() if known != uid}
            self.pods = others if pod is None else {**others, uid: pod}
            self._told.announce()

    async def read_pod(self, namespace: str, name: str) -> Pod:
        await self._node.loop.turn()
        if "api" in self._node.faults:
            raise ApiUnreachable("connection refused")
        for bound in self._node.api.pods.values():
            if bound.pod.metadata.name == name:
                return bound.pod
        raise NotFound(404, "NotFound", f"no pod {namespace}/{name}")


class Socket(PodResources):
    """Kubelet's pod-resources."""

    def __init__(self, node: "NodeAtRandom") -> None:
        super().__init__("/pod-resources", GPU, pause_seconds=0.0)
        self._node = node

    async def _list(self) -> tuple[ListedContainer, ...]:
        await self._node.loop.turn()
        answer = self._node.kubelet.listing()
        if answer is None:
            raise PodResourcesUnavailable("connection refused")
        await self._node.loop.turn()
        return answer


class Daemon:
    """One life of it."""

    def __init__(self, node: "NodeAtRandom") -> None:
        self.process = Process()
        self._changes = Changes()
        settings = AgentSettings(node_name=NODE, hook_path=str(node.cdi.parent / "hook"), allows_unheld=True)
        own = Watch(node, self._changes)
        self._gpus = Gpus(Inventory, OwnThreads("nvml"), self._changes, settings)
        sources = AllocationSources(
            own=own,
            gpus=self._gpus,
            changes=self._changes,
            read_checkpoint=node.kubelet.read_checkpoint,
            configuration=Configuration(agent=settings, containers=AllocationSettings()),
        )
        self.allocator = SlotAllocator(
            sources,
            SlotFiles(str(node.cdi), others=()),
            Socket(node),
            DriverLimits(None, own, self._gpus, cgroups=node.cdi, folder=settings.limits_folder),
            monotonic=node.loop.time,
            draw=lambda: f"{node.random.getrandbits(128):032x}",
            pause_seconds=0,
        )
        self.set_ill(())
        self.process.live(own.follow_pods())
        self.process.live(self.allocator.run())

    def set_ill(self, ill: Collection[DeviceUUID]) -> None:
        devices = tuple(replace(device, healthy=device.uuid not in ill) for device in DEVICES)
        self._gpus.inventory = Inventory(devices=devices)
        self._changes.announce()
