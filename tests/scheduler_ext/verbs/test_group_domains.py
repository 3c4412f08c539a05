"""Groups on the simulated NVL72 and two-rack clusters."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from proto.annotations.keys import NO_USE_GPU_UUID, NODE_CLIQUE, PREFERRED_TOPOLOGY, REQUIRED_TOPOLOGY
from proto.kubernetes.objects import Node, Pod
from scheduler_ext.cluster.gangs import MissingMember
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.domains.levels import LEVELS
from scheduler_ext.domains.plan import NoDomain
from scheduler_ext.requests import RequestSettings, read_request
from scheduler_ext.verbs.group_search import GroupDomains, MemberNodes
from simulation.machines.sets import RACK
from simulation.plan.machines import read_cluster
from tests.builders import container, pod


class Scene:
    """A cluster, and what a group would get there."""

    def __init__(self, machines: str) -> None:
        self.nodes: Sequence[Node] = read_cluster(machines).nodes
        self.names = [node.metadata.name for node in self.nodes]
        self.ledger = Ledger(RequestSettings())
        self.ledger.replace_nodes(self.nodes)
        self.index = NodeIndex(self.ledger)
        self.domains = GroupDomains(self.index, LEVELS)

    def fill(self, name: str, gpus: int = 1) -> None:
        """Another pod takes GPUs of the node."""
        other = member(f"other-on-{name}", gpus)
        choice = self.index.choose(other.request, [name])
        assert choice.node == name
        self.ledger.reserve(other.uid, other.pod, name, choice.shares, 1e9)

    def label(self, name: str, wanted: str) -> str:
        return next(node.metadata.labels[wanted] for node in self.nodes if node.metadata.name == name)

    def found(self, members: Sequence[MissingMember], placed: Sequence[str] = ()) -> Mapping[str, str]:
        found = self.domains.nodes_of(members, self.names, placed)
        assert isinstance(found, MemberNodes)
        return found.by_uid


def member(
    name: str, gpus: int, annotations: Mapping[str, str] | None = None, rank: int | None = None
) -> MissingMember:
    labels = {} if rank is None else {"batch.kubernetes.io/job-completion-index": str(rank)}
    made: Pod = pod(container(gpu=gpus), name=name, annotations=annotations, labels=labels)
    request = read_request(made, RequestSettings())
    assert request is not None
    return MissingMember(uid=request.uid, pod=made, request=request)


def group(size: int, gpus: int, annotations: Mapping[str, str] | None = None) -> list[MissingMember]:
    return [member(f"g-{number}", gpus, annotations, number) for number in range(size)]


def test_a_group_fills_the_smaller_of_two_cliques_that_hold_it() -> None:
    scene = Scene("2x:gb200-nvl72")
    for name in scene.names[:3]:
        scene.fill(name)
    found = scene.found(group(15, 4))
    assert {scene.label(node, NODE_CLIQUE) for node in found.values()} == {scene.label(scene.names[0], NODE_CLIQUE)}
    assert len(set(found.values())) == 15


def test_a_group_that_needs_one_clique_is_refused_with_what_the_largest_has() -> None:
    scene = Scene("2x:gb200-nvl72")
    for name in (*scene.names[:6], *scene.names[20:30]):
        scene.fill(name)
    refused = scene.domains.nodes_of(group(18, 4, {REQUIRED_TOPOLOGY: NODE_CLIQUE}), scene.names, ())
    assert str(refused) == "needs 18 nodes of one clique; the largest free clique has 12"
    spread = scene.found(group(18, 4, {PREFERRED_TOPOLOGY: NODE_CLIQUE}))
    assert sorted(Counter(scene.label(node, NODE_CLIQUE) for node in spread.values()).values()) == [6, 12]


def test_consecutive_ranks_share_a_node_and_then_a_rack() -> None:
    scene = Scene("hgxh100-two-racks")
    found = scene.found(group(12, 4)[::-1])
    nodes = [found[f"uid-g-{rank}"] for rank in range(12)]
    assert all(nodes[rank] == nodes[rank + 1] for rank in range(0, 12, 2))
    racks = [scene.label(node, RACK) for node in nodes]
    assert sum(one != other for one, other in pairwise(racks)) == 1


def test_a_leader_and_its_workers_are_in_one_clique_though_another_holds_the_workers_alone() -> None:
    scene = Scene("2x:gb200-nvl72")
    for name in scene.names[:2]:
        scene.fill(name, 4)
    workers = group(16, 4, {REQUIRED_TOPOLOGY: NODE_CLIQUE})
    leader = member("leader", 1, {REQUIRED_TOPOLOGY: NODE_CLIQUE})
    found = scene.found([leader, *workers])
    assert {scene.label(node, NODE_CLIQUE) for node in found.values()} == {scene.label(scene.names[-1], NODE_CLIQUE)}
    assert Counter(found.values())[found["uid-leader"]] == 1


def test_members_that_have_a_node_keep_the_others_in_their_clique() -> None:
    scene = Scene("2x:gb200-nvl72")
    required = group(2, 4, {REQUIRED_TOPOLOGY: NODE_CLIQUE})
    found = scene.found(required, [scene.names[20]])
    assert {scene.label(node, NODE_CLIQUE) for node in found.values()} == {scene.label(scene.names[20], NODE_CLIQUE)}
    for name in scene.names[19:]:
        scene.fill(name)
    assert isinstance(scene.domains.nodes_of(required, scene.names, [scene.names[20]]), NoDomain)


def test_a_machine_of_which_one_gpu_left_the_fabric_is_out_for_groups_that_need_the_clique() -> None:
    scene = Scene("gb200-nvl72")
    del scene.nodes[0].metadata.labels[NODE_CLIQUE]
    scene.ledger.apply_node(scene.nodes[0])
    refused = scene.domains.nodes_of(group(18, 4, {REQUIRED_TOPOLOGY: NODE_CLIQUE}), scene.names, ())
    assert str(refused) == "needs 18 nodes of one clique; the largest free clique has 17"


@pytest.mark.parametrize("machines", ["4x:hgx-h100", "4x:dgx-a100"])
def test_without_domains_the_policies_decide_where_a_group_goes(machines: str) -> None:
    scene = Scene(machines)
    assert scene.domains.nodes_of(group(2, 8), scene.names, ()) is None


def test_a_group_that_no_nodes_hold_together_is_left_to_the_policies_words() -> None:
    scene = Scene("gb200-nvl72")
    assert scene.domains.nodes_of(group(19, 4), scene.names, ()) is None


def test_every_node_counts_as_many_members_as_it_takes() -> None:
    scene = Scene("hgxh100-two-racks")
    asked = member("g", 3).request
    assert [room.members for room in scene.index.rooms(asked, scene.names)] == [2] * 8
    scene.fill(scene.names[0], 3)
    rooms = {room.node: room.members for room in scene.index.rooms(asked, scene.names)}
    assert rooms[scene.names[0]] == 1
    beside = {scene.names[1]: [replace(asked, uid="x")]}
    assert {room.node: room.members for room in scene.index.rooms(asked, scene.names, beside)}[scene.names[1]] == 1


def test_a_clique_has_to_hold_all_members_of_a_large_group() -> None:
    scene = Scene("3x:gb200-nvl72")
    quarters = [member(f"g-{number}", 1, {REQUIRED_TOPOLOGY: NODE_CLIQUE}, number) for number in range(72)]
    assert len(set(scene.found(quarters).values())) == 18
    refused = scene.domains.nodes_of([*quarters, member("g-72", 1, {REQUIRED_TOPOLOGY: NODE_CLIQUE})], scene.names, ())
    assert str(refused) == "needs room for 73 in one clique; the largest free clique has room for 72"


def test_a_group_of_many_kinds_costs_no_more_than_one_of_few() -> None:
    scene = Scene("8x:gb200-nvl72-tray")
    kinds = [
        MissingMember(uid=f"uid-{n}", pod=each.pod, request=replace(each.request, uid=f"uid-{n}"))
        for n in range(40)
        for each in [member(f"g-{n}", 4, {REQUIRED_TOPOLOGY: NODE_CLIQUE}, 0)]
    ]
    different = [
        replace(each, request=replace(each.request, needs=(replace(need, priority=n),)))
        for n, each in enumerate(kinds)
        if (need := each.request.needs[0]) is not None
    ]
    refused = scene.domains.nodes_of(different, scene.names, ())
    assert str(refused) == "needs 40 nodes of one clique; the largest free clique has 8"


def test_pods_that_refuse_a_gpu_by_its_uuid_are_counted_without_it() -> None:
    scene = Scene("gb200-nvl72")
    gpu = scene.ledger.nodes.usages()[scene.names[0]].gpus[0].device.uuid
    asked = member("g", 1, {NO_USE_GPU_UUID: gpu}).request
    rooms = {room.node: room.members for room in scene.index.rooms(asked, scene.names)}
    assert (rooms[scene.names[0]], rooms[scene.names[1]]) == (3, 4)


def test_rooms_are_counted_in_steps_that_end() -> None:
    scene = Scene("hgxh100-two-racks")
    asked = member("g", 1).request
    assert len(list(scene.index.prepare_rooms(asked, scene.names))) <= 1
    assert [room.members for room in scene.index.rooms(asked, scene.names)] == [8] * 8
