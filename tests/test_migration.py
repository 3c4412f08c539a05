"""Nodes and pods of HAMi's 2.4 to 2.10 under our programs; what docs/compatibility.md relies on.

Forms: pkg/device and pkg/util of Project-HAMi/HAMi, 2.4.1 to 2.10.0. That our daemon serves pods of HAMi's schedulers
is in tests/deviceplugin/test_hami_scheduler.py.
"""

import pytest

from deviceplugin.removal import annotations_of_ours
from proto.annotations import keys
from proto.kubernetes.objects import Container, Node, NodeStatus, ObjectMeta, Pod, PodSpec, PodStatus, Resources
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.registered import read_node
from tests.deviceplugin.daemon_rig import DaemonRig, daemon
from tests.polling import until

GPU = "GPU-ebe7c3f7-303d-558d-435e-99a160631fe4"
MODEL = "NVIDIA-NVIDIA A100-SXM4-40GB"
JSON = f'[{{"id":"{GPU}","count":10,"devmem":40960,"devcore":100,"type":"{MODEL}","mode":"hami-core","health":true%s}}]'
REGISTERS = {
    "2.4": f"{GPU},10,40960,100,{MODEL},0,true:",
    "2.5 to 2.7": f"{GPU},10,40960,100,{MODEL},0,true,0,hami-core:",
    "2.8 and 2.9": JSON % ',"devicepairscore":{}',
    "2.10": JSON % "",
}
PODS = {
    "bound, its container not started": f"{GPU},NVIDIA,4000,20:;",
    "served by 2.4 to 2.7": ";",
    "served by 2.8 and later": ";;",
}
"""What stands in devices-to-allocate; devices-allocated keeps what was decided."""


def hamis_node(register: str) -> Node:
    annotations = {keys.NODE_REGISTER: register, keys.NODE_HANDSHAKE: "Requesting_2030-01-01 00:00:05"}
    status = NodeStatus(allocatable={keys.RESOURCE_COUNT: "20"})
    return Node(metadata=ObjectMeta(name="n", annotations=annotations), status=status)


def hamis_pod(to_allocate: str, phase: str = "Running") -> Pod:
    annotations = {
        keys.POD_NODE: "n",
        keys.POD_TIME: "1893456000",
        keys.DEVICES_TO_ALLOCATE: to_allocate,
        keys.DEVICES_ALLOCATED: f"{GPU},NVIDIA,4000,20:;",
        keys.BIND_PHASE: "success",
        keys.BIND_TIME: "1893456000",
    }
    limits: dict[str, str | int | float] = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000"}
    return Pod(
        metadata=ObjectMeta(name="p", namespace="ml", uid="uid-p", annotations=annotations),
        spec=PodSpec(node_name="n", containers=[Container(name="main", resources=Resources(limits=limits))]),
        status=PodStatus(phase=phase),
    )


@pytest.mark.parametrize("to_allocate", PODS.values(), ids=PODS)
@pytest.mark.parametrize("register", REGISTERS.values(), ids=REGISTERS)
def test_our_extender_counts_what_hamis_scheduler_gave_out(register: str, to_allocate: str) -> None:
    ledger = Ledger()
    ledger.replace_nodes([hamis_node(register)])
    ledger.replace_pods([hamis_pod(to_allocate)])
    (gpu,) = ledger.snapshot().nodes["n"].gpus
    assert (gpu.replicas, gpu.memory_mib, gpu.cores, gpu.device.memory_mib) == (1, 4000, 20, 40960)
    assert ledger.problems() == {}
    ledger.apply_pod(hamis_pod(to_allocate, phase="Succeeded"))
    assert ledger.snapshot().nodes["n"].gpus[0].memory_mib == 0


@pytest.mark.parametrize("register", REGISTERS.values(), ids=REGISTERS)
def test_nodes_of_hamis_daemon_keep_the_node_lock(register: str) -> None:
    assert not read_node(hamis_node(register), "nvidia.com/gpu").by_slots


def test_a_node_that_is_given_back_needs_the_lock_again_once_our_key_is_gone() -> None:
    node = hamis_node(REGISTERS["2.10"])
    node.metadata.annotations[keys.NODE_ALLOCATION] = "slots"
    assert read_node(node, "nvidia.com/gpu").by_slots
    for key in annotations_of_ours(node):
        del node.metadata.annotations[key]
    # HAMi's daemon is back.
    node.metadata.annotations[keys.NODE_REGISTER] = REGISTERS["2.10"]
    assert not read_node(node, "nvidia.com/gpu").by_slots


async def restarted(node: DaemonRig, *options: str) -> None:
    """Another daemon takes the node over."""
    before = node.registrations()
    await node.kill()
    node.options = options
    await node.start()
    await until(lambda: node.registrations() == before + 1)
    await node.ready()


@pytest.mark.needs_compiler
async def test_a_pod_served_before_our_daemon_came_goes_on_and_may_restart() -> None:
    """Before: a plugin that answers Allocate at once, as HAMi's does. After: our daemon with slots."""
    async with daemon(runtime_version="containerd://2.4.2") as node:
        with_slots = node.options
        await restarted(node, *with_slots, "--allocation", "immediate")
        old = node.bind("old", 1)
        await node.runs("old")
        await restarted(node, *with_slots)
        await node.kubelet.restart_container(old, "c0")
        new = node.bind("new", 2)
        await node.runs("new")
        gpus = [gpu.uuid for gpu in node.gpus()]
        assert (node.visible(old, 0), node.visible(old, 1), node.visible(new)) == (gpus[1], gpus[1], gpus[2])
