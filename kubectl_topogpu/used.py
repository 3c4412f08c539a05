"""The present use of GPUs by processes, from the node daemons. No IO."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from proto.daemon_usage import decode_node_use
from proto.devices import DeviceUUID

_LARGEST = 2**48
"""MiB or percent; no GPU has so much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """MiB of memory and percent of the GPU's time; None where the daemon does not know it."""

    memory_mib: int | None = None
    cores_percent: int | None = None


NOT_KNOWN = Used()


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """The use of each GPU, and of each GPU by each pod. `missing` is the reason why a node's daemon was not read."""

    gpus: Mapping[DeviceUUID, Used] = field(default_factory=dict)
    pods: Mapping[tuple[str, DeviceUUID], Used] = field(default_factory=dict)
    """The use by `namespace/name` and GPU."""
    missing: Mapping[str, str] = field(default_factory=dict)


def read_use(content: bytes, node: str, own: Collection[DeviceUUID]) -> Readings:
    """Reads what a daemon serves, as far as it is about its node's `own` GPUs: any pod may claim to be a daemon. Raises
    UsageUnreadable.
    """
    use = decode_node_use(content, node)
    pods: dict[tuple[str, DeviceUUID], Used] = {}
    for each in use.containers:
        if each.gpu in own:
            before = pods.get((each.pod, each.gpu), NOT_KNOWN)
            pods[each.pod, each.gpu] = Used(
                memory_mib=_sum(before.memory_mib, each.memory), cores_percent=_sum(before.cores_percent, each.busy)
            )
    return Readings(
        gpus={
            uuid: Used(memory_mib=_sum(None, gpu.memory), cores_percent=_sum(None, gpu.busy))
            for uuid, gpu in use.gpus.items()
            if uuid in own
        },
        pods=pods,
    )


def joined(pages: Iterable[Readings]) -> Readings:
    gpus: dict[DeviceUUID, Used] = {}
    pods: dict[tuple[str, DeviceUUID], Used] = {}
    missing: dict[str, str] = {}
    for page in pages:
        gpus |= page.gpus
        pods |= page.pods
        missing |= page.missing
    return Readings(gpus=gpus, pods=pods, missing=missing)


def _sum(known: int | None, more: int | None) -> int | None:
    """Returns the sum of the amounts that are known. What is less than nothing, or more than any GPU has, is none."""
    return known if more is None or not 0 <= more <= _LARGEST else (known or 0) + more
