"""A kubelet as the node daemon sees one: it accepts registrations, keeps its checkpoint, and lists which pods hold
what.
"""

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from proto.kubelet import deviceplugin_v1beta1_pb2 as pb
from proto.kubelet import deviceplugin_v1beta1_pb2_grpc as rpc
from proto.podresources import podresources_v1_pb2 as wire
from proto.podresources.podresources_v1_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)
from simulation.kubelet.checkpoint import CHECKPOINT_NAME, NO_NUMA, CheckpointEntry, encode_checkpoint

RESOURCE = "nvidia.com/gpu"
CONTAINER = "main"
"""The container of every pod."""


@dataclass(slots=True)
class Kubelet(rpc.RegistrationServicer, PodResourcesListerServicer):
    """The kubelet of one node; `root` is its folder. The benchmark itself calls the daemon."""

    root: Path
    registered: asyncio.Event = field(default_factory=asyncio.Event)
    _held: dict[str, tuple[str, CheckpointEntry]] = field(default_factory=dict)
    _servers: list[grpc.aio.Server] = field(default_factory=list)

    async def start(self) -> None:
        for folder, add in (
            ("device-plugins", rpc.add_RegistrationServicer_to_server),
            ("pod-resources", add_PodResourcesListerServicer_to_server),
        ):
            (self.root / folder).mkdir()
            server = grpc.aio.server()
            add(self, server)
            server.add_insecure_port(f"unix:{self.root}/{folder}/kubelet.sock")
            await server.start()
            self._servers.append(server)

    async def stop(self) -> None:
        for server in self._servers:
            await server.stop(None)

    def admit(self, name: str, uid: str, ids: tuple[str, ...], answer: bytes) -> None:
        """Writes to the checkpoint as kubelet does after every Allocate."""
        entry = CheckpointEntry(
            pod_uid=uid, container=CONTAINER, resource=RESOURCE, ids_by_numa={NO_NUMA: ids}, response=answer
        )
        self._held[uid] = name, entry
        self._write()

    def release(self, uid: str) -> None:
        """Kubelet looks for deleted pods when it admits the next one."""
        del self._held[uid]

    def _write(self) -> None:
        path = self.root / "device-plugins" / CHECKPOINT_NAME
        partial = path.with_suffix(".partial")
        partial.write_text(encode_checkpoint([entry for _, entry in self._held.values()], {}))
        os.replace(partial, path)

    async def Register(self, request: pb.RegisterRequest, context: object) -> pb.Empty:  # noqa: ARG002, N802
        self.registered.set()
        return pb.Empty()

    async def List(  # noqa: N802
        self,
        request: wire.ListPodResourcesRequest,  # noqa: ARG002
        context: object,  # noqa: ARG002
    ) -> wire.ListPodResourcesResponse:
        return wire.ListPodResourcesResponse(pod_resources=[_listed(*held) for held in self._held.values()])

    async def GetAllocatableResources(self, request: object, context: object) -> wire.AllocatableResourcesResponse:  # noqa: ARG002, N802
        """The daemon does not call this."""
        return wire.AllocatableResourcesResponse()


def _listed(name: str, entry: CheckpointEntry) -> wire.PodResources:
    devices = [
        wire.ContainerDevices(resource_name=entry.resource, device_ids=[one])
        for ids in entry.ids_by_numa.values()
        for one in ids
    ]
    container = wire.ContainerResources(name=entry.container, devices=devices)
    return wire.PodResources(name=name, namespace="default", containers=[container])
