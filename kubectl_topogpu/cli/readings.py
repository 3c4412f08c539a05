"""Reads the metrics of node daemons."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from kubectl_topogpu.cluster import GpuCluster, GpuNode
from kubectl_topogpu.kubectl import ObjectsUnreadable
from kubectl_topogpu.sources import Source
from kubectl_topogpu.used import Readings, joined, read_page

_AT_ONCE = 8
MOST_SECONDS = 60
"""No daemon is read later: where a network is down, each takes as long as it may."""


def readings(source: Source, cluster: GpuCluster, nodes: Sequence[GpuNode]) -> Readings:
    """Reads the daemons of these nodes. A daemon that cannot be read is named in `missing`."""
    ends = time.monotonic() + MOST_SECONDS

    def read(node: GpuNode) -> Readings:
        try:
            return _read(source, cluster, node, ends)
        except ObjectsUnreadable as error:
            return Readings(missing={node.name: str(error)})

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return joined(threads.map(read, nodes))


def _read(source: Source, cluster: GpuCluster, node: GpuNode, ends: float) -> Readings:
    """Raises Unreadable."""
    daemons = cluster.daemons.get(node.name, ())
    if not daemons:
        raise ObjectsUnreadable("no pod of the node daemon runs there")
    if len(daemons) > 1:
        raise ObjectsUnreadable(f"several pods have the node daemon's labels: {', '.join(map('/'.join, daemons))}")
    if time.monotonic() > ends:
        raise ObjectsUnreadable(f"its daemon was not asked, because others took more than {MOST_SECONDS} s")
    page = source.metrics(*daemons[0]).decode(errors="replace")
    found = read_page(page, {gpu.device.uuid for gpu in node.gpus})
    if node.gpus and not found.gpus:
        raise ObjectsUnreadable(f"the metrics of pod {'/'.join(daemons[0])} name none of its GPUs")
    return found
