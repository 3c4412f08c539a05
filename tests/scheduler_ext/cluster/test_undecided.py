"""What is held though no annotation, or no pod any more, says so."""

import pytest

from proto.annotations import keys
from proto.annotations.outliving_pods import Outliving, encode_outliving
from proto.annotations.undecided_pods import encode_undecided
from proto.devices import DeviceShare, DeviceUUID
from proto.kubernetes.objects import Condition, ContainerState, ContainerStateTerminated, ContainerStatus, Node, Pod
from scheduler_ext.cluster.bound import OUTLIVING_SECONDS, outlives
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.decide.decision import decide
from tests.builders import container, node, pod
from tests.scheduler_ext.cluster.ledgers import bound, ledger, problem_of, used
from tests.scheduler_ext.gpus import device, request


def past(name: str, gpus: int, phase: str = "Pending") -> Pod:
    return pod(container(gpu=gpus), name=name, node_name="n", phase=phase)


def test_the_ids_of_a_pod_past_the_scheduler_count_until_it_ends() -> None:
    made = Ledger()
    made.replace_nodes([node("n", [device(number, replicas=2) for number in range(2)])])
    made.apply_pod(past("a", 1))
    assert used(made) == [(1, 0, 0), (0, 0, 0)]
    made.apply_pod(past("b", 2))
    assert used(made) == [(2, 0, 0), (1, 0, 0)]
    wanted = pod(container(gpu=2), name="w")
    assert decide(request(wanted), made.snapshot(), ["n"]).node is None
    made.apply_pod(past("a", 1, phase="Failed"))
    assert used(made) == [(1, 0, 0), (1, 0, 0)]
    assert decide(request(wanted), made.snapshot(), ["n"]).node == "n"
    made.remove_pod("uid-b")
    assert used(made) == [(0, 0, 0), (0, 0, 0)]


def test_more_ids_than_there_are_fill_the_node_and_no_more() -> None:
    made = Ledger()
    made.replace_nodes([node("n", [device(number, replicas=1) for number in range(2)])])
    made.apply_pod(past("a", 100_000_000))
    assert used(made) == [(1, 0, 0), (1, 0, 0)]


def test_one_that_runs_all_the_same_may_use_any_gpu_of_the_node() -> None:
    made = ledger()
    made.apply_pod(past("a", 1, phase="Running"))
    assert used(made) == [(10, 40960, 100)] * 2
    assert "all GPUs of the node count as full, or only those that kubelet gave it" in problem_of(made, "uid-a")


def told(made: Ledger, value: str, slots: int = 2) -> None:
    """The node's daemon writes this."""
    known = node("n", [device(number, replicas=slots) for number in range(2)])
    known.metadata.annotations[keys.NODE_UNDECIDED] = value
    made.apply_node(known)


def word(**pods: dict[str, int]) -> str:
    return encode_undecided(
        {f"uid-{name}": {DeviceUUID(gpu): n for gpu, n in held.items()} for name, held in pods.items()}
    )


def test_the_daemon_names_the_gpus_whose_slots_a_pod_past_the_scheduler_has() -> None:
    made = Ledger()
    told(made, word(a={"G1": 1}))
    made.apply_pod(past("a", 1))
    assert used(made) == [(0, 0, 0), (1, 0, 0)]
    told(made, word(a={"G0": 1}))
    assert used(made) == [(1, 0, 0), (0, 0, 0)]
    made.remove_pod("uid-a")
    assert used(made) == [(0, 0, 0)] * 2


def test_slots_that_were_decided_for_others_are_taken_elsewhere() -> None:
    """Kubelet counts ids of the node together: two of four are left to it."""
    made = Ledger()
    told(made, word(a={"G0": 1}))
    for name in ("x", "y"):
        made.apply_pod(bound(name, "G0,NVIDIA,1000,10:;"))
    made.apply_pod(past("a", 1))
    assert used(made) == [(2, 2000, 20), (1, 0, 0)]
    made.apply_pod(past("a", 1, phase="Running"))
    assert used(made) == [(2, 40960, 100), (1, 0, 0)]


def test_one_that_runs_takes_the_whole_of_the_gpus_that_the_daemon_names() -> None:
    made = Ledger()
    told(made, word(a={"G1": 1}))
    made.apply_pod(past("a", 1, phase="Running"))
    assert used(made) == [(0, 0, 0), (2, 40960, 100)]
    snapshot = made.snapshot()
    assert snapshot.nodes["n"].undecided == ("default/a",)
    assert decide(request(pod(container(gpu=1), name="w")), snapshot, ["n"]).node == "n"
    assert decide(request(pod(container(gpu=2), name="w")), snapshot, ["n"]).node is None
    told(made, "")
    assert used(made) == [(2, 40960, 100)] * 2


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("", id="none"),
        pytest.param("{", id="unreadable"),
        pytest.param('{"version":2,"pods":{"uid-a":{"G1":2}}}', id="of another version"),
        pytest.param(word(b={"G1": 2}), id="of another pod"),
        pytest.param(word(a={"G1": 1}), id="of fewer slots than it asks for"),
        pytest.param(word(a={"G1": 1, "G7": 1}), id="of a GPU that the node does not have"),
    ],
)
def test_a_word_that_cannot_be_all_counts_as_none(value: str) -> None:
    made = Ledger()
    told(made, value)
    made.apply_pod(past("a", 2, phase="Running"))
    assert used(made) == [(2, 40960, 100)] * 2
    made.apply_pod(past("a", 2))
    assert used(made) == [(1, 0, 0)] * 2


def test_the_word_of_another_node_does_not_count() -> None:
    made = Ledger()
    made.apply_node(node("n", [device(number, replicas=2) for number in range(2)]))
    other = node("m", [device(number, replicas=2) for number in range(2)])
    other.metadata.annotations[keys.NODE_UNDECIDED] = word(a={"G1": 1})
    made.apply_node(other)
    made.apply_pod(past("a", 1, phase="Running"))
    assert [gpu.replicas for gpu in made.snapshot().nodes["n"].gpus] == [2, 2]
    assert [gpu.replicas for gpu in made.snapshot().nodes["m"].gpus] == [0, 0]


def test_a_pod_that_asks_for_no_gpu_holds_none() -> None:
    made = ledger()
    made.apply_pod(pod(container(), name="cpu", node_name="n", phase="Running"))
    assert used(made) == [(0, 0, 0)] * 2
    assert made.records.every() == {}


@pytest.mark.parametrize("text", ["G0,NVIDIA,1000,10:;", "G0,NVIDIA"])
def test_a_holding_ends_with_its_pod_not_with_its_annotation(text: str) -> None:
    made = ledger()
    made.apply_pod(bound("a", text))
    before = used(made)
    assert before[0] != (0, 0, 0)
    for _ in range(2):
        made.apply_pod(past("a", 1, phase="Running"))
        assert used(made) == before
    assert f"{keys.DEVICES_ALLOCATED} was removed" in problem_of(made, "uid-a")
    made.replace_pods([past("a", 1, phase="Running")])
    assert used(made) == before
    made.apply_pod(bound("a", "G1,NVIDIA,500,5:;"))
    assert used(made) == [(0, 0, 0), (1, 500, 5)]
    made.apply_pod(past("a", 1, phase="Succeeded"))
    assert used(made) == [(0, 0, 0)] * 2


def test_a_gpu_is_not_freed_by_the_name_of_one_that_the_node_lacks() -> None:
    made = ledger()
    for second in ("G1", "GPU-elsewhere"):
        decision = f"G0,NVIDIA,1000,10:{second},NVIDIA,1000,10:;"
        made.apply_pod(pod(container(gpu=2), name="a", node_name="n", annotations={keys.DEVICES_ALLOCATED: decision}))
        assert used(made) == [(1, 1000, 10)] * 2
    assert "names a GPU that node n lacks" in problem_of(made, "uid-a")


def with_container(state: ContainerState, phase: str = "Running") -> Pod:
    found = bound("a", "G0,NVIDIA,1000,10:;", phase=phase)
    found.status.container_statuses = [ContainerStatus(name="c", state=state)]
    return found


def test_only_a_pod_that_was_deleted_while_its_containers_ran_outlives_its_deletion() -> None:
    running, ended = ContainerState(running={}), ContainerState(terminated=ContainerStateTerminated())
    assert outlives(with_container(running))
    assert not outlives(with_container(ended))
    assert outlives(with_container(running, phase="Failed"))
    assert not outlives(bound("a", "G0,NVIDIA,1000,10:;"))


def test_a_pod_deleted_by_force_keeps_its_gpus_until_its_time() -> None:
    made = ledger()
    made.apply_pod(bound("a", "G0,NVIDIA,1000,10:;"))
    made.remove_pod("uid-a", until=120.0)
    made.replace_pods([])
    made.expire(119.0)
    assert used(made) == [(1, 1000, 10), (0, 0, 0)]
    made.expire(120.0)
    assert used(made) == [(0, 0, 0)] * 2
    assert made.records.every() == {}


def test_a_pod_that_is_listed_again_after_its_deletion_holds_its_gpus_past_that_time() -> None:
    """As after etcd was restored from a copy: same pod, same uid."""
    made = ledger()
    made.apply_pod(bound("a", "G0,NVIDIA,1000,10:;"))
    made.remove_pod("uid-a", until=120.0)
    made.replace_pods([bound("a", "G0,NVIDIA,1000,10:;")])
    made.expire(120.0)
    assert used(made) == [(1, 1000, 10), (0, 0, 0)]
    made.replace_pods([])
    assert used(made) == [(0, 0, 0)] * 2


def telling(said: Outliving | None) -> Node:
    """The ledger's node, whose daemon says this of pods that are gone."""
    made = node("n", [device(number) for number in range(2)])
    if said is not None:
        made.metadata.annotations[keys.NODE_OUTLIVING] = encode_outliving(said)
    return made


def test_a_pod_deleted_by_force_keeps_its_gpus_until_its_nodes_daemon_says_that_it_ended() -> None:
    made = Ledger()
    made.apply_node(telling(Outliving(as_of=10)))
    made.apply_pod(bound("a", "G0,NVIDIA,1000,10:;"))
    made.remove_pod("uid-a", until=120.0, deleted_at=11)
    made.expire(1e9)
    assert used(made) == [(1, 1000, 10), (0, 0, 0)]
    made.apply_node(telling(Outliving(11, {"uid-a": {DeviceUUID("G0"): (1, 1000, 10)}})))
    made.replace_pods([])
    assert used(made) == [(1, 1000, 10), (0, 0, 0)]
    made.apply_node(telling(Outliving(as_of=11)))
    assert used(made) == [(0, 0, 0)] * 2
    assert made.records.every() == {}


def test_the_daemon_may_have_said_so_before_the_deletion_is_heard_of() -> None:
    made = Ledger()
    made.apply_node(telling(Outliving(as_of=10)))
    made.apply_pod(bound("a", "G0,NVIDIA,1000,10:;"))
    made.apply_node(telling(Outliving(as_of=11)))
    assert used(made) == [(1, 1000, 10), (0, 0, 0)]
    made.remove_pod("uid-a", until=120.0, deleted_at=11)
    assert used(made) == [(0, 0, 0)] * 2


def test_what_runs_on_counts_though_the_deletion_was_never_seen() -> None:
    made = Ledger()
    said = Outliving(11, {"uid-a": {DeviceUUID("G0"): (1, 1000, 10)}, "uid-unknown": {}})
    made.replace_nodes([telling(said)])
    made.replace_pods([])
    made.expire(1e9)
    assert used(made) == [(1, 1000, 10), (0, 0, 0)]
    made.apply_node(telling(None))
    made.apply_node(telling(Outliving(as_of=12)))
    assert made.records.every() == {}


def test_a_list_without_the_pod_gives_back_nothing_that_its_daemon_names() -> None:
    made = Ledger()
    made.apply_pod(bound("a", "G0,NVIDIA,1000,10:;"))
    made.apply_node(telling(Outliving(11, {"uid-a": {DeviceUUID("G0"): (1, 1000, 10)}})))
    made.replace_pods([])
    assert used(made) == [(1, 1000, 10), (0, 0, 0)]


def test_a_daemon_that_falls_silent_leaves_the_time() -> None:
    made = Ledger()
    made.apply_node(telling(Outliving(as_of=10)))
    made.apply_pod(bound("a", "G0,NVIDIA,1000,10:;"))
    made.remove_pod("uid-a", until=120.0, deleted_at=11)
    made.apply_node(telling(None))
    made.expire(119.0)
    assert used(made) == [(1, 1000, 10), (0, 0, 0)]
    made.expire(120.0)
    assert used(made) == [(0, 0, 0)] * 2


def test_with_its_node_goes_what_ran_on_there_and_a_node_that_is_not_ready_is_not_gone() -> None:
    made = Ledger()
    made.apply_node(telling(Outliving(as_of=10)))
    made.apply_pod(bound("a", "G0,NVIDIA,1000,10:;"))
    made.remove_pod("uid-a", until=120.0, deleted_at=11)
    unready = telling(Outliving(as_of=10))
    unready.status.conditions = [Condition(type="Ready", status="Unknown")]
    made.apply_node(unready)
    made.expire(1e9)
    assert set(made.records.every()) == {"uid-a"}
    made.remove_node("n")
    assert made.records.every() == {}


CLAIMED = Outliving(11, {"uid-a": {DeviceUUID("G0"): (1, 1000, 10)}})
SHARES = ((DeviceShare(uuid=DeviceUUID("G0"), memory_mib=1000, cores=10),),)


def test_what_is_known_from_the_daemon_alone_has_its_time_once_the_daemon_is_silent() -> None:
    made = Ledger()
    made.apply_node(telling(CLAIMED))
    made.apply_node(telling(None))
    made.expire(1000.0)
    made.expire(1000.0 + OUTLIVING_SECONDS - 1)
    assert used(made) == [(1, 1000, 10), (0, 0, 0)]
    made.expire(1000.0 + OUTLIVING_SECONDS)
    assert used(made) == [(0, 0, 0)] * 2


def test_the_daemon_may_name_a_pod_whose_binding_is_still_on_its_way_here() -> None:
    """It was bound, ran and was deleted by force on a watch that is ahead of ours."""
    made = Ledger()
    made.apply_node(telling(None))
    made.reserve("uid-a", pod(container(gpu=1), name="a"), "n", SHARES, 60.0)
    made.apply_node(telling(CLAIMED))
    made.expire(60.0)
    assert used(made) == [(1, 1000, 10), (0, 0, 0)]
    made.apply_pod(bound("a", "G0,NVIDIA,1000,10:;"))
    assert used(made) == [(1, 1000, 10), (0, 0, 0)]
    made.remove_pod("uid-a", until=120.0, deleted_at=12)
    made.apply_node(telling(Outliving(as_of=12)))
    assert used(made) == [(0, 0, 0)] * 2


@pytest.mark.parametrize("claimed_first", [True, False])
def test_what_a_daemon_says_of_a_pod_that_waits_takes_nothing_from_its_reservation_elsewhere(
    *, claimed_first: bool
) -> None:
    made = Ledger()
    made.apply_node(node("m", [device(0)]))
    told_by_n = telling(CLAIMED)
    made.apply_node(told_by_n if claimed_first else telling(None))
    made.reserve("uid-a", pod(container(gpu=1), name="a"), "m", SHARES, 60.0)
    made.apply_node(told_by_n)
    at_m = made.nodes.usages().get("m")
    assert at_m is not None
    assert [(gpu.replicas, gpu.memory_mib) for gpu in at_m.gpus] == [(1, 1000)]
    assert used(made) == [(0, 0, 0)] * 2
    made.expire(60.0)
    made.apply_node(telling(Outliving(as_of=12)))
    assert made.records.every() == {}
