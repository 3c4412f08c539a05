"""Reads whether the driver limits GPU memory by control group on this node (edge)."""

import asyncio
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from deviceplugin.limits.conditions import DriverFacts, may_limit
from deviceplugin.nvml.memory_limits import MemoryLimit, MemoryLimits, holds, is_of_gpu, not_set
from deviceplugin.pod_cgroups import is_version_2, kubelets_group
from proto.devices import DeviceUUID


async def ask_driver(memory: MemoryLimits, root: Path, gpus: Collection[DeviceUUID]) -> DriverFacts:
    """Reads the driver, the control groups below `root`, and whether the driver limits these GPUs."""
    kubelets = await asyncio.to_thread(kubelets_group, root)
    facts = DriverFacts(
        version=memory.driver,
        is_version_2=await asyncio.to_thread(is_version_2, root),
        has_pods=kubelets is not None,
        gpus=len(gpus),
    )
    return await _tried(memory, str(kubelets), gpus, facts) if may_limit(facts) else facts


async def _tried(memory: MemoryLimits, group: str, gpus: Collection[DeviceUUID], facts: DriverFacts) -> DriverFacts:
    """Takes from kubelet's own group the limit that it has not: what a limit needs, this needs too."""
    answers = (await memory.read({group: gpus}))[group]
    unread = {gpu: each for gpu, each in sorted(answers.items()) if not isinstance(each, MemoryLimit)}
    unset = await memory.set(group, {gpu: None for gpu, each in answers.items() if holds(each, None)})
    refusals = {**unread, **unset}
    of_driver = {gpu: each for gpu, each in refusals.items() if not is_of_gpu(each)}
    return replace(
        facts,
        refusal=not_set(of_driver or refusals),
        is_of_gpus=bool(refusals) and not of_driver,
        is_limiting=len(refusals) < len(gpus),
    )
