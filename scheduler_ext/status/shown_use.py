"""The use of a node's GPUs as the page shows it. Readings that differ little count as one, so that few are sent."""

from collections.abc import Mapping

from msgspec import Struct

from proto.daemon_usage import ContainerUse, NodeUse
from proto.devices import DeviceUUID

IN_USE_SECONDS = 300.0
"""A container that has computed within this time uses its GPU."""
_PERCENT = 5
"""Points of activity that are no news."""
_MEMORY_PART = 0.05
_MEMORY_MIB = 64
_SECONDS = 90

_Amounts = tuple[int | None, int | None]
"""MiB of memory, and percent of the time in which it computes; None where that is not known."""


class ShownUse(Struct, frozen=True):
    """`gpus` has the use by index. A row of `containers` has pod, container, index of the GPU, its use, and the time in
    seconds since 1970 since when it does not use the GPU: 0 while it does, None where nothing shows it.
    """

    gpus: dict[int, _Amounts]
    containers: tuple[tuple[str, str, int, int | None, int | None, int | None], ...]


def shown_use(use: NodeUse, indices: Mapping[DeviceUUID, int], at: float) -> ShownUse:
    """Returns what is shown of a reading at this time, as far as it is about GPUs of the node, those in `indices`."""
    return ShownUse(
        gpus={indices[uuid]: (gpu.memory, gpu.busy) for uuid, gpu in use.gpus.items() if uuid in indices},
        containers=tuple(
            (each.pod, each.container, indices[each.gpu], each.memory, each.busy, _since(each, at))
            for each in use.containers
            if each.gpu in indices
        ),
    )


def _since(each: ContainerUse, at: float) -> int | None:
    if each.unused is None:
        return None
    return 0 if each.unused < IN_USE_SECONDS else round(at - each.unused)


def is_news(before: ShownUse, after: ShownUse) -> bool:
    """Returns whether a reader needs the later one."""
    if before.gpus.keys() != after.gpus.keys() or len(before.containers) != len(after.containers):
        return True
    if any(_differ(before.gpus[index], amounts) for index, amounts in after.gpus.items()):
        return True
    return any(
        one[:3] != other[:3] or _differ(one[3:5], other[3:5]) or _moved(one[5], other[5])
        for one, other in zip(before.containers, after.containers, strict=True)
    )


def _differ(one: _Amounts, other: _Amounts) -> bool:
    (memory, busy), (memory_now, busy_now) = one, other
    if memory is None or memory_now is None or busy is None or busy_now is None:
        return one != other
    grown = abs(memory_now - memory)
    return grown > max(_MEMORY_PART * memory, _MEMORY_MIB) or abs(busy_now - busy) > _PERCENT


def _moved(since: int | None, since_now: int | None) -> bool:
    if not since or not since_now:
        return since != since_now
    return abs(since_now - since) > _SECONDS
