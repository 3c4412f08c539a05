"""Reads whether the driver limits GPU memory by control group on this node (edge)."""

import asyncio
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from deviceplugin.limits.conditions import DriverFacts, may_limit
from deviceplugin.nvml.memory_limits import MemoryLimits, holds
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
    return replace(facts, refusal=await _refusal(memory, str(kubelets), gpus)) if may_limit(facts) else facts


async def _refusal(memory: MemoryLimits, group: str, gpus: Collection[DeviceUUID]) -> str:
    """Takes from kubelet's own group the limit that it has not: what a limit needs, this needs too."""
    answers = (await memory.read({group: gpus}))[group]
    for gpu, answer in sorted(answers.items()):
        if isinstance(answer, str):
            return f"the driver does not read the limits of {gpu}: {answer}"
    return await memory.set(group, {gpu: None for gpu, each in answers.items() if holds(each, None)})
