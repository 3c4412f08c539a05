"""Tries what slots need on this node, and chooses the mode (edge)."""

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import grpc

from deviceplugin.allocation.sources import AllocationSources
from deviceplugin.host_paths import containerd_socket
from deviceplugin.mode.rules import NodeAbilities, SlotsUnsupported, choose
from deviceplugin.own_threads import OwnThreads
from deviceplugin.records.memory import Memory
from deviceplugin.records.pod_resources import PodResources
from deviceplugin.runtimes import enabled_cdi
from deviceplugin.slots.files import SlotFiles
from proto.annotations.keys import NODE_ALLOCATION
from proto.annotations.node_allocation import AllocationMode, decode_mode
from proto.cri import runtime_v1_pb2 as pb
from proto.cri import runtime_v1_pb2_grpc as rpc

log = logging.getLogger(__name__)


async def ask_enable_cdi(socket: str) -> bool | None:
    """Returns the runtime's switch for CDI; None without a socket, a switch or an answer."""
    if not await asyncio.to_thread(os.path.exists, socket):
        return None
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        try:
            answer = await rpc.RuntimeServiceStub(channel).Status(pb.StatusRequest(verbose=True), timeout=3.0)
        except grpc.aio.AioRpcError as error:
            log.warning("the container runtime on %s does not report its status: %s", socket, error.details())
            return None
    return enabled_cdi(answer.info)


_ATTEMPTS = 5
_PAUSE_SECONDS = 1.0
"""Seconds between attempts: a kubelet that is just starting must not decide the mode for the life of this process."""


class ModeOutdated(SlotsUnsupported):
    """The Node's facts now call for another mode than the remembered ones; one sentence."""


@dataclass(frozen=True, slots=True)
class ChosenMode:
    """The mode, and the reason for it as a sentence. `memory` is the basis of the choice; None if the Node is."""

    mode: AllocationMode
    sentence: str
    memory: Memory | None = None


async def choose_allocation(
    sources: AllocationSources,
    files: SlotFiles,
    pod_resources: PodResources,
    *,
    recall: Callable[[], Memory | None] = lambda: None,
    pause_seconds: float = _PAUSE_SECONDS,
) -> ChosenMode:
    """Chooses once the Node is known, or, while the API server is unreachable, once `recall` has an answer. Raises
    SlotsUnsupported.
    """
    found, memory = await _abilities(sources, recall)
    abilities = await _with_switch(found, sources)
    mode, sentence = _chosen(abilities, sources)
    if mode is AllocationMode.IMMEDIATE:
        return ChosenMode(mode, sentence, memory)
    tried = replace(
        abilities,
        cdi_problem=await OwnThreads("cdi folder").call(files.problem),
        pod_resources_problem=await _pod_resources_problem(pod_resources, pause_seconds),
    )
    return ChosenMode(*_chosen(tried, sources), memory)


async def confirm(sources: AllocationSources, chosen: ChosenMode, memory: Memory) -> None:
    """Returns once the Node confirms what was remembered. Raises ModeOutdated and SlotsUnsupported."""
    found, _ = await _abilities(sources, lambda: None)
    if (found.kubelet, found.runtime) == (memory.kubelet, memory.runtime):
        return
    by_slots = chosen.mode is AllocationMode.SLOTS
    now, sentence = _chosen(await _with_switch(replace(found, by_slots=by_slots), sources), sources)
    if now is not chosen.mode:
        raise ModeOutdated(f"The Node has other versions than were remembered. {sentence} A restart applies it.")


def _chosen(abilities: NodeAbilities, sources: AllocationSources) -> tuple[AllocationMode, str]:
    """Raises SlotsUnsupported."""
    return choose(sources.settings.allocation, abilities, sources.settings.hami_scheduler)


async def _with_switch(found: NodeAbilities, sources: AllocationSources) -> NodeAbilities:
    socket = containerd_socket(sources.configuration.host.root)
    return replace(found, enable_cdi=await ask_enable_cdi(socket))


async def _abilities(
    sources: AllocationSources, recall: Callable[[], Memory | None]
) -> tuple[NodeAbilities, Memory | None]:
    own, changes = sources.own, sources.changes
    change = changes.next()
    while own.node is None:
        # If the API server has no such Node, the memory was not wrong: the Node is gone.
        memory = recall() if own.problem else None
        if memory is not None:
            by_slots = memory.mode is AllocationMode.SLOTS
            return NodeAbilities(kubelet=memory.kubelet, runtime=memory.runtime, by_slots=by_slots), memory
        await change.wait()
        change = changes.next()
    info = own.node.status.node_info
    return NodeAbilities(
        kubelet=info.kubelet_version,
        runtime=info.container_runtime_version,
        by_slots=decode_mode(own.node.metadata.annotations.get(NODE_ALLOCATION)) is AllocationMode.SLOTS,
    ), None


async def _pod_resources_problem(pod_resources: PodResources, pause_seconds: float) -> str:
    problem = ""
    for attempt in range(_ATTEMPTS):
        await asyncio.sleep(pause_seconds if attempt else 0)
        problem = await pod_resources.problem()
        if not problem:
            return ""
    return f"kubelet's pod-resources cannot be asked ({problem})"
