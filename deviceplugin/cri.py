"""Reads from the container runtime, on its own socket, whether it applies CDI devices (edge)."""

import asyncio
import logging
import os

import grpc

from deviceplugin.runtimes import enabled_cdi
from proto.cri import runtime_v1_pb2 as pb
from proto.cri import runtime_v1_pb2_grpc as rpc

log = logging.getLogger(__name__)


async def ask_enable_cdi(socket: str, *, deadline_seconds: float = 3.0) -> bool | None:
    """Returns the runtime's switch for CDI; None without a socket, a switch or an answer."""
    if not await asyncio.to_thread(os.path.exists, socket):
        return None
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        try:
            answer = await rpc.RuntimeServiceStub(channel).Status(
                pb.StatusRequest(verbose=True), timeout=deadline_seconds
            )
        except grpc.aio.AioRpcError as error:
            log.warning("the container runtime on %s does not report its status: %s", socket, error.details())
            return None
    return enabled_cdi(answer.info)
