"""A slot allocator whose kubelet is what a test says it is: ids held, by pod-resources and by checkpoint."""

import base64
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from deviceplugin.allocation.sources import AllocationSources
from deviceplugin.apiserver import OwnNode
from deviceplugin.changes import Changes
from deviceplugin.configuration.table import Configuration
from deviceplugin.container.cdi import qualified, slot_in
from deviceplugin.container.edits import AllocationSettings, ContainerEdits, Hardware
from deviceplugin.gpus import Gpus
from deviceplugin.inventory import Inventory
from deviceplugin.limits.driver import DriverLimits
from deviceplugin.own_threads import OwnThreads
from deviceplugin.plugin_calls import allocate_response
from deviceplugin.records.holdings import Holding, ListedContainer
from deviceplugin.records.pod_resources import PodResources, PodResourcesUnavailable
from deviceplugin.settings import AgentSettings
from deviceplugin.slots.allocator import SlotAllocator
from deviceplugin.slots.files import SlotFiles, Spec
from deviceplugin.slots.slot import SPEC_FILE, named
from proto.kubelet.deviceplugin_v1beta1_pb2 import ContainerAllocateResponse
from proto.kubernetes.client import ApiServer
from proto.kubernetes.objects import Container, Pod
from simulation.apiserver import EmbeddedApiServer
from simulation.hami_core import install_placeholder
from simulation.kubelet.container import (
    CdiEdits,
    CreatedContainer,
    RuntimeManner,
    create_container,
    decode_cdi_spec,
    resolve_cdi,
)
from tests.deviceplugin.gpus import NODE, PAIR
from tests.deviceplugin.registration import kubelet_root

GPU = "nvidia.com/gpu"


def as_recorded(slot: str) -> str:
    """What kubelet's checkpoint has of an Allocate that answered with this slot."""
    return base64.b64encode(allocate_response(named(slot)).SerializeToString()).decode()


class Kubelet(PodResources):
    """`listed_now` is None while its socket is away."""

    def __init__(self) -> None:
        super().__init__("/nonexistent", GPU)
        self.asked = 0
        self.drawn = 0
        self.listed_now: list[ListedContainer] | None = []
        self.recorded: list[Holding] | None = []

    async def listed(self) -> tuple[ListedContainer, ...]:
        self.asked += 1
        if self.listed_now is None:
            raise PodResourcesUnavailable("connection refused")
        return tuple(self.listed_now)

    async def read_checkpoint(self) -> tuple[Holding, ...] | None:
        return None if self.recorded is None else tuple(self.recorded)

    def hold(self, pod: Pod, container: str, *ids: str, init: bool = False, slot: str = "") -> None:
        """Kubelet's word, as if it had just called Allocate."""
        uid, namespace, name = pod.metadata.uid, pod.metadata.namespace, pod.metadata.name
        if self.recorded is not None:
            self.drawn += 1
            one = Holding(
                pod_uid=uid,
                container_name=container,
                resource_name=GPU,
                device_ids={"-1": list(ids)},
                answer=as_recorded(slot or f"slot{self.drawn}"),
            )
            self.recorded.append(one)
        if self.listed_now is not None and not init:
            self.listed_now.append(
                ListedContainer(namespace=namespace, pod=name, container=container, ids=frozenset(ids))
            )

    def free(self) -> None:
        self.listed_now, self.recorded = [], []


class CountedFiles(SlotFiles):
    """`before_spec` may block, as a disk that hangs does."""

    writes = 0
    before_spec: Callable[[], None] | None = None

    def spec(self, slot: str, edits: ContainerEdits) -> Spec:
        if self.before_spec is not None:
            self.before_spec()
        return super().spec(slot, edits)

    def write(self, specs: Sequence[Spec]) -> None:
        self.writes += 1
        super().write(specs)


@dataclass
class SlotRig:
    server: EmbeddedApiServer
    own: OwnNode
    changes: Changes
    directory: Path
    allocator: SlotAllocator
    kubelet: Kubelet
    files: CountedFiles
    gpus: Gpus
    sources: AllocationSources
    clock: list[float] = field(default_factory=lambda: [1000.0])

    def bring(self, *pods: Pod) -> None:
        """By the watch."""
        self.own.pods, self.own.pods_known = {**self.own.pods, **{pod.metadata.uid: pod for pod in pods}}, True
        self.changes.announce()

    def store(self, pod: Pod) -> str:
        """In the API server only; its UID."""
        body = msgspec.to_builtins(pod)
        del body["metadata"]["uid"]
        made: Any = self.server.create({"apiVersion": "v1", "kind": "Pod", **body})
        return str(made["metadata"]["uid"])

    def specs(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir()) if self.directory.exists() else []

    def defined(self) -> list[str]:
        """The names of the slots that a runtime would find."""
        if not (self.directory / SPEC_FILE).exists():
            return []
        return sorted(device.name for device in decode_cdi_spec((self.directory / SPEC_FILE).read_bytes()).devices)

    def edits(self, *ids: str, container: str = "") -> CdiEdits:
        """By the slot that kubelet recorded last for these ids."""
        *_, held = (
            one
            for one in self.kubelet.recorded or ()
            if one.ids == frozenset(ids) and container in ("", one.container_name)
        )
        return self.edits_of(slot_in(held.cdi_devices))

    def created(self, container: str, *ids: str) -> CreatedContainer:
        """What a runtime makes of it. Raises CdiError."""
        answers = [
            ContainerAllocateResponse.FromString(base64.b64decode(one.answer or ""))
            for one in self.kubelet.recorded or ()
            if (one.container_name, one.ids) == (container, frozenset(ids))
        ]
        spec = decode_cdi_spec((self.directory / SPEC_FILE).read_bytes())
        manner = RuntimeManner(has_file=os.path.lexists)
        return create_container(Container(name=container), "app", ids, answers, [spec], manner=manner)

    def edits_of(self, slot: str) -> CdiEdits:
        spec = decode_cdi_spec((self.directory / SPEC_FILE).read_bytes())
        return resolve_cdi(qualified(slot), [spec])[1]

    def env(self, *ids: str, container: str = "") -> dict[str, str]:
        return dict(variable.split("=", 1) for variable in self.edits(*ids, container=container).env)


@asynccontextmanager
async def slots(
    *,
    pre_start_seconds: float = 30.0,
    hook_path: str = "",
    allocation: AllocationSettings | None = None,
    hardware: Hardware | None = None,
) -> AsyncIterator[SlotRig]:
    """Without a `hook_path` HAMi-core seems to be installed."""
    async with kubelet_root() as root, EmbeddedApiServer() as server:
        Path(root, "kubeconfig").write_text(server.kubeconfig())
        api = await ApiServer.connect(f"{root}/kubeconfig")
        if not hook_path:
            install_placeholder(Path(root, "hook"))
            hook_path = f"{root}/hook"
        settings = AgentSettings(node_name=NODE, hook_path=hook_path, pre_start_seconds=pre_start_seconds)
        changes, kubelet, directory, clock = Changes(), Kubelet(), Path(root, "cdi"), [1000.0]
        own = OwnNode(api, NODE, changes, seen=lambda _: None)
        gpus = Gpus(Inventory, OwnThreads("nvml"), changes, settings)
        gpus.inventory = Inventory(devices=PAIR, hardware=hardware or Hardware())
        files = CountedFiles(str(directory))
        sources = AllocationSources(
            own=own,
            gpus=gpus,
            changes=changes,
            read_checkpoint=kubelet.read_checkpoint,
            configuration=Configuration(agent=settings, containers=allocation or AllocationSettings()),
        )
        allocator = SlotAllocator(
            sources,
            files,
            kubelet,
            DriverLimits(None, own, gpus, cgroups=directory, folder=settings.limits_folder),
            monotonic=lambda: clock[0],
            pause_seconds=0,
        )
        try:
            yield SlotRig(server, own, changes, directory, allocator, kubelet, files, gpus, sources, clock)
        finally:
            await api.close()
