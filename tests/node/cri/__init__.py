"""A container runtime asked over CRI, as kubelet asks it."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from tests.node.cri import containers_pb2 as pb

__all__ = ["Cri", "pb"]

T = TypeVar("T", bound=Message)

_SECONDS = 60.0


class Cri:
    """Calls block, until the runtime listens and has answered, and raise RpcError. `channel` is to its socket."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self.run_sandbox = self._call("RuntimeService/RunPodSandbox", pb.RunPodSandboxResponse)
        self.create = self._call("RuntimeService/CreateContainer", pb.CreateContainerResponse)
        self.status = self._call("RuntimeService/ContainerStatus", pb.ContainerStatusResponse)
        self.remove = self._call("RuntimeService/RemoveContainer", pb.RemoveContainerResponse)
        self.pull = self._call("ImageService/PullImage", pb.PullImageResponse)

    def _call(self, method: str, answer: type[T]) -> Callable[[Message], T]:
        ask = self._channel.unary_unary(
            f"/runtime.v1.{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return partial(ask, wait_for_ready=True, timeout=_SECONDS)
