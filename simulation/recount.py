"""The use of each GPU by pods, and their requests, counted again from the JSON of the API server: nothing of the
extender is used.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

DEVICES_ALLOCATED = "hami.io/vgpu-devices-allocated"
MEMORY_RESIZE = "topogpu.io/gpu-memory-resize"
OF_GPUS = ("nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores")
"""The resources of GPUs that have totals of their own on a node."""

Amount = tuple[int, int, int]
"""Slots, MiB, cores."""
Held = Mapping[str, Amount]
"""Sums by GPU."""
NONE: Amount = (0, 0, 0)
T = TypeVar("T")


def recount(pods: Iterable[Mapping[str, Any]]) -> Held:
    """Returns the most that these pods may hold at once; each may be at the worst of its moments."""
    sums: dict[str, Amount] = defaultdict(lambda: NONE)
    for pod in pods:
        for uuid, amount in peak(moments(pod, counted(pod))).items():
            sums[uuid] = _plus(sums[uuid], amount)
    return sums


def holds(pod: Mapping[str, Any]) -> bool:
    """Returns whether the pod is bound and not over; one that is being deleted is not over."""
    status = pod.get("status", {})
    runs = any("running" in one.get("state", {}) for one in status.get("containerStatuses", []))
    ended = status.get("phase") in ("Succeeded", "Failed") and not runs
    return bool(pod["spec"].get("nodeName")) and not ended and DEVICES_ALLOCATED in annotations(pod)


def annotations(pod: Mapping[str, Any]) -> Mapping[str, str]:
    found: Mapping[str, str] = pod["metadata"].get("annotations", {})
    return found


def allocated(pod: Mapping[str, Any]) -> list[Held]:
    """Returns the shares by container, init containers first, as the annotation has them."""
    entries = annotations(pod)[DEVICES_ALLOCATED].split(";")[:-1]
    return [{share[0]: (1, int(share[2]), int(share[3])) for share in _shares(entry)} for entry in entries]


def counted(pod: Mapping[str, Any]) -> list[Held]:
    """Returns the shares by container; of a pod that is about to get more memory, with that."""
    held = allocated(pod)
    answer = json.loads(annotations(pod).get(MEMORY_RESIZE, "{}"))
    if answer.get("state") != "growing":
        return held
    names = [each["name"] for each in (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"])]
    wanted = dict(_wanted(entry) for entry in answer["wish"].partition("@")[0].split(","))
    return [
        {
            uuid: (slots, max(mib, wanted.get(name, wanted.get("", 0))), cores)
            for uuid, (slots, mib, cores) in shares.items()
        }
        for name, shares in zip(names, held, strict=True)
    ]


def _wanted(entry: str) -> tuple[str, int]:
    name, _, amount = entry.rpartition("=")
    unit = {"Gi": 1024, "Mi": 1}.get(amount.strip()[-2:], 0)
    return name.strip(), int(amount.strip()[:-2]) * unit if unit else int(amount)


def peak(states: Iterable[Collection[Held]]) -> Held:
    """Returns the largest of each amount over moments that each have some containers running."""
    largest: dict[str, Amount] = {}
    for running in states:
        for uuid in {uuid for container in running for uuid in container}:
            there = NONE
            for container in running:
                there = _plus(there, container.get(uuid, NONE))
            known = largest.get(uuid, NONE)
            largest[uuid] = (max(known[0], there[0]), max(known[1], there[1]), max(known[2], there[2]))
    return largest


def requested(pod: Mapping[str, Any]) -> Mapping[str, int]:
    """Returns the most of each resource in `OF_GPUS` that the pod's containers request together, without zeros."""
    containers = (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"])
    running = list(moments(pod, [each.get("resources", {}).get("limits", {}) for each in containers]))
    most = {name: max(sum(int(each.get(name, 0)) for each in there) for there in running) for name in OF_GPUS}
    return {name: amount for name, amount in most.items() if amount}


def moments(pod: Mapping[str, Any], held: list[T]) -> Iterator[list[T]]:
    """Yields who runs together, while the init containers take their turns and at last."""
    inits = pod["spec"].get("initContainers", [])
    beside: list[T] = []
    for container, amount in zip(inits, held, strict=False):
        if container.get("restartPolicy") == "Always":
            beside.append(amount)
        else:
            yield [*beside, amount]
    yield [*beside, *held[len(inits) :]]


def _shares(entry: str) -> list[list[str]]:
    return [share.split(",") for share in entry.split(":") if share]


def _plus(one: Amount, other: Amount) -> Amount:
    return (one[0] + other[0], one[1] + other[1], one[2] + other[2])
