"""Has the driver limit the GPU memory of containers, before they start and as long as they run.

A hook requests them before the first instruction of a container. After that the limits are read back, because a driver
that starts again has none, and set again where they are missing.
"""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from deviceplugin.apiserver import OwnNode
from deviceplugin.container.container_folders import split_folder
from deviceplugin.container.limit_folder import read_limits, remove_limit_folder, write_limits
from deviceplugin.gpus import Gpus
from deviceplugin.limits.conditions import NOT_ANSWERED, DriverFacts, Judgement, judge, may_limit
from deviceplugin.limits.pipes import HookPipes
from deviceplugin.nvml.memory_limits import MemoryLimit, MemoryLimits, holds, is_of_gpu, is_slow, not_set
from deviceplugin.own_threads import OwnThreads
from deviceplugin.pod_cgroups import container_group, is_version_2, kubelets_group
from proto.decoding import decoded
from proto.devices import DeviceUUID
from proto.kubernetes.objects import Notice, ObjectReference, Pod

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""The time between two looks at the limits of all containers."""
_MIB = 1 << 20
_LOST, _UNCERTAIN = "nothing holds", "it is not certain that the driver holds"


class _State(msgspec.Struct):
    """The runtime's state of a container, as its hooks get it (runtime.md of opencontainers/runtime-spec)."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limited:
    """One container that the driver limits. `container_id` is that of its hook; empty where it was not seen."""

    limits_mib: Mapping[DeviceUUID, int]
    container_id: str = ""
    before: str = ""
    """The container id that the pod's status had when the hook was expected: that of an earlier start."""
    group: str = ""
    """The folder of its control group; empty while it is not known."""
    seen: bool = False
    """The watch has shown its pod."""


Key = tuple[str, str]
"""Pod UID and name of the container."""


class DriverLimits:
    """The limits of this node's containers. `is_known` is set once the driver has answered."""

    def __init__(
        self,
        memory: MemoryLimits | None,
        own: OwnNode,
        gpus: Gpus,
        *,
        cgroups: Path,
        folder: str,
        record: Callable[[ObjectReference, Notice], None] = lambda *_: None,
        count: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Without `memory` the driver limits nothing. `cgroups` has the host's control groups, `folder` one folder for
        each container. `count` gets `set`, `resized`, `restored` or `refused`.
        """
        self._memory = memory
        self._own = own
        self._gpus = gpus
        self._root = cgroups
        self._folder = folder
        self._record = record
        self._count = count
        self._pipes = HookPipes(self._grant)
        self._thread = OwnThreads("limits")
        self._limited: dict[Key, Limited] = {}
        self._reported: dict[Key, str] = {}
        self._happened: dict[Key, Counter[str]] = {}
        self._judgement: Judgement = NOT_ANSWERED
        self.writing = asyncio.Lock()
        """Held from reading what a container shall have until the driver has it."""
        self.recalled = asyncio.Event()
        """The event is set once the containers of an earlier daemon are known."""
        self.is_known = asyncio.Event()
        if memory is None:
            self.is_known.set()

    @property
    def problem(self) -> str:
        """Returns why the driver limits nothing here, as a clause; empty while it does."""
        return self._judgement.problem

    @property
    def unheld(self) -> int:
        """Returns how many containers have limits that the driver does not take."""
        return len(self._reported)

    @property
    def containers(self) -> int:
        return sum(bool(each.group) for each in self._limited.values())

    async def look(self) -> bool:
        """Reads whether the driver limits memory here. Returns whether it is known: not without a GPU, and not while no
        GPU answers.
        """
        if self._memory is None or not self._gpus.inventory.devices:
            return self._memory is None
        gpus = [device.uuid for device in self._gpus.inventory.devices if device.healthy and not device.is_mig]
        facts = await ask_driver(self._memory, self._root, gpus)
        self._judgement = judge(self._judgement, facts, asyncio.get_running_loop().time())
        if self._judgement.is_known:
            self.is_known.set()
        return self._judgement.is_known

    def expect(self, pod_uid: str, container: str, limits_mib: Mapping[DeviceUUID, int]) -> None:
        """Answers the hook of this container from now on; without limits the driver no longer holds the container.
        Raises OSError.
        """
        self._forget((pod_uid, container))
        if limits_mib:
            pod = self._own.pods.get(pod_uid)
            before = "" if pod is None else _started_id(pod, container)
            self._limited[pod_uid, container] = Limited(limits_mib=limits_mib, before=before, seen=pod is not None)
            self._pipes.open(self._folder_of((pod_uid, container)))
        else:
            remove_limit_folder(self._folder_of((pod_uid, container)))

    async def run(self) -> None:
        """Reads the limits of containers back, and sets those again that are missing, until cancelled."""
        for pod_uid, container, limits_mib in await self._thread.call(lambda: tuple(read_limits(self._folder))):
            self._limited.setdefault((pod_uid, container), Limited(limits_mib=limits_mib))
        self.recalled.set()
        while True:
            if self._memory is not None and self._own.pods_known:
                await self._keep(self._memory)
            await asyncio.sleep(LOOK_SECONDS)

    async def end(self) -> None:
        """Answers no hook after this."""
        await self._pipes.end()

    def used_now(self) -> Mapping[tuple[str, str, DeviceUUID], int]:
        """Returns the bytes that each container uses of each of its GPUs, as the driver counts them. Runs on the
        thread that owns NVML.
        """
        # Containers come and go on the event loop meanwhile: a tuple is made in one step.
        limited = tuple(self._limited.items())
        groups = {each.group: (key, each.limits_mib) for key, each in limited if each.group}
        if self._memory is None or not groups:
            return {}
        answers = self._memory.read_now({group: tuple(limits) for group, (_, limits) in groups.items()})
        return {
            (*groups[group][0], gpu): answer.used_bytes
            for group, by_gpu in answers.items()
            for gpu, answer in by_gpu.items()
            if isinstance(answer, MemoryLimit)
        }

    def of_pod(self, pod_uid: str) -> Mapping[str, Limited]:
        """Returns the pod's containers that the driver limits, or will once they start, by name."""
        return {container: each for (uid, container), each in self._limited.items() if uid == pod_uid}

    async def change(self, key: Key, limited: Limited, limits_mib: Mapping[DeviceUUID, int]) -> bool:
        """Keeps the container to other limits, which the driver has already. Returns False if it has ended, or starts
        again. Raises OSError.
        """
        if self._limited.get(key) is limited:
            await self._thread.call(partial(write_limits, self._folder_of(key), limits_mib))
        if self._limited.get(key) is not limited:
            return False
        self._limited[key] = replace(limited, limits_mib=limits_mib)
        self._count("resized")
        return True

    async def _grant(self, folder: str, state: bytes) -> str:
        """Sets the limits of the container for its hook. Returns why that failed, empty if it did not."""
        pod_uid, container = key = split_folder(Path(folder).name)
        limited = self._limited.get(key)
        try:
            container_id = decoded(state, _State).id
        except msgspec.MsgspecError as error:
            return f"the runtime's state of the container cannot be read: {error}"
        if limited is None or self._memory is None:
            return "the device plugin does not know this container"
        group = await self._thread.call(lambda: container_group(self._root, pod_uid, container_id))
        if group is None:
            problem = f"the control group of container {container_id} is not seen below {self._root}"
        else:
            async with self.writing:
                problem = not_set(await self._memory.set(str(group), bytes_of(limited.limits_mib)))
        if problem:
            self._count("refused")
            log.warning("container %s of pod %s does not start: %s", container, pod_uid, problem)
            return problem
        if self._limited.get(key) is limited:
            self._limited[key] = replace(limited, container_id=container_id, group=str(group))
        self._count("set")
        return ""

    async def _keep(self, memory: MemoryLimits) -> None:
        """Looks once at all containers."""
        for key, each in [(key, each) for key, each in self._limited.items() if key[0] not in self._own.pods]:
            # The watch may be late for a pod that was read; its folder goes a while after a pod that was never seen.
            ends = each.seen or not await self._thread.call(partial(os.path.isdir, self._folder_of(key)))
            if ends and self._limited.get(key) is each:
                self._forget(key)
        found = await self._thread.call(lambda: {key: self._group(*item) for key, item in self._seen().items()})
        for key, (before, group) in found.items():
            if self._limited.get(key) is before and not (before.seen and before.group == group):
                self._limited[key] = replace(before, group=group, seen=True)
        limited = {key: each for key, each in self._limited.items() if each.group}
        self._reported = {key: problem for key, problem in self._reported.items() if key in limited}
        answers = await memory.read({each.group: tuple(each.limits_mib) for each in limited.values()})
        for key, each in limited.items():
            wanted = bytes_of(each.limits_mib)
            answered = {gpu: answer for gpu, answer in answers[each.group].items() if not is_slow(answer)}
            if not all(holds(answer, wanted[gpu]) for gpu, answer in answered.items()):
                is_read = all(isinstance(answer, MemoryLimit) for answer in answered.values())
                await self._restore(memory, key, each, is_read=is_read)
            elif len(answered) == len(wanted) and self._reported.pop(key, ""):
                log.info("pod %s: the driver holds container %s to its limits", *key)

    def _forget(self, key: Key) -> None:
        for known in (self._limited, self._reported, self._happened):
            known.pop(key, None)
        self._pipes.close(self._folder_of(key))

    def _folder_of(self, key: Key) -> str:
        return f"{self._folder}/{key[0]}_{key[1]}"

    def _seen(self) -> Mapping[Key, tuple[Limited, str, str]]:
        """Returns each container with its pod's UID and the container id that its pod's status has."""
        pods = self._own.pods
        return {
            key: (each, key[0], _started_id(pods[key[0]], key[1]))
            for key, each in self._limited.items()
            if key[0] in pods
        }

    def _group(self, limited: Limited, pod_uid: str, container_id: str) -> tuple[Limited, str]:
        """Returns the group of the container's last start. Its hook names it before its pod's status does. Blocks."""
        if limited.group and Path(limited.group).is_dir():
            return limited, limited.group
        current = "" if container_id == limited.before else container_id
        for each in filter(None, (limited.container_id, current)):
            if (group := container_group(self._root, pod_uid, each)) is not None:
                return limited, str(group)
        return limited, ""

    async def _restore(self, memory: MemoryLimits, key: Key, limited: Limited, *, is_read: bool) -> None:
        """Sets the limits again. Those that the driver does not show, `is_read`, may still hold."""
        async with self.writing:
            if self._limited.get(key) is not limited:
                return  # it starts again, or shall have other limits
            problem = not_set(await memory.set(limited.group, bytes_of(limited.limits_mib)))
        if self._limited.get(key) is not limited or not await self._thread.call(lambda: Path(limited.group).is_dir()):
            return  # it has ended, or starts again
        amounts = ", ".join(f"{mib} MiB of {gpu}" for gpu, mib in sorted(limited.limits_mib.items()))
        if not problem:
            self._reported.pop(key, None)
            self._count("restored")
            lost = f"container {key[1]} had lost its limit of GPU memory; the driver holds it to {amounts} again"
            self._announce(key, "GPUMemoryLimitRestored", lost)
        elif self._reported.get(key) != problem:
            self._reported[key] = problem
            unheld = f"{_LOST if is_read else _UNCERTAIN} container {key[1]} to {amounts}: {problem}"
            self._announce(key, "GPUMemoryLimitLost", unheld)

    def _announce(self, key: Key, reason: str, message: str) -> None:
        """Logs and records what happened to a container."""
        happened = self._happened.setdefault(key, Counter())
        happened[reason] += 1
        if not is_recorded(happened[reason]):
            return
        often = "" if happened[reason] == 1 else f" ({happened[reason]} times since it started)"
        pod = self._own.pods.get(key[0])
        name = key[0] if pod is None else pod.full_name
        log.warning("pod %s: %s%s", name, message, often)
        if pod is not None:
            self._record(pod.reference, Notice(reason=reason, message=message + often, distinct=True))


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


def is_recorded(times: int) -> bool:
    """Returns whether what happens for this number of times is recorded: the 1st, 2nd, 4th, 8th time, and so on."""
    return times & (times - 1) == 0


def bytes_of(limits_mib: Mapping[DeviceUUID, int]) -> dict[DeviceUUID, int | None]:
    """Returns the limits as the driver takes them."""
    return {gpu: mib * _MIB for gpu, mib in limits_mib.items()}


def _started_id(pod: Pod, container: str) -> str:
    """Returns the id in the pod's status as a runtime has it."""
    return pod.container_id(container).rpartition("/")[2]
