"""Recorded clusters: a snapshot of the extender, and lists of objects."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from proto.annotations.keys import RESOURCE_COUNT, RESOURCE_MEMORY
from scheduler_ext.cli.state import StateError
from scheduler_ext.debugging import encode_snapshot
from scheduler_ext.requests import RequestSettings
from simulation.plan.engine import Engine, Placed
from simulation.plan.machines import node_of, read_cluster
from simulation.plan.objects import Described, WholePod, arrival_of
from simulation.plan.recorded import drain, from_snapshot, read_objects
from simulation.words import HostPolicy
from simulation.workload import pod_object, workload
from tests.scheduler_ext.mig_gpus import mig_device

SETTINGS = RequestSettings()
CLUSTER = read_cluster("1x:dgx-a100,1x:4x-a100,1x:cpu-only").beside(
    Described(nodes=(node_of("mig", [mig_device(0), mig_device(1)], {}, cpu_milli=64_000, memory_mib=65_536),))
)
QUOTA = {
    "metadata": {"name": "q", "namespace": "default"},
    "spec": {"hard": {f"limits.{RESOURCE_COUNT}": "30", f"limits.{RESOURCE_MEMORY}": "9000000"}},
}


def engine_of(cluster: Described) -> Engine:
    return Engine(cluster, SETTINGS, HostPolicy.LEAST_ALLOCATED)


def pod(name: str, **more: Any) -> dict[str, Any]:
    container = {"name": "c", "resources": {"limits": {RESOURCE_COUNT: "1", "cpu": "1"}}}
    metadata = {"name": name, "namespace": "default", "uid": name, **more.pop("metadata", {})}
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **more.pop("spec", {})}, **more}


def test_a_snapshot_read_back_is_the_same_snapshot_and_leads_to_the_same_decisions() -> None:
    listed = read_objects({"items": [{"kind": "ResourceQuota", **QUOTA}]}, "s", SETTINGS)[0]
    engine = engine_of(replace(CLUSTER, quotas=listed.quotas))
    shapes = [arrival_of(msgspec.convert(pod_object(name, shape), WholePod)) for name, shape in workload(40)]
    for number, arrival in enumerate(shapes[:20]):
        engine.place(arrival, f"first-{number}", 0.0)
    snapshot = engine.state.ledger.snapshot()
    recorded = from_snapshot(json.loads(encode_snapshot(snapshot)), "snapshot", SETTINGS)
    again = engine_of(recorded)
    read_back = again.state.ledger.snapshot()
    assert read_back.nodes == snapshot.nodes
    assert read_back.hosts == snapshot.hosts
    assert read_back.unregistered == snapshot.unregistered
    assert any(gpu.placements for usage in snapshot.nodes.values() for gpu in usage.gpus)
    for number, arrival in enumerate(shapes[20:]):
        there, here = engine.place(arrival, f"then-{number}", 1.0), again.place(arrival, f"then-{number}", 1.0)
        assert isinstance(there, Placed) == isinstance(here, Placed), arrival.name
        if isinstance(there, Placed):
            assert there == here, arrival.name


def test_a_snapshot_names_no_pods_that_could_be_moved() -> None:
    engine = engine_of(CLUSTER)
    engine.place(arrival_of(msgspec.convert(pod("a"), WholePod)), "a", 0.0)
    recorded = from_snapshot(json.loads(encode_snapshot(engine.state.ledger.snapshot())), "s", SETTINGS)
    (node,) = {each.spec.node_name for each in engine.pods()}
    with pytest.raises(StateError, match="a snapshot does not name pods"):
        drain(recorded, [node])


def test_a_snapshot_of_countless_containers_is_refused() -> None:
    document = json.loads(encode_snapshot(engine_of(CLUSTER).state.ledger.snapshot()))
    document["nodes"]["mig"]["gpus"][0]["replicas"] = 10**9
    with pytest.raises(StateError, match="s: node 'mig' has more than 100000 containers with GPUs"):
        from_snapshot(document, "s", SETTINGS)


@pytest.mark.parametrize("what", [{"kind": "Node", "metadata": {"name": "a"}}, pod("a")])
def test_an_object_that_is_listed_twice_is_refused(what: dict[str, Any]) -> None:
    with pytest.raises(StateError, match=r"s: items\[1\]: (Node|Pod) 'a' is listed twice"):
        read_objects({"items": [what, what]}, "s", SETTINGS)


def test_pods_that_wait_come_by_priority_and_age_and_others_are_left_alone() -> None:
    items = [
        {"kind": "Node", **json.loads(msgspec.json.encode(CLUSTER.nodes[0]))},
        pod("old", metadata={"creationTimestamp": "2030-01-01T00:00:00Z"}),
        pod("young", metadata={"creationTimestamp": "2030-01-02T00:00:00Z"}),
        pod("important", spec={"priority": 9}, metadata={"creationTimestamp": "2030-01-03T00:00:00Z"}),
        pod("gated", spec={"schedulingGates": [{"name": "g"}]}),
        pod("leaving", metadata={"deletionTimestamp": "2030-01-02T00:00:00Z"}),
        pod("ended", status={"phase": "Succeeded"}, spec={"nodeName": CLUSTER.nodes[0].metadata.name}),
        pod("there", spec={"nodeName": CLUSTER.nodes[0].metadata.name}, status={"phase": "Running"}),
        {"kind": "Event", "metadata": {"name": "e"}},
    ]
    cluster, waiting = read_objects({"items": items}, "state.json", SETTINGS)
    assert [each.name for each in waiting] == ["important", "old", "young"]
    assert [each.metadata.name for each in cluster.held] == ["there"]
    assert any(note.startswith("pod there: runs on node") for note in cluster.notes)


def test_pods_of_daemonsets_go_with_their_node_and_what_is_left_out_is_said() -> None:
    name = CLUSTER.nodes[0].metadata.name
    owner = {"ownerReferences": [{"kind": "DaemonSet", "controller": True}]}
    spread = {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}
    items = [
        {"kind": "Node", **json.loads(msgspec.json.encode(CLUSTER.nodes[0]))},
        pod("agent", metadata=owner, spec={"nodeName": name}, status={"phase": "Running"}),
        pod("work", spec={"nodeName": name, **spread}, status={"phase": "Running"}),
    ]
    cluster, _ = read_objects({"items": items}, "state.json", SETTINGS)
    rest, moved = drain(cluster, [name])
    assert [each.name for each in moved] == ["work"]
    assert rest.held == ()
    assert "not considered: topology spread constraints of 1 pods, such as work" in rest.notes


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "state.json: no list of objects"),
        ({"items": [{"metadata": {}}]}, "state.json: items[0]: has no kind"),
        ({"items": [{"kind": "Node", "metadata": 1}]}, "state.json: items[0]: Expected `object`, got `int`"),
    ],
)
def test_a_state_that_cannot_be_read_is_one_sentence(document: object, said: str) -> None:
    with pytest.raises(StateError) as error:
        read_objects(document, "state.json", SETTINGS)
    assert said in str(error.value)
