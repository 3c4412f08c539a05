"""Reads the metrics of node daemons."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from kubectl_topogpu.cluster import Cluster
from kubectl_topogpu.kubectl import Unreadable
from kubectl_topogpu.sources import Source
from kubectl_topogpu.used import Readings, joined, read_page

_AT_ONCE = 8


def readings(source: Source, cluster: Cluster, nodes: Sequence[str]) -> Readings:
    """Reads the daemons of these nodes. A daemon that cannot be read is named in `missing`."""

    def read(node: str) -> Readings:
        daemons = cluster.daemons.get(node, ())
        if len(daemons) != 1:
            several = f"several pods have the node daemon's labels: {', '.join(map('/'.join, daemons))}"
            return Readings(missing={node: several if daemons else "no pod of the node daemon runs there"})
        try:
            return read_page(source.metrics(*daemons[0]).decode(errors="replace"))
        except Unreadable as error:
            return Readings(missing={node: str(error)})

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return joined(threads.map(read, nodes))
