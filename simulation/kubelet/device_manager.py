"""Kubelet's device manager: registers plugins on its socket, follows their devices, allocates to containers."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import grpc
from grpc import aio

from proto.kubelet import deviceplugin_v1beta1_pb2 as wire
from proto.kubelet.deviceplugin_v1beta1_pb2_grpc import RegistrationServicer, add_RegistrationServicer_to_server
from proto.kubernetes.objects import Container, Pod
from simulation.kubelet.checkpoint import CHECKPOINT_NAME
from simulation.kubelet.device_ids import (
    AdmissionRefused,
    AdvertisedDevice,
    choices,
    containers_in_order,
    device_requests,
    settle,
)
from simulation.kubelet.held import HeldDevices, HeldTable
from simulation.kubelet.plugin import ConnectionClosing, PluginConnection, closing, refusal, rpc_text
from simulation.moments import Moments

SUPPORTED_VERSION = "v1beta1"
_STOP_GRACE_SECONDS = 0.2
_CONNECT_SECONDS = 10.0
# A shared subchannel would sit out gRPC's back-off after a plugin's restart.
_CHANNEL_OPTIONS = [("grpc.use_local_subchannel_pool", 1)]


class PreStartRefused(Exception):
    """A plugin's PreStartContainer failed; the container waits and is tried again."""


class DeviceManager(RegistrationServicer):
    """Serves Registration on `<directory>/kubelet.sock`; `changed` is set whenever capacity may have changed.

    A plugin that registers takes the calls over from the one before, whose connection stays open. `by_path`, as from
    1.37 on: connections are known by their sockets. Before, one is known for each resource, the last: whichever ends,
    that one is closed. Source: pkg/kubelet/cm/devicemanager of Kubernetes 1.29 and 1.37.
    """

    def __init__(self, directory: Path, *, by_path: bool = True) -> None:
        self.directory = directory
        self.changed = asyncio.Event()
        self.calls: list[str] = []
        """Every call made to a plugin, in order: what kubelet did."""
        self.moments = Moments[str]()
        """The calls before each of these calls, by its entry in `calls`."""
        self._by_path = by_path
        self._clients: list[PluginConnection] = []
        """Whose end is noticed."""
        self._connected: dict[tuple[str, str], PluginConnection] = {}
        """The plugins that are connected, by resource and socket."""
        self._called: dict[str, PluginConnection] = {}
        """The plugin that is called, by resource."""
        self._devices: dict[str, dict[str, AdvertisedDevice]] = {}
        """The devices of each resource, as any of its plugins sent them last."""
        self._held = HeldTable(directory)
        self._known: set[str] = set()
        """Resources that were ever registered here, also before a restart."""
        self._server: aio.Server | None = None

    async def start(self) -> None:
        """Empties the directory but for the checkpoint, as kubelet does at every start, reads that, then listens.

        Raises CheckpointUnreadable.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        self._known.update(self._held.read())
        self.changed.set()
        for entry in self.directory.iterdir():
            if entry.name != CHECKPOINT_NAME and not entry.is_dir():
                entry.unlink(missing_ok=True)
        server = aio.server()
        add_RegistrationServicer_to_server(self, server)
        server.add_insecure_port(f"unix:{self.directory / 'kubelet.sock'}")
        await server.start()
        self._server = server

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(_STOP_GRACE_SECONDS)
            self._server = None
        (self.directory / "kubelet.sock").unlink(missing_ok=True)
        for plugin in {*self._clients, *self._connected.values()}:
            await plugin.close()
        self._clients, self._connected, self._called, self._devices = [], {}, {}, {}
        self.changed.set()

    async def Register(  # noqa: N802 - gRPC's name
        self,
        request: wire.RegisterRequest,
        context: aio.ServicerContext[wire.RegisterRequest, wire.Empty],
    ) -> wire.Empty:
        if request.version != SUPPORTED_VERSION:
            await context.abort(
                grpc.StatusCode.UNKNOWN, f'requested API version "{request.version}" is not supported by kubelet'
            )
        if "/" not in request.resource_name:
            await context.abort(grpc.StatusCode.UNKNOWN, f'the ResourceName "{request.resource_name}" is invalid')
        await self._begin(f"Register {request.resource_name}")
        channel = aio.insecure_channel(f"unix:{self.directory / request.endpoint}", options=_CHANNEL_OPTIONS)
        plugin = PluginConnection(resource=request.resource_name, endpoint=request.endpoint, channel=channel)
        if not self._by_path:
            self._forget(plugin)
        self._clients.append(plugin)
        try:
            # The options in the request are not looked at.
            plugin.options = await plugin.stub.GetDevicePluginOptions(wire.Empty(), timeout=_CONNECT_SECONDS)
        except aio.AioRpcError as error:
            problem = f"failed to get device plugin options: {rpc_text(error)}"
        else:
            is_known = self._by_path and (plugin.resource, plugin.endpoint) in self._connected
            problem = f"device plugin already connected: {self.directory / plugin.endpoint}" if is_known else ""
        if problem:
            self._forget(plugin)
            await channel.close(None)
            await context.abort(grpc.StatusCode.UNKNOWN, problem)
        self._called[plugin.resource] = self._connected[plugin.resource, plugin.endpoint] = plugin
        self._known.add(plugin.resource)
        self._devices.setdefault(plugin.resource, {})
        plugin.follower = asyncio.create_task(self._follow(plugin))
        return wire.Empty()

    def capacity(self) -> Mapping[str, tuple[int, int]]:
        """Returns for each resource how many ids there are, and how many are healthy; none until the plugin is back."""
        return dict.fromkeys(self._known, (0, 0)) | {
            resource: (len(devices), sum(device.healthy for device in devices.values()))
            for resource, devices in self._devices.items()
        }

    def held(self, pod_uid: str = "") -> tuple[HeldDevices, ...]:
        """Returns what containers hold; of one pod, or of all."""
        return self._held.of(pod_uid)

    def devices(self, resource: str) -> Mapping[str, AdvertisedDevice]:
        """Returns the devices by id; none while no plugin is registered."""
        return self._devices.get(resource, {})

    def resources(self) -> tuple[str, ...]:
        """Returns the resources of the registered plugins."""
        return tuple(self._called)

    async def admit(self, pod: Pod) -> None:
        """Allocates for every container, init containers first. One that had devices before kubelet started again keeps
        them if they are still healthy. Raises AdmissionRefused and gives all back.
        """
        reusable: dict[str, set[str]] = {}
        try:
            for container, gives_back in containers_in_order(pod):
                if self._keeps(pod.metadata.uid, container.name):
                    continue
                for resource, wanted in device_requests(container, self._known).items():
                    pool = reusable.setdefault(resource, set())
                    ids = await self._allocate(pod.metadata.uid, container, resource, wanted, pool)
                    pool.update(ids) if gives_back else pool.difference_update(ids)
        except AdmissionRefused:
            self.release(pod.metadata.uid)
            raise

    async def pre_start(self, pod_uid: str, container: str) -> None:
        """Calls PreStartContainer of the plugins that want it. Raises PreStartRefused."""
        for held in self.held(pod_uid):
            plugin = self._called.get(held.resource)
            if held.container != container:
                continue
            if plugin is None:
                raise PreStartRefused(f"endpoint not found in cache for a registered resource: {held.resource}")
            if not plugin.options.pre_start_required:
                continue
            await self._begin(f"PreStartContainer {container}")
            try:
                with closing():
                    await plugin.stub.PreStartContainer(wire.PreStartContainerRequest(devices_ids=held.ids), timeout=30)
            except (aio.AioRpcError, ConnectionClosing) as error:
                raise PreStartRefused(
                    f"device plugin PreStartContainer rpc failed with err: {rpc_text(error)}"
                ) from error

    def _keeps(self, pod_uid: str, container: str) -> bool:
        """Returns whether the checkpoint knows the container. Raises AdmissionRefused."""
        known = [held for held in self.held(pod_uid) if held.container == container]
        for held in known:
            devices = self.devices(held.resource)
            if not all(name in devices and devices[name].healthy for name in held.ids):
                raise AdmissionRefused(
                    "Allocate failed due to previously allocated devices are no longer healthy; "
                    f"cannot allocate unhealthy devices {held.resource}, which is unexpected"
                )
        return bool(known)

    async def _begin(self, call: str) -> None:
        self.calls.append(call)
        await self.moments.before(call)

    def release(self, pod_uid: str) -> None:
        self._held.drop(pod_uid)
        self._write()

    async def _allocate(
        self, pod_uid: str, container: Container, resource: str, wanted: int, pool: set[str]
    ) -> set[str]:
        plugin = self._called.get(resource)
        if plugin is None:
            raise AdmissionRefused(
                "Allocate failed due to no healthy devices present; "
                f"cannot allocate unhealthy devices {resource}, which is unexpected"
            )
        in_use = self._held.in_use(resource)
        choice = choices(resource, self.devices(resource), in_use, pool, wanted)
        preferred: tuple[str, ...] = ()
        if plugin.is_stopped:
            raise AdmissionRefused(
                f"Allocate failed due to endpoint {plugin.endpoint} has been stopped, which is unexpected"
            )
        with refusal():
            if not choice.complete and plugin.options.get_preferred_allocation_available:
                await self._begin(f"GetPreferredAllocation {container.name}")
                preferred = await plugin.preferred(choice.available, choice.kept, wanted)
            ids = settle(choice, preferred)
            await self._begin(f"Allocate {container.name}")
            request = wire.ContainerAllocateRequest(devices_ids=ids)
            answer = await plugin.stub.Allocate(wire.AllocateRequest(container_requests=[request]))
        if len(answer.container_responses) != 1:
            raise AdmissionRefused("Allocate failed due to no containers in allocation response, which is unexpected")
        self._held.add(
            HeldDevices(
                pod_uid=pod_uid,
                container=container.name,
                resource=resource,
                ids=ids,
                response=answer.container_responses[0],
            )
        )
        self._write()
        return set(ids)

    async def _follow(self, plugin: PluginConnection) -> None:
        """Waits until the plugin ends the stream."""
        self.calls.append("ListAndWatch")
        try:
            async for update in plugin.stub.ListAndWatch(wire.Empty()):
                self._devices[plugin.resource] = {device.ID: _advertised(device) for device in update.devices}
                self._write()
                self.changed.set()
        except aio.AioRpcError:
            pass
        closed = next((one for one in self._clients if self._is_same(one, plugin)), None)
        if closed is not None:
            self._forget(closed)
            self._disconnected(closed)
            await closed.close()

    def _is_same(self, one: PluginConnection, plugin: PluginConnection) -> bool:
        """Returns whether both are the same plugin, as far as kubelet can know."""
        return one.resource == plugin.resource and (not self._by_path or one.endpoint == plugin.endpoint)

    def _forget(self, plugin: PluginConnection) -> None:
        self._clients = [one for one in self._clients if not self._is_same(one, plugin)]

    def _disconnected(self, plugin: PluginConnection) -> None:
        """Its devices are unhealthy, unless kubelet knows of another plugin that has them."""
        self._connected.pop((plugin.resource, plugin.endpoint), None)
        remaining = [one for one in self._connected.values() if one.resource == plugin.resource]
        if self._by_path and remaining:
            self._called[plugin.resource] = remaining[-1]
            return
        self._called[plugin.resource].is_stopped = True
        self._devices[plugin.resource] = {
            name: AdvertisedDevice(healthy=False, numa=device.numa)
            for name, device in self._devices[plugin.resource].items()
        }
        self.changed.set()

    def _write(self) -> None:
        self._held.write(self._known, self._devices)


def _advertised(device: wire.Device) -> AdvertisedDevice:
    return AdvertisedDevice(healthy=device.health == "Healthy", numa=tuple(node.ID for node in device.topology.nodes))
