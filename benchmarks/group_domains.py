"""Measures `/filter` for a group of pods without HTTP: milliseconds of CPU time in a cluster of racks.

Run it with `python -m benchmarks.group_domains`. The first question about a group decides for all of its pods. Nodes of
8 GPUs with shares of other pods stand in racks of 16 and blocks of 16 racks; each pod requests 4 whole GPUs.
A rack does not hold 64 of them: then the answer is a refusal.
"""

import gc
import time
from collections.abc import Mapping, Sequence
from statistics import median

import click
import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.cluster import node_json, node_name, pod_json
from proto.annotations.keys import PREFERRED_TOPOLOGY, REQUIRED_TOPOLOGY
from proto.kubernetes.objects import (
    Container,
    GangPolicy,
    GroupSchedulingPolicy,
    Node,
    ObjectMeta,
    Pod,
    PodGroup,
    PodGroupSpec,
    PodSpec,
    Resources,
    SchedulingGroup,
)
from scheduler_ext.apiserver import trim_pod
from scheduler_ext.cluster.events import Applied, Listed, Removed, Wake, unperformed
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.requests import read_request
from scheduler_ext.verbs.filter_decision import FilterDecision

BLOCK, RACK = "cloud.provider.com/topology-block", "cloud.provider.com/topology-rack"
IN_A_RACK, IN_A_BLOCK = 16, 256
GPUS = "4"
MODES: Mapping[str, Mapping[str, str]] = {
    "nothing": {},
    "required: rack": {REQUIRED_TOPOLOGY: RACK},
    "preferred: rack": {PREFERRED_TOPOLOGY: RACK},
}


@click.command(context_settings={"show_default": True})
@click.option("--nodes", default="1000,5000", help="Sizes of the cluster.")
@click.option("--pods", default=2, help="Running pods on each node.")
@click.option("--sizes", default="8,16,64", help="Pods of a group.")
@click.option("--groups", default=15, help="Groups of each kind.")
def main(*, nodes: str, pods: int, sizes: str, groups: int) -> None:
    """Print a table of the first question about a group, which decides for all, and of the others."""
    table = Table(
        "nodes", "labels", "pods of the group", "the group wants", "first question ms: p50 / max", "others ms: p50"
    )
    for size in map(int, nodes.split(",")):
        for labels in (False, True):
            cluster = loaded(size, pods, labels=labels)
            index = NodeIndex(cluster.ledger)
            names = [node_name(number) for number in range(size)]
            gc.collect()
            gc.freeze()
            for members in map(int, sizes.split(",")):
                for mode, annotations in MODES.items() if labels else [("nothing", {})]:
                    asked = [_asked(cluster, index, names, members, annotations) for _ in range(groups)]
                    first = sorted(each[0] for each in asked)
                    others = median(seconds for each in asked for seconds in each[1:]) if asked[0][1:] else 0.0
                    shown = f"{median(first) * 1e3:.1f} / {first[-1] * 1e3:.1f}", f"{others * 1e3:.2f}"
                    table.add_row(str(size), "racks" if labels else "none", str(members), mode, *shown)
            gc.unfreeze()
    Console(width=120).print(table)


def loaded(nodes: int, pods: int, *, labels: bool) -> Cluster:
    cluster, made = Cluster(), []
    for number in range(nodes):
        node = msgspec.convert(node_json(number), Node)
        if labels:
            node.metadata.labels = {BLOCK: f"b{number // IN_A_BLOCK}", RACK: f"r{number % IN_A_BLOCK // IN_A_RACK}"}
        made.append(node)
    cluster.step(Listed(Node, made), 0.0, unperformed(Wake))
    for at in range(nodes):
        for number in range(pods):
            pod = msgspec.convert(pod_json(at, number), Pod)
            trim_pod(pod, labelled=True)
            cluster.step(Applied(pod), 0.0, unperformed(Wake))
    return cluster


def _asked(
    cluster: Cluster, index: NodeIndex, names: Sequence[str], members: int, annotations: Mapping[str, str]
) -> list[float]:
    """Returns the seconds of each answer about a group, which is gone afterwards."""
    policy = GroupSchedulingPolicy(gang=GangPolicy(min_count=members))
    group = PodGroup(metadata=ObjectMeta(name="g", namespace="default"), spec=PodGroupSpec(scheduling_policy=policy))
    pods = [_pod(number, annotations) for number in range(members)]
    for each in (group, *pods):
        cluster.step(Applied(each), 0.0, unperformed(Wake))
    decision, seconds = FilterDecision(index, cluster, 60.0), []
    for pod in pods:
        request = read_request(pod, cluster.requests)
        assert request is not None
        began = time.thread_time()
        decision.reserve(pod, request, names, 0.0)
        seconds.append(time.thread_time() - began)
    for pod in pods:
        cluster.step(Removed(pod), 0.0, unperformed(Wake))
    return seconds


def _pod(number: int, annotations: Mapping[str, str]) -> Pod:
    limits: dict[str, str | int | float] = {"nvidia.com/gpu": GPUS}
    name = f"g-{number}"
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=name, annotations=dict(annotations)),
        spec=PodSpec(
            scheduling_group=SchedulingGroup(pod_group_name="g"),
            containers=[Container(name="c", resources=Resources(limits=limits))],
        ),
    )


if __name__ == "__main__":
    main()
