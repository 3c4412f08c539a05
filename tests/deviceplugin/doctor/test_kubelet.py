import pytest

from deviceplugin.doctor.finding import Finding
from deviceplugin.doctor.kubelet import (
    SocketFacts,
    SocketState,
    is_other_plugin,
    is_ours,
    judge_count,
    judge_kubelet_socket,
    judge_owner,
    judge_pod_resources,
)
from proto.annotations.node_allocation import AllocationMode
from proto.kubernetes.objects import Container, Node, NodeStatus, Pod, PodSpec, PodStatus
from tests.deviceplugin.gpus import A, B, a100

RESOURCE = "nvidia.com/gpu"
OURS = ("/usr/bin/python3", "/usr/local/bin/topogpu-device-plugin", "run")


def at(state: SocketState, listener: tuple[str, ...] = ()) -> SocketFacts:
    return SocketFacts(path="/kubelet/x.sock", state=state, listener=listener)


def counted(**allocatable: str) -> Node:
    return Node(status=NodeStatus(allocatable={f"nvidia.com/{name}": count for name, count in allocatable.items()}))


def brief(finding: Finding) -> tuple[str, str]:
    return finding.state.value, f"{finding.explanation} {finding.remedy}"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (SocketState.MISSING, "mount /kubelet of the host"),
        (SocketState.REFUSED, "has no listener"),
        (SocketState.NO_SOCKET, "is no socket"),
        (SocketState.FORBIDDEN, "Run as root."),
    ],
)
def test_kubelets_socket_is_a_problem_and_pod_resources_only_with_slots(state: SocketState, words: str) -> None:
    found = [
        brief(judge_kubelet_socket(at(state))),
        brief(judge_pod_resources(at(state), AllocationMode.SLOTS)),
        brief(judge_pod_resources(at(state), AllocationMode.IMMEDIATE)),
    ]
    assert [state for state, _ in found] == ["problem", "problem", "warning"]
    assert all(words in told for _, told in found)


def test_sockets_that_answer_are_fine() -> None:
    answers = at(SocketState.CONNECTS)
    assert judge_kubelet_socket(answers).state == "ok"
    assert judge_pod_resources(answers, AllocationMode.SLOTS).state == "ok"


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        (Container(name="c", image="projecthami/hami:v2.10.0", command=["nvidia-device-plugin", "-v=4"]), True),
        (Container(name="c", image="projecthami/hami:v2.10.0", command=["vGPUmonitor"]), False),
        (Container(name="c", image="projecthami/hami:v2.10.0", command=["scheduler"]), False),
        (Container(name="c", image="nvcr.io/nvidia/k8s-device-plugin:v0.17.0"), True),
        (
            Container(name="c", image="nvcr.io/nvidia/k8s-device-plugin:v0.17.0", command=["gpu-feature-discovery"]),
            False,
        ),
        (Container(name="nvidia-device-plugin", image="n/k8s-device-plugin:v0.17", command=["bash", "-c"]), True),
        (Container(name="c", image="gke.gcr.io/nvidia-gpu-device-plugin@sha256:1"), True),
        (Container(name="c", image="i", command=["topogpu-device-plugin", "run"]), False),
        (Container(name="c", image="example.org/topogpu-device-plugin:1"), False),
    ],
)
def test_other_device_plugins_are_known_by_what_their_containers_run(container: Container, expected: bool) -> None:
    pod = Pod(spec=PodSpec(containers=[Container(name="sidecar", image="i"), container]))
    assert is_other_plugin(pod) is expected


def test_a_device_plugin_that_ended_serves_nothing() -> None:
    spec = PodSpec(containers=[Container(name="c", command=["nvidia-device-plugin"])])
    assert not is_other_plugin(Pod(spec=spec, status=PodStatus(phase="Failed")))


@pytest.mark.parametrize(
    ("ours", "state", "words"),
    [
        (at(SocketState.CONNECTS, OURS), "ok", "is ours"),
        (at(SocketState.CONNECTS), "ok", "answers"),
        (at(SocketState.CONNECTS, ("nvidia-device-plugin",)), "problem", "served by another program"),
        (at(SocketState.MISSING), "problem", "Our daemon does not run"),
        (at(SocketState.REFUSED), "problem", "Start topogpu-device-plugin run"),
    ],
)
def test_whoever_listens_on_our_socket_serves_the_resource(ours: SocketFacts, state: str, words: str) -> None:
    found = brief(judge_owner(RESOURCE, ours, [], [], None))
    assert found[0] == state
    assert words in found[1]


def test_another_device_plugin_on_the_same_resource_is_a_problem_whatever_gives_it_away() -> None:
    ours, nobody = at(SocketState.CONNECTS, OURS), at(SocketState.MISSING)
    by_pod = brief(judge_owner(RESOURCE, ours, [], ["a/b", "a/c"], None))
    by_socket = brief(judge_owner(RESOURCE, ours, ["/k/nvidia.sock"], [], None))
    by_count = brief(judge_owner(RESOURCE, nobody, [], [], counted(gpu="8")))
    assert {state for state, _ in (by_pod, by_socket, by_count)} == {"problem"}
    assert "pods a/b and a/c" in by_pod[1]
    assert "/k/nvidia.sock" in by_socket[1]
    assert "but no program listens" in by_count[1]
    assert all("Only one device plugin may serve nvidia.com/gpu" in told for _, told in (by_pod, by_socket, by_count))


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (OURS, True),
        (("python", "-m", "deviceplugin", "run"), True),
        (("/usr/bin/nvidia-device-plugin", "--config-file=/c"), False),
    ],
)
def test_our_own_process_is_known_by_its_command(command: tuple[str, ...], expected: bool) -> None:
    assert is_ours(command) is expected


def test_kubelet_counts_the_replicas_of_healthy_gpus() -> None:
    served = {RESOURCE: (a100(A, 0), a100(B, 1, healthy=False)), "nvidia.com/mig-1g.5gb": ()}
    connected = at(SocketState.CONNECTS)
    assert brief(judge_count(counted(gpu="3"), served, connected)) == ("ok", "Allocatable: 3 nvidia.com/gpu. ")
    state, told = brief(judge_count(counted(gpu="2"), served, connected))
    assert (state, "2 nvidia.com/gpu where this machine has 3" in told) == ("problem", True)
    assert judge_count(counted(), served, connected).state == "problem"
    assert judge_count(counted(), served, at(SocketState.MISSING)).state == "skipped"
