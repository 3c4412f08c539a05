from collections.abc import Mapping

import pytest

from deviceplugin.node.desired import Desired
from deviceplugin.removal import Folders, Found, Ours, annotations_of_ours, paths_of_ours, refusals, status_of_ours
from deviceplugin.settings import TotalNames
from deviceplugin.slots.slot import SPEC_FILE
from proto.annotations import keys
from proto.annotations.node_lock import encode_lock_uid
from proto.kubernetes.objects import Container, Node, NodeStatus, ObjectMeta, Pod
from tests.builders import container, pod

FOLDERS = Folders(slots="/cdi", specs="/cdi", hami_core="/h/vgpu", locks="/tmp/vgpulock", plugins="/k/device-plugins")
OURS = Ours(resource="nvidia.com/gpu")
LIBRARY = "libvgpu.so.0123456789abcdef"
LOCK = "2030-01-01T00:00:00Z,ml,train"


def paths(names: Mapping[str, tuple[str, ...]], ours: Ours = OURS, served: tuple[str, ...] = ()) -> tuple[str, ...]:
    return paths_of_ours(FOLDERS, Found(names=names, served=served), ours)


def annotated(**annotations: str) -> Node:
    return Node(metadata=ObjectMeta(name="n", annotations=annotations))


def of_ml(name: str, asking: Container, phase: str = "Running") -> Pod:
    return pod(asking, name=name, namespace="ml", phase=phase)


def test_of_the_cdi_folder_only_slots_and_what_a_crash_left_of_them_go() -> None:
    others = ("nvidia.yaml", "topogpu.io-slot-notes.json", "k8s.device-plugin.nvidia.com-gpu.json")
    ours = (f".{SPEC_FILE}.new", ".topogpu", ".topogpu-trial", SPEC_FILE)
    assert paths({"/cdi": (*others, *ours)}) == tuple(f"/cdi/{name}" for name in sorted(ours))


def test_the_spec_of_the_gpus_goes_where_the_daemon_generates_it() -> None:
    names = {"/cdi": ("k8s.device-plugin.nvidia.com-gpu.json", "nvidia.yaml")}
    generating = Ours(resource="nvidia.com/gpu", cdi_kind="k8s.device-plugin.nvidia.com/gpu")
    assert paths(names) == ()
    assert paths(names, generating) == ("/cdi/k8s.device-plugin.nvidia.com-gpu.json",)


def test_sockets_go_once_nobody_serves_them_and_those_of_others_never() -> None:
    mig = ("nvidia-mig-1g.10gb.0a1b2c3d.sock", "nvidia-mig-1g.10gb.sock")
    ours = ("nvidia-gpu.0a1b2c3d.sock", "nvidia-gpu.sock", *mig)
    names = {FOLDERS.plugins: ("kubelet.sock", *ours, "nvidia-gpu.other.sock", "nvidia.sock", "rdma.sock")}
    left = tuple(f"/k/device-plugins/{name}" for name in ours)
    assert paths(names) == left
    assert paths(names, served=left[:1]) == left[1:]


def test_a_hook_of_ours_goes_whole() -> None:
    names = ("containers", "ld.so.preload", "libvgpu.so", LIBRARY, f".{LIBRARY}.new")
    assert sorted(paths({"/h/vgpu": names})) == sorted(f"/h/vgpu/{name}" for name in names)


@pytest.mark.parametrize("ours", [(), (LIBRARY,)])
def test_of_a_hook_that_hami_installed_too_only_what_it_does_not_use_goes(ours: tuple[str, ...]) -> None:
    names = ("containers", "ld.so.preload", "libvgpu.so.v2.9.0", *ours)
    assert paths({"/h/vgpu": names}) == tuple(f"/h/vgpu/{name}" for name in ("containers", *ours))


def test_the_lock_folder_goes_when_it_is_there() -> None:
    assert paths({FOLDERS.locks: ("lock",)}) == (FOLDERS.locks,)
    assert paths({}) == ()


def test_the_nodes_annotations_go_and_a_persons_cordon_stays() -> None:
    node = annotated(
        **{
            keys.NODE_REGISTER: "[]",
            keys.NODE_SCORE: "[]",
            keys.NODE_ALLOCATION: "slots",
            keys.NODE_LIMITS: "none",
            keys.NODE_SIMULATED: "true",
            keys.NODE_UNDECIDED: "{}",
            keys.NODE_LABELS: "{}",
            keys.NODE_HANDSHAKE: "Reported 2030-01-01 00:00:00.000000 +0000",
            keys.DEVICE_CORDON: "GPU-a",
            "example.com/other": "1",
        }
    )
    assert set(annotations_of_ours(node)) == {
        keys.NODE_REGISTER,
        keys.NODE_SCORE,
        keys.NODE_ALLOCATION,
        keys.NODE_LIMITS,
        keys.NODE_SIMULATED,
        keys.NODE_UNDECIDED,
        keys.NODE_LABELS,
        keys.NODE_HANDSHAKE,
    }


def test_what_hamis_plugin_registered_and_its_scheduler_asked_stays() -> None:
    assert annotations_of_ours(annotated(**{keys.NODE_REGISTER: "[]", keys.NODE_HANDSHAKE: "Reported x"})) == ()
    asked = annotated(**{keys.NODE_ALLOCATION: "slots", keys.NODE_HANDSHAKE: "Requesting_2030-01-01 00:00:00"})
    assert annotations_of_ours(asked) == (keys.NODE_ALLOCATION,)


def test_a_lock_goes_when_our_scheduler_signed_it() -> None:
    signed = annotated(**{keys.NODE_LOCK: LOCK, keys.NODE_LOCK_UID: encode_lock_uid(LOCK, "uid-1")})
    taken_over = annotated(**{keys.NODE_LOCK: LOCK, keys.NODE_LOCK_UID: encode_lock_uid("an older lock", "uid-1")})
    assert annotations_of_ours(signed) == (keys.NODE_LOCK, keys.NODE_LOCK_UID)
    assert annotations_of_ours(taken_over) == (keys.NODE_LOCK_UID,)
    assert annotations_of_ours(annotated(**{keys.NODE_LOCK: LOCK})) == ()


def test_pods_that_have_gpus_are_named_and_others_are_in_nobodys_way() -> None:
    pods = [
        of_ml("train", container(gpu=2)),
        of_ml("slice", container(**{"mig-1g.10gb": "1"})),
        of_ml("odd", container(gpu="many")),
        of_ml("done", container(gpu=1), "Succeeded"),
        of_ml("none", container(gpu=0)),
        of_ml("web", container(cpu="2")),
    ]
    assert refusals("n", pods, Found(names={}), "nvidia.com/gpu") == (
        "Pods on node n still have GPUs: ml/odd, ml/slice, ml/train. Drain the node or wait for them; "
        "what is removed under a pod cannot be restored, and its containers cannot be restarted.",
    )


def test_a_plugin_that_serves_is_in_the_way() -> None:
    served = Found(names={}, served=("/k/device-plugins/nvidia-gpu.sock",))
    assert refusals("n", [], served, "nvidia.com/gpu") == (
        "A device plugin still serves /k/device-plugins/nvidia-gpu.sock. "
        "Stop it first: remove the daemon's DaemonSet, or end its process.",
    )


def test_totals_go_where_our_own_annotation_stands_beside_them() -> None:
    totals = (keys.RESOURCE_MEMORY, *keys.SUMS)
    status = NodeStatus(capacity={**dict.fromkeys(totals, "1"), keys.RESOURCE_COUNT: "20", "cpu": "8"})
    ours = Node(metadata=ObjectMeta(annotations={keys.NODE_ALLOCATION: "slots"}), status=status)
    assert tuple(status_of_ours(ours, TotalNames()).totals) == totals
    assert status_of_ours(Node(status=status), TotalNames()) == Desired()
