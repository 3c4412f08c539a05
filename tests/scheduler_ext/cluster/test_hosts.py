"""What is left of a node's CPU and memory is its allocatable less what its pods and reservations ask for."""

from hypothesis import given
from hypothesis import strategies as st

from proto.kubernetes.objects import Container, Node, ObjectMeta, Pod, Resources
from proto.kubernetes.requests import NO_HOST, HostAmount, host_requested
from scheduler_ext.cluster.ledger import Ledger
from tests.builders import node, pod

UIDS = ("p", "q", "r")
NODES = ("a", "b")


def with_room(name: str) -> Node:
    return node(name, cpu="8", memory="16Gi")


def asking(cpu: str, memory: str = "0", restart_policy: str = "") -> Container:
    return Container(
        name="c", restart_policy=restart_policy, resources=Resources(requests={"cpu": cpu, "memory": memory})
    )


def on_a(*asking: Container) -> Pod:
    return pod(*asking, name="p", node_name="a", phase="Running")


def ledger() -> Ledger:
    made = Ledger()
    made.replace_nodes(map(with_room, NODES))
    return made


def test_a_pod_asks_for_its_largest_moment() -> None:
    inits = (asking("3"), asking("500m", restart_policy="Always"), asking("1"))
    assert host_requested(pod(asking("1", "1Gi"), asking("750m", "1"), inits=inits)) == HostAmount(3000, 1025)
    assert host_requested(pod(asking("2"), asking("1"), inits=inits)) == HostAmount(3500, 0)


def test_what_is_asked_for_the_pod_as_a_whole_counts_in_place_of_its_containers() -> None:
    whole = pod(asking("1", "1Gi"))
    whole.spec.resources = Resources(requests={"cpu": "4"})
    assert host_requested(whole) == HostAmount(4000, 1024)


def test_a_pod_that_ended_asks_for_nothing_and_so_does_an_amount_that_nobody_can_read() -> None:
    assert host_requested(pod(asking("1"), phase="Succeeded")) == NO_HOST
    assert host_requested(pod(asking("many"))) == NO_HOST


def test_a_pod_without_gpus_takes_cpu() -> None:
    made = ledger()
    made.apply_pod(on_a(asking("3", "4Gi")))
    assert made.hosts.left("a") == HostAmount(5000, 12 * 1024)
    assert made.hosts.left("a", without=made.records.get("uid-p")) == HostAmount(8000, 16 * 1024)


def test_nothing_is_known_of_a_node_that_does_not_say_what_it_has() -> None:
    made = Ledger()
    made.apply_node(Node(metadata=ObjectMeta(name="a")))
    assert made.hosts.left("a") is None


def test_a_reservation_counts_on_each_of_its_nodes_until_one_is_chosen() -> None:
    made = ledger()
    made.reserve("uid-p", pod(asking("1")), "a", ((),), 60.0, others={"b": ((),)})
    assert [made.hosts.left(name) for name in NODES] == [HostAmount(7000, 16384)] * 2
    made.hosts.take_changed()
    made.choose("uid-p", "b")
    assert [made.hosts.left(name) for name in NODES] == [HostAmount(8000, 16384), HostAmount(7000, 16384)]
    assert made.hosts.take_changed() >= {"a"}


def test_what_says_the_same_again_changes_no_node() -> None:
    made = ledger()
    made.apply_pod(on_a(asking("1")))
    made.hosts.take_changed()
    made.apply_node(with_room("a"))
    made.apply_pod(on_a(asking("1")))
    assert made.hosts.take_changed() == set()


@given(st.lists(st.tuples(st.sampled_from(UIDS), st.sampled_from(["", *NODES]), st.integers(0, 4)), max_size=20))
def test_sums_are_those_of_the_pods_as_they_were_seen_last(seen: list[tuple[str, str, int]]) -> None:
    made, last = ledger(), dict[str, tuple[str, int]]()
    for name, where, cpu in seen:
        made.apply_pod(pod(asking(str(cpu)), name=name, node_name=where, phase="Running"))
        last[name] = where, cpu
    for name in NODES:
        asked = sum(cpu for where, cpu in last.values() if where == name)
        assert made.hosts.left(name) == HostAmount(8000 - 1000 * asked, 16384)
