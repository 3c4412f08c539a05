"""The present use of GPUs by processes, from the metrics of the node daemons. No IO."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from proto.devices import DeviceUUID

_MEMORY = "hami_vgpu_memory_used_bytes"
_CORES = "hami_container_device_utilization_ratio"
_GPU_MEMORY = "hami_host_gpu_memory_used_bytes"
_GPU_CORES = "hami_host_gpu_utilization_ratio"
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{(.*)\} (\S+)")
_LABEL = re.compile(r'([a-zA-Z_]+)="((?:[^"\\]|\\.)*)"')
_LARGEST = 2.0**48
"""Bytes or percent; no GPU has so much."""
MOST_LINES = 50_000
"""Lines of one page that are read. A daemon writes a few hundred."""
LONGEST_LINE = 4096
"""A longer one is left out: its author is not trusted, and to find labels in it may take long."""


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


def read_page(text: str, own: Collection[DeviceUUID]) -> Readings:
    """Reads a page in Prometheus' text format, as far as it is about its node's `own` GPUs: any pod may claim to be a
    daemon. A line that cannot be read is left out.
    """
    gpus: dict[DeviceUUID, dict[str, float]] = {}
    pods: dict[tuple[str, DeviceUUID], dict[str, float]] = {}
    for line in text.splitlines()[:MOST_LINES]:
        if len(line) > LONGEST_LINE or not line.startswith((_MEMORY, _CORES, _GPU_MEMORY, _GPU_CORES)):
            continue
        found = _SAMPLE.fullmatch(line)
        value = None if found is None else _number(found[3])
        if found is None or value is None:
            continue
        labels = dict(_LABEL.findall(found[2]))
        uuid = DeviceUUID(labels.get("device_uuid", ""))
        if uuid not in own:
            continue
        if found[1] in (_MEMORY, _CORES):
            sums = pods.setdefault((f"{labels.get('namespace', '')}/{labels.get('pod', '')}", uuid), {})
        elif found[1] in (_GPU_MEMORY, _GPU_CORES):
            sums = gpus.setdefault(uuid, {})
        else:
            continue
        sums[found[1]] = sums.get(found[1], 0.0) + value
    return Readings(
        gpus={uuid: _used(sums.get(_GPU_MEMORY), sums.get(_GPU_CORES)) for uuid, sums in gpus.items()},
        pods={key: _used(sums.get(_MEMORY), sums.get(_CORES)) for key, sums in pods.items()},
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


def _used(memory: float | None, cores: float | None) -> Used:
    return Used(
        memory_mib=None if memory is None else round(memory / 2**20),
        cores_percent=None if cores is None else round(cores),
    )


def _number(text: str) -> float | None:
    """Returns None for what is no amount: NaN, less than nothing, or more than any GPU has."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number <= _LARGEST else None
