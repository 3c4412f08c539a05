"""A running agent between the embedded API server and a tiny kubelet."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from deviceplugin.agent import Agent
from deviceplugin.changes import Changes
from deviceplugin.configuration.table import Configuration
from deviceplugin.gpus import Gpus
from deviceplugin.inventory import GpusUnavailable, Inventory
from deviceplugin.metrics.metrics import Metrics
from deviceplugin.own_threads import OwnThreads
from deviceplugin.settings import AgentSettings, HamiScheduler, KubeletSettings
from proto.annotations.keys import NODE_LOCK, NODE_LOCK_UID, NODE_REGISTER
from proto.annotations.node_lock import NodeLock, encode_lock, encode_lock_uid
from proto.devices import PodShares
from proto.kubelet import deviceplugin_v1beta1_pb2 as pb
from proto.kubernetes.client import ApiServer
from proto.kubernetes.objects import EnvVar
from simulation.apiserver import EmbeddedApiServer
from simulation.hami_core import install_placeholder
from tests.deviceplugin.gpus import NODE, PAIR, A, B, bound_pod
from tests.deviceplugin.registration import TinyKubelet, kubelet_root
from tests.polling import until


@dataclass
class Rig:
    """A running agent between a real API server and a tiny kubelet."""

    server: EmbeddedApiServer
    kubelet: TinyKubelet
    api: ApiServer
    gpus: list[Inventory] = field(default_factory=lambda: [Inventory(devices=PAIR, scores={A: {B: 100}, B: {A: 100}})])
    reads: int = 0

    def read(self) -> Inventory:
        self.reads += 1
        if not self.gpus:
            raise GpusUnavailable("No driver.")
        return self.gpus[0]

    def annotations(self, plural: str, name: str) -> dict[str, str]:
        found: Any = self.server.store.get(plural, "" if plural == "nodes" else "default", name)
        annotations: dict[str, str] = found["metadata"].get("annotations", {})
        return annotations

    def node_writes(self, subresource: str = "") -> int:
        written = ("patch", "nodes", subresource)
        return sum((one.verb, one.resource, one.subresource) == written for one in self.server.requests)

    async def has_looked_at_the_lock(self, times: int) -> None:
        """What it writes after its look is written: a report that became due later is."""
        looks = ("get", "nodes")
        await until(lambda: sum((one.verb, one.resource) == looks for one in self.server.requests) == times)
        before = self.annotations("nodes", NODE)[NODE_REGISTER]
        self.gpus[0] = Inventory(devices=PAIR[:1])
        await until(lambda: self.annotations("nodes", NODE)[NODE_REGISTER] != before)

    def bind(self, name: str, shares: PodShares, init: int = 0, env: Sequence[EnvVar] = ()) -> None:
        """`env`: of every container."""
        bound = bound_pod(name, shares, init=init)
        for container in bound.spec.containers:
            container.env = list(env)
        pod = msgspec.to_builtins(bound)
        del pod["metadata"]["uid"]
        self.server.create({"apiVersion": "v1", "kind": "Pod", **pod})

    def lock(self, name: str, uid: str = "") -> None:
        lock = encode_lock(NodeLock(taken_at=datetime(2030, 1, 1, tzinfo=UTC), namespace="default", pod=name))
        annotations = {NODE_LOCK: lock, NODE_LOCK_UID: encode_lock_uid(lock, uid)} if uid else {NODE_LOCK: lock}
        self.server.patch("nodes", NODE, {"metadata": {"annotations": annotations}})

    async def allocate(self, *ids: str) -> dict[str, str]:
        async with self.kubelet.plugin() as plugin:
            request = pb.ContainerAllocateRequest(devices_ids=ids)
            answer = await plugin.Allocate(pb.AllocateRequest(container_requests=[request]), timeout=60)
            return dict(answer.container_responses[0].envs)

    async def answers(self) -> None:
        """A call that came after all others."""
        async with self.kubelet.plugin() as plugin:
            await plugin.GetDevicePluginOptions(pb.Empty(), timeout=60)

    async def refused(self, *ids: str) -> str:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await self.allocate(*ids)
        return error.value.details() or ""

    async def prefer(self, available: Sequence[str], size: int) -> list[str]:
        wish = pb.ContainerPreferredAllocationRequest(available_deviceIDs=available, allocation_size=size)
        async with self.kubelet.plugin() as plugin:
            answer = await plugin.GetPreferredAllocation(pb.PreferredAllocationRequest(container_requests=[wish]))
            return list(answer.container_responses[0].deviceIDs)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@asynccontextmanager
async def running(
    *,
    gpus: list[Inventory] | None = None,
    hook_path: str = "",
    unenforced: bool = False,
    scheduler: HamiScheduler = HamiScheduler.NONE,
    now: Callable[[], datetime] = lambda: datetime(2030, 1, 1, tzinfo=UTC),
    patience_seconds: float = 30.0,
) -> AsyncIterator[Rig]:
    """Without a `hook_path` HAMi-core seems to be installed. `patience_seconds` is how long a call of kubelet waits for
    changes of its pod.
    """
    async with kubelet_root() as root, EmbeddedApiServer() as server:
        server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        write(Path(root, "kubeconfig"), server.kubeconfig())
        api = await ApiServer.connect(f"{root}/kubeconfig")
        rig = Rig(server, TinyKubelet(root), api) if gpus is None else Rig(server, TinyKubelet(root), api, gpus)
        await rig.kubelet.start()
        if not hook_path:
            install_placeholder(Path(root, "hook"))
        settings = AgentSettings(
            node_name=NODE,
            hook_path=hook_path or f"{root}/hook",
            allows_unheld=unenforced,
            read_seconds=0.05,
            retry_seconds=0.05,
            prefer_seconds=patience_seconds,
            allocate_seconds=patience_seconds,
            hami_scheduler=scheduler,
        )
        changes = Changes()
        agent = Agent(
            api,
            Gpus(rig.read, OwnThreads("nvml"), changes, settings),
            changes,
            Metrics(now=lambda: 0.0),
            Configuration(agent=settings, kubelet=KubeletSettings(root=root)),
            now=now,
        )
        task = asyncio.create_task(agent.run())
        try:
            if rig.gpus:
                await rig.kubelet.registered(1)
            await until(lambda: server.open_watches == 2)
            yield rig
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await rig.kubelet.stop()
            await api.close()
