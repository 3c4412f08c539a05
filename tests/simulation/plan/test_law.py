"""What a plan decides is what the running extender decides."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from proto.annotations.keys import DEVICES_ALLOCATED
from proto.annotations.pod_devices import encode_pod_devices
from proto.kubernetes.objects import Node
from scheduler_ext.policies import parse_gpu_policy, parse_node_policy
from scheduler_ext.requests import RequestSettings
from simulation.plan.engine import Engine, Placed
from simulation.plan.machines import read_cluster
from simulation.plan.objects import WholePod, arrival_of
from simulation.words import HostPolicy
from simulation.workload import pod_object, workload
from tests.polling import until
from tests.scheduler_ext.rig import Rig, running

CLUSTER = "1x:dgx-a100,1x:4x-a100,2x:8x-rtx4090,1x:1x-t4"
PODS = 60


@pytest.mark.parametrize("policy", ["binpack/spread", "spread/topology-aware", "fgd/fgd"])
async def test_pods_one_by_one_go_where_the_running_extender_puts_them(policy: str) -> None:
    node, _, gpu = policy.partition("/")
    settings = replace(RequestSettings(), node_policy=parse_node_policy(node), gpu_policy=parse_gpu_policy(gpu))
    nodes = read_cluster(CLUSTER).nodes
    names = [each.metadata.name for each in nodes]
    engine = Engine(read_cluster(CLUSTER), settings, HostPolicy.LEAST_ALLOCATED)
    placed = 0
    async with running(*map(_node, nodes), requests=settings) as rig:
        for number, (name, shape) in enumerate(workload(PODS)):
            document = pod_object(name, shape)
            planned = engine.place(arrival_of(msgspec.convert(document, WholePod)), f"uid-{number}", float(number))
            expected = (planned.node, encode_pod_devices(planned.shares)) if isinstance(planned, Placed) else None
            assert await _decided(rig, document, names) == expected, name
            placed += expected is not None
            await _seen(rig, engine, names[0], number)
    assert 10 < placed < PODS


async def _decided(rig: Rig, document: dict[str, Any], names: list[str]) -> tuple[str, str] | None:
    """Node and GPUs by `/filter` and `/bind` of the real extender. The pod runs then, or is gone."""
    pod = rig.server.create(document)
    name = pod["metadata"]["name"]
    answer = await rig.filter(pod, *names)
    if not answer["NodeNames"]:
        rig.server.delete("pods", name, namespace="default")
        return None
    (node,) = answer["NodeNames"]
    assert not await rig.bind(pod, node)
    rig.server.patch("pods", name, {"status": {"phase": "Running"}}, namespace="default", subresource="status")
    return node, rig.pod(name)["metadata"]["annotations"][DEVICES_ALLOCATED]


async def _seen(rig: Rig, engine: Engine, node: str, number: int) -> None:
    """Wait until the extender has seen all that was written so far, by one more pod that takes a bit of CPU."""
    mark = _mark(node, number)
    rig.server.create(mark)
    engine.put_back(msgspec.convert(mark, WholePod), 0.0)
    left = engine.state.ledger.hosts.left(node)
    assert left is not None

    async def shown() -> bool:
        _, text = await rig.status("/debug/snapshot")
        return bool(json.loads(text)["hosts"][node] == list(left))

    await until(shown)


def _mark(node: str, number: int) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1m"}}}
    metadata = {"name": f"mark-{number}", "namespace": "default", "uid": f"mark-{number}"}
    spec = {"nodeName": node, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Running"}}


def _node(node: Node) -> dict[str, Any]:
    document = json.loads(msgspec.json.encode(node))
    return {"apiVersion": "v1", "kind": "Node", **document}
