"""kubelet's pod-resources socket, answered from what the device manager has handed out."""

from collections.abc import Callable, Iterable
from pathlib import Path

from grpc import aio

from proto.kubernetes.objects import Pod
from proto.podresources import podresources_v1_pb2 as wire
from proto.podresources.podresources_v1_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)
from simulation.kubelet.device_ids import AdvertisedDevice
from simulation.kubelet.device_manager import DeviceManager
from simulation.kubelet.held import HeldDevices

_STOP_GRACE_SECONDS = 0.2


class PodResourcesServer(PodResourcesListerServicer):
    """Serves `<directory>/kubelet.sock`; `pods` gives the pods this kubelet has accepted."""

    def __init__(self, directory: Path, devices: DeviceManager, pods: Callable[[], Iterable[Pod]]) -> None:
        self._socket = directory / "kubelet.sock"
        self._devices = devices
        self._pods = pods
        self.listed: Callable[[wire.ListPodResourcesResponse], wire.ListPodResourcesResponse] = lambda true: true
        """What List answers instead of the truth."""
        self._server: aio.Server | None = None

    async def start(self) -> None:
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        server = aio.server()
        add_PodResourcesListerServicer_to_server(self, server)
        server.add_insecure_port(f"unix:{self._socket}")
        await server.start()
        self._server = server

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(_STOP_GRACE_SECONDS)
            self._server = None
        self._socket.unlink(missing_ok=True)

    async def List(  # noqa: N802 - gRPC's name
        self,
        request: wire.ListPodResourcesRequest,  # noqa: ARG002 - gRPC's signature
        context: object,  # noqa: ARG002
    ) -> wire.ListPodResourcesResponse:
        return self.listed(wire.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in self._pods()]))

    async def GetAllocatableResources(  # noqa: N802 - gRPC's name
        self,
        request: wire.AllocatableResourcesRequest,  # noqa: ARG002 - gRPC's signature
        context: object,  # noqa: ARG002
    ) -> wire.AllocatableResourcesResponse:
        """Returns the healthy devices, held or not."""
        return wire.AllocatableResourcesResponse(
            devices=[
                _entry(resource, name, device)
                for resource in self._devices.resources()
                for name, device in self._devices.devices(resource).items()
                if device.healthy
            ]
        )

    def _pod(self, pod: Pod) -> wire.PodResources:
        """Ordinary init containers are not listed, sidecars are."""
        sidecars = [container for container in pod.spec.init_containers if container.is_sidecar]
        held = self._devices.held(pod.metadata.uid)
        return wire.PodResources(
            name=pod.metadata.name,
            namespace=pod.metadata.namespace,
            containers=[
                wire.ContainerResources(
                    name=container.name,
                    devices=[entry for one in held if one.container == container.name for entry in self._entries(one)],
                )
                for container in [*sidecars, *pod.spec.containers]
            ],
        )

    def _entries(self, held: HeldDevices) -> list[wire.ContainerDevices]:
        devices = self._devices.devices(held.resource)
        return [_entry(held.resource, name, devices.get(name)) for name in held.ids]


def _entry(resource: str, name: str, device: AdvertisedDevice | None) -> wire.ContainerDevices:
    """Kubelet gives every device an entry of its own."""
    nodes = [wire.NUMANode(ID=numa) for numa in (device.numa if device else ())]
    topology = wire.TopologyInfo(nodes=nodes) if nodes else None
    return wire.ContainerDevices(resource_name=resource, device_ids=[name], topology=topology)
