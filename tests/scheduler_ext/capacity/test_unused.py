from dataclasses import replace
from typing import Any

from proto.devices import Device
from proto.kubernetes.taints import CORDON
from scheduler_ext.capacity.unused import Unused, domain_rooms, unused
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage
from tests.scheduler_ext.gpus import GIB, device, usage


def gpu(number: int, **used: Any) -> GpuUsage:
    return GpuUsage(device(number), **used)


def test_free_memory_is_idle_unused_or_stranded() -> None:
    sick: Device = replace(device(5), healthy=False)
    node = usage(
        "n",
        [
            gpu(0),
            gpu(1, replicas=1, memory_mib=10 * GIB, cores=30),
            gpu(2, replicas=1, memory_mib=10 * GIB, cores=100),
            gpu(3, replicas=10, memory_mib=20 * GIB),
            gpu(4, replicas=1, memory_mib=40 * GIB),
            GpuUsage(sick),
            gpu(6),
        ],
    )
    cordoned: NodeUsage = replace(node, node=replace(node.node, cordoned=frozenset({device(6).uuid})))
    assert unused(cordoned) == Unused(
        gpus=7,
        memory_mib=280 * GIB,
        cores=700,
        idle_gpus=1,
        idle_memory_mib=40 * GIB,
        unused_memory_mib=30 * GIB,
        unused_cores=70,
        stranded_gpus=4,
        stranded_memory_mib=(30 + 20 + 40 + 40) * GIB,
        not_serving_gpus=2,
        held_memory_mib=80 * GIB,
        held_cores=130,
    )


def test_a_cordoned_node_is_not_free_as_a_whole_in_its_domain() -> None:
    rack = "topology.kubernetes.io/rack"
    nodes = [usage(name, [gpu(0), gpu(1)]) for name in ("a", "b")]
    a, b = (replace(each, node=replace(each.node, domains={rack: "r1"})) for each in nodes)
    (found,) = domain_rooms([a, replace(b, node=replace(b.node, taints=(CORDON,)))], [rack])
    assert (found.nodes, found.whole, found.gpus, found.free_gpus) == (2, 1, 4, 2)
