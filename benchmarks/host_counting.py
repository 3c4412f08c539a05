"""Measures what it costs to count each node's CPU and memory and to learn which pods come: memory, and CPU per event.

Run it with `python -m benchmarks.host_counting`. The ledger takes the same events in the same process. The table shows
its whole time per event beside that of counting and learning alone.
"""

import gc
import time
import tracemalloc
from collections.abc import Callable, Sequence

import click
import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.cluster import node_json, pod_json
from proto.kubernetes.objects import Node, Pod
from scheduler_ext.apiserver import trim_pod
from scheduler_ext.cluster.hosts import Hosts
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.workload import Classes
from scheduler_ext.requests import RequestSettings, pod_key, read_request


@click.command(context_settings={"show_default": True})
@click.option("--nodes", default=5000, help="Size of the cluster.")
@click.option("--pods", default=32, help="Running pods on each node.")
def main(*, nodes: int, pods: int) -> None:
    """Print a table."""
    listed = [msgspec.convert(node_json(number), Node) for number in range(nodes)]
    running = [_pod(node, number) for node in range(nodes) for number in range(pods)]
    ledger, hosts, classes, settings = Ledger(), Hosts(), Classes(), RequestSettings()
    ledger.replace_nodes(listed)
    for node in listed:
        hosts.tell(node)

    def learn(pod: Pod) -> None:
        """As the ledger does: only a pod's first event is read."""
        if not classes.has_seen(pod_key(pod)) and (request := read_request(pod, settings)) is not None:
            classes.see(pod_key(pod), request)

    table = Table("what", "memory MiB", "first event of a pod µs", "later event µs")
    steps: dict[str, Callable[[Pod], None]] = {
        "CPU and memory of nodes": lambda pod: hosts.bind(pod_key(pod), pod),
        "which pods come": learn,
        "the whole ledger": ledger.apply_pod,
    }
    for what, step in steps.items():
        table.add_row(what, *_cost(step, running))
    Console(width=100).print(table)


def _pod(node: int, number: int) -> Pod:
    document = pod_json(node, number)
    pod = msgspec.convert(document, Pod)
    pod.spec.containers[0].resources.requests |= {"cpu": f"{500 * (1 + number % 4)}m", "memory": "4Gi"}
    trim_pod(pod, labelled=True)
    return pod


def _cost(step: Callable[[Pod], None], pods: Sequence[Pod]) -> tuple[str, str, str]:
    """Memory is measured with the first half of the pods and time with the other: tracing takes time."""
    half = len(pods) // 2
    gc.collect()
    tracemalloc.start()
    for pod in pods[:half]:
        step(pod)
    mib = 2 * tracemalloc.get_traced_memory()[0] / 2**20
    tracemalloc.stop()
    return f"{mib:.0f}", f"{_microseconds(step, pods[half:]):.1f}", f"{_microseconds(step, pods[half:]):.1f}"


def _microseconds(step: Callable[[Pod], None], pods: Sequence[Pod]) -> float:
    gc.collect()
    gc.disable()
    began = time.process_time()
    for pod in pods:
        step(pod)
    took = time.process_time() - began
    gc.enable()
    return took / len(pods) * 1e6


if __name__ == "__main__":
    main()
