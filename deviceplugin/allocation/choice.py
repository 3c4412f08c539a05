"""Edge that tries what slots need on this node."""

import asyncio
from dataclasses import replace

from deviceplugin.allocation.mode import NodeAbilities, choose
from deviceplugin.allocation.pod_resources import PodResources
from deviceplugin.allocation.slot_files import SlotFiles
from deviceplugin.apiserver import OwnNode
from deviceplugin.cri import ask_enable_cdi
from deviceplugin.news import News
from deviceplugin.reporting import AllocationMode
from deviceplugin.settings import AgentSettings
from proto.annotations.keys import NODE_ALLOCATION

_ATTEMPTS = 5
_PAUSE_SECONDS = 1.0
"""Between attempts: a kubelet that is just starting must not decide how this process serves as long as it lives."""


async def choose_allocation(
    own: OwnNode,
    news: News,
    settings: AgentSettings,
    files: SlotFiles,
    pod_resources: PodResources,
    *,
    pause_seconds: float = _PAUSE_SECONDS,
) -> tuple[AllocationMode, str]:
    """The mode, and one sentence that says why, once the Node is known. Raises SlotsUnsupported."""
    abilities = replace(await _told(own, news), enable_cdi=await ask_enable_cdi(settings.cri_socket))
    mode, sentence = choose(settings.allocation, abilities, settings.hami_scheduler)
    if mode is AllocationMode.IMMEDIATE:
        return mode, sentence
    tried = replace(
        abilities,
        cdi_problem=await asyncio.to_thread(files.problem),
        pod_resources_problem=await _pod_resources_problem(pod_resources, pause_seconds),
    )
    return choose(settings.allocation, tried, settings.hami_scheduler)


async def _told(own: OwnNode, news: News) -> NodeAbilities:
    following = news.next()
    while own.node is None:
        await following.wait()
        following = news.next()
    told = own.node.status.node_info
    return NodeAbilities(
        kubelet_version=told.kubelet_version,
        runtime_version=told.container_runtime_version,
        by_slots=own.node.metadata.annotations.get(NODE_ALLOCATION) == AllocationMode.SLOTS,
    )


async def _pod_resources_problem(pod_resources: PodResources, pause_seconds: float) -> str:
    problem = ""
    for attempt in range(_ATTEMPTS):
        await asyncio.sleep(pause_seconds if attempt else 0)
        problem = await pod_resources.problem()
        if not problem:
            return ""
    return f"kubelet's pod-resources cannot be asked ({problem})"
