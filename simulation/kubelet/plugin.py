"""Kubelet's connection to one device plugin, and its errors in the words of Go's gRPC (edge)."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from grpc import aio

from proto.kubelet import deviceplugin_v1beta1_pb2 as wire
from proto.kubelet.deviceplugin_v1beta1_pb2_grpc import DevicePluginStub
from simulation.kubelet.device_ids import AdmissionRefused

if TYPE_CHECKING:
    from proto.kubelet.deviceplugin_v1beta1_pb2_grpc import DevicePluginAsyncStub


@dataclass(slots=True, kw_only=True, eq=False)
class PluginConnection:
    """A connection to one plugin."""

    resource: str
    endpoint: str
    channel: aio.Channel
    options: wire.DevicePluginOptions = field(default_factory=wire.DevicePluginOptions)
    follower: asyncio.Task[None] | None = None
    is_stopped: bool = False

    @property
    def stub(self) -> "DevicePluginAsyncStub":
        return DevicePluginStub(self.channel)

    async def preferred(self, available: tuple[str, ...], kept: tuple[str, ...], size: int) -> tuple[str, ...]:
        """Returns the ids that the plugin prefers for one container."""
        request = wire.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=kept, allocation_size=size
        )
        answer = await self.stub.GetPreferredAllocation(wire.PreferredAllocationRequest(container_requests=[request]))
        return tuple(answer.container_responses[0].deviceIDs) if answer.container_responses else ()

    async def close(self) -> None:
        if self.follower is not None and self.follower is not asyncio.current_task():
            self.follower.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.follower
        await self.channel.close(None)


class ConnectionClosing(Exception):
    """A plugin registered again, or kubelet restarts, during a call."""


@contextlib.contextmanager
def closing() -> Iterator[None]:
    """gRPC cancels a call on a channel that is closed; that does not end the caller."""
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise ConnectionClosing from error
    except aio.UsageError as error:
        raise ConnectionClosing from error


@contextlib.contextmanager
def refusal() -> Iterator[None]:
    """Raises AdmissionRefused instead of an error of the plugin's."""
    try:
        with closing():
            yield
    except (aio.AioRpcError, ConnectionClosing) as error:
        raise AdmissionRefused(f"Allocate failed due to {rpc_text(error)}, which is unexpected") from error


def rpc_text(error: aio.AioRpcError | ConnectionClosing) -> str:
    """Prints an error as Go's gRPC does."""
    if isinstance(error, ConnectionClosing):
        return "rpc error: code = Canceled desc = grpc: the client connection is closing"
    code = "".join(word.capitalize() for word in error.code().name.split("_"))
    return f"rpc error: code = {code} desc = {error.details()}"
