"""Measures `/filter` without HTTP: microseconds of CPU time until the answer is ready, and after it was given.

Run it with `python -m benchmarks.filter_core`. Clusters and requests are those of `benchmarks.filter`, without pauses.
On a busy machine the minimum is the time of the work itself. `--policy` is that of the cluster, for nodes and GPUs;
several take turns with each request.

With `--own-shapes` each pod has a shape of its own.
"""

import gc
import time
from collections.abc import Iterator, Sequence
from statistics import median

import click
import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.asks import ASKS, SHAPES, Ask, bodies
from benchmarks.cluster import node_json, pod_json
from proto.extender import decode_extender_args, encode_filter_result
from proto.kubernetes.objects import Node, Pod
from scheduler_ext.apiserver import trim_pod
from scheduler_ext.cluster.events import Applied, Listed, Wake, unperformed
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.policies import parse_gpu_policy, parse_node_policy
from scheduler_ext.requests import RequestSettings, read_request
from scheduler_ext.verbs.filter_decision import FilterAnswer, FilterDecision


@click.command(context_settings={"show_default": True})
@click.option("--nodes", default="100,1000,5000", help="Sizes of the cluster.")
@click.option("--pods", default=4, help="Running pods on each node.")
@click.option("--requests", default=300, help="Requests of each kind.")
@click.option("--policy", default="binpack/spread", help="Comma list of NODE/GPU policies.")
@click.option("--own-shapes", is_flag=True, help="Each pod has a shape of its own.")
def main(*, nodes: str, pods: int, requests: int, policy: str, own_shapes: bool) -> None:
    """Print a table of the time before and after the answer."""
    policies = policy.split(",")
    table = Table(
        "nodes", "pod", "policy", "first ms", "before the answer µs: min / p50 / p99", "after it µs: min / p50 / p99"
    )
    for size in (int(word) for word in nodes.split(",")):
        clusters = [loaded(size, pods, _requests(each)) for each in policies]
        ready = [(cluster, NodeIndex(cluster.ledger)) for cluster in clusters]
        for _, index in ready:
            index.look_ahead()
        gc.collect()
        gc.freeze()
        for ask in SHAPES if own_shapes else ASKS:
            turns = (_asked(cluster, index, ask, size, requests) for cluster, index in ready)
            for name, times in zip(policies, zip(*zip(*turns, strict=True), strict=True), strict=True):
                before, after = zip(*times[1:], strict=True)
                first = f"{times[0][0] * 1e3:.1f}"
                table.add_row(str(size), ask.name, name, first, _summary(before), _summary(after))
        gc.unfreeze()
    Console(width=120).print(table)


def _requests(policy: str) -> RequestSettings:
    node, _, gpu = policy.partition("/")
    return RequestSettings(node_policy=parse_node_policy(node), gpu_policy=parse_gpu_policy(gpu))


def loaded(nodes: int, pods: int, asked: RequestSettings) -> Cluster:
    cluster = Cluster(asked)
    cluster.step(
        Listed(Node, [msgspec.convert(node_json(number), Node) for number in range(nodes)]), 0.0, unperformed(Wake)
    )
    for node in range(nodes):
        for number in range(pods):
            pod = msgspec.convert(pod_json(node, number), Pod)
            trim_pod(pod, labelled=True)
            cluster.step(Applied(pod), 0.0, unperformed(Wake))
    return cluster


def _asked(cluster: Cluster, index: NodeIndex, ask: Ask, nodes: int, requests: int) -> Iterator[tuple[float, float]]:
    """Yields the seconds before and after the answer of each request."""
    for body in bodies(ask, nodes, requests + 1):
        began = time.thread_time()
        answer = _answer(cluster, index, body)
        encode_filter_result(answer.result)
        answered = time.thread_time()
        answer.notices()
        index.look_ahead()
        yield answered - began, time.thread_time() - answered


def _answer(cluster: Cluster, index: NodeIndex, body: bytes) -> FilterAnswer:
    args = decode_extender_args(body)
    wanted = read_request(args.pod, cluster.requests)
    assert wanted is not None
    return FilterDecision(index, cluster, 60.0).reserve(args.pod, wanted, args.node_names or (), 0.0)


def _summary(seconds: Sequence[float]) -> str:
    ranked = sorted(seconds)
    figures = ranked[0], median(ranked), ranked[int(len(ranked) * 0.99)]
    return " / ".join(f"{each * 1e6:.0f}" for each in figures)


if __name__ == "__main__":
    main()
