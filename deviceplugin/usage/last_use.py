"""Remembers when each container was last seen to compute on each of its GPUs."""

from collections.abc import Iterable
from dataclasses import replace

from deviceplugin.usage.used import GpuSample, Usage, VgpuUsage
from proto.daemon_usage import ContainerUse, GpuUse, NodeUse
from proto.devices import DeviceUUID

_MIB = 1 << 20
_Key = tuple[str, str, DeviceUUID]
"""UID of the pod, name of the container, GPU."""


class LastUse:
    """`see` takes each reading of the driver, also those made for others. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._at: dict[_Key, float] = {}

    def see(self, usage: Usage, now: float, *, wall: float) -> None:
        """Takes one reading. `wall` is Unix time, in which HAMi-core writes when a kernel was launched."""
        self._at = {_key(row): self._used_at(row, now, wall) for row in usage.vgpus}

    def _used_at(self, row: VgpuUsage, now: float, wall: float) -> float:
        before = self._at.get(_key(row), now)
        if row.peak_percent:
            return now
        launched = row.last_kernel_unix_seconds
        # HAMi-core writes 0 before the first kernel.
        return max(before, min(now - (wall - launched), now)) if launched else before

    def unused_seconds(self, row: VgpuUsage, now: float) -> int | None:
        """Returns None where nothing shows whether it computes."""
        if row.peak_percent is None and row.last_kernel_unix_seconds is None:
            return None
        return max(0, round(now - self._at.get(_key(row), now)))


def node_use(node: str, samples: Iterable[GpuSample], usage: Usage, last: LastUse, now: float, *, most: int) -> NodeUse:
    """Returns what the daemon serves; at most so many rows of containers."""
    return NodeUse(
        node=node,
        gpus={gpu.uuid: GpuUse(memory=_mib(gpu.memory_used_bytes), busy=gpu.busy_percent) for gpu in samples},
        containers=tuple(
            ContainerUse(
                pod=f"{row.namespace}/{row.pod}",
                container=row.container,
                gpu=row.uuid,
                memory=_mib(row.memory_used_bytes),
                busy=row.busy_percent,
                unused=last.unused_seconds(row, now),
            )
            for row in usage.vgpus[:most]
        ),
    )


def with_sole_holders(usage: Usage, samples: Iterable[GpuSample]) -> Usage:
    """Returns the usage in which a container that alone holds a GPU has the GPU's own activity, where the driver
    reports none of its processes.
    """
    busy = {gpu.uuid: gpu.busy_percent for gpu in samples}
    holders: dict[DeviceUUID, int] = {}
    for row in usage.vgpus:
        holders[row.uuid] = holders.get(row.uuid, 0) + 1
    return replace(
        usage,
        vgpus=tuple(
            replace(row, busy_percent=busy.get(row.uuid), peak_percent=busy.get(row.uuid))
            if holders[row.uuid] == 1 and row.busy_percent is None
            else row
            for row in usage.vgpus
        ),
    )


def _key(row: VgpuUsage) -> _Key:
    return row.pod_uid, row.container, row.uuid


def _mib(size: int | None) -> int | None:
    return None if size is None else round(size / _MIB)
