"""What the daemon tells of pods without a decision, and of which it is silent."""

import asyncio
import base64
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from deviceplugin.container.edits import ContainerEdits
from deviceplugin.node.undecided import is_undecided, known_of
from deviceplugin.plugin_calls import allocate_response
from deviceplugin.records.checkpoint_file import CHECKPOINT_NAME
from deviceplugin.records.holdings import Holding
from deviceplugin.replicas import split_replica
from deviceplugin.slim_pods import slim
from proto.annotations.keys import NODE_LOCK, NODE_UNDECIDED
from proto.annotations.undecided_pods import Given, decode_undecided
from proto.kubernetes.objects import (
    STATIC_UID,
    Container,
    ContainerStatus,
    EnvVar,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    Resources,
)
from simulation.nvml.machine_file import RowsRemapped
from tests.deviceplugin.daemon_rig import DaemonRig, daemon
from tests.deviceplugin.gpus import INVENTORY, NODE, A, B, bound_pod, share
from tests.deviceplugin.slots.slot_rig import GPU, as_recorded
from tests.polling import until

FILE, OTHER = "9f86d081884c7d659a2feaa0c55ad015", "01234567-89ab-cdef-0123-456789abcdef"
"""The UID that kubelet gives to a static pod, and one that the API server gives."""
DAY_BEFORE = ContainerEdits(env={"NVIDIA_VISIBLE_DEVICES": A})


def stranger(*gpus: int, init: int = 0, phase: str = "Running", container_id: str = "containerd://1") -> Pod:
    """No decision; `gpus` is what each container asks for."""
    asked = [Container(name=f"c{n}", resources=Resources(limits={GPU: str(count)})) for n, count in enumerate(gpus)]
    return Pod(
        metadata=ObjectMeta(name="p", namespace="default", uid="uid-p"),
        spec=PodSpec(node_name=NODE, init_containers=asked[:init], containers=asked[init:]),
        status=PodStatus(phase=phase, container_statuses=[ContainerStatus(name="c0", container_id=container_id)]),
    )


def entry(*ids: str, container: str = "c0", uid: str = "uid-p", answer: str | None = None, of: str = GPU) -> Holding:
    if answer is None:
        answer = base64.b64encode(allocate_response(DAY_BEFORE).SerializeToString()).decode()
    held = {"0": list(ids[:1]), "1": list(ids[1:])}
    return Holding(pod_uid=uid, container_name=container, resource_name=of, device_ids=held, answer=answer)


def known(pod: Pod, *recorded: Holding) -> object:
    return known_of([pod], recorded, INVENTORY, GPU).get("uid-p")


def test_a_static_pod_has_the_ids_that_kubelet_recorded_under_the_uid_of_its_file() -> None:
    """The API server's mirror of it has a UID of its own."""
    mirror = stranger(1)
    mirror.metadata.annotations[STATIC_UID] = FILE
    slim(mirror, GPU, ())
    assert known(mirror, entry(f"{A}-0", uid=FILE)) == {A: 1}
    mirror.metadata.annotations[STATIC_UID] = OTHER
    assert known(mirror, entry(f"{A}-0", uid=OTHER)) is None


def test_a_pod_with_a_decision_that_asks_for_no_gpu_or_has_ended_is_none_of_them() -> None:
    without = stranger(0)
    ended = stranger(1, phase="Failed")
    decided = bound_pod("d", ((share(A),),))
    decided.spec.containers[0].resources.limits = {GPU: "1"}
    assert not any(is_undecided(pod, GPU) for pod in (without, ended, decided))
    assert is_undecided(stranger(1), GPU)


def test_slots_are_counted_by_gpu_over_all_containers_and_an_id_once() -> None:
    pod = stranger(1, 2, init=1)
    given = known(pod, entry(f"{A}-0"), entry(f"{A}-0", f"{A}-2", container="c1"))
    assert given == {A: 2}
    assert known(stranger(1), entry(A)) == {A: 1}


@pytest.mark.parametrize(
    "recorded",
    [
        pytest.param((), id="none"),
        pytest.param((entry(f"{A}-0", uid="uid-other"),), id="another pod's"),
        pytest.param((entry(f"{A}-0", of="nvidia.com/other"),), id="another resource's"),
        pytest.param((entry(f"{A}-0", f"{A}-1"),), id="other number of ids than asked for"),
        pytest.param((entry("GPU-cccccccc-0000-0000-0000-000000000000-0"),), id="a GPU that is not this node's"),
        pytest.param((entry(f"{B}-0"),), id="given another GPU than that of its id"),
        pytest.param((entry(f"{A}-0", answer="?"),), id="an answer that cannot be read"),
    ],
)
def test_what_is_not_wholly_known_is_not_told(recorded: tuple[Holding, ...]) -> None:
    assert known(stranger(1), *recorded) is None


def test_a_pod_of_which_one_container_is_not_recorded_is_not_told() -> None:
    assert known(stranger(1, 1), entry(f"{A}-0")) is None


def test_a_pod_that_runs_and_names_its_gpus_itself_is_not_told() -> None:
    """Its own environment outdoes the device plugin's, also in a container that asks for no GPU."""
    pod = stranger(1, 0)
    pod.spec.containers[1].env = [EnvVar(name="NVIDIA_VISIBLE_DEVICES", value="all")]
    assert known(pod, entry(f"{A}-0")) is None


def test_what_a_slot_gave_to_a_container_that_was_created_is_not_what_its_ids_say() -> None:
    by_slot = entry(f"{A}-0", answer=as_recorded("x"))
    assert known(stranger(1), by_slot) is None
    assert known(stranger(1, phase="Pending", container_id=""), by_slot) == {A: 1}


def told(node: DaemonRig) -> Mapping[str, Given]:
    value = node.annotation(NODE_UNDECIDED)
    return decode_undecided(value) if value else {}


def held(node: DaemonRig, uid: str) -> Given:
    """As kubelet's books have it."""
    return Counter(split_replica(identifier)[0] for one in node.kubelet.devices.held(uid) for identifier in one.ids)


@pytest.mark.needs_compiler
async def test_the_daemon_tells_what_kubelet_gave_past_the_scheduler_until_the_pod_is_gone() -> None:
    async with daemon(runtime_version="containerd://2.4.2") as node:
        decided = node.bind("decided", 0)
        await node.runs("decided")
        assert NODE_UNDECIDED not in node.annotations()
        uid = node.bind("past", 1, 2, lent=())
        await until(lambda: uid in told(node))
        assert told(node) == {uid: held(node, uid)}
        assert sum(held(node, uid).values()) == 2
        await node.kill()
        second = node.bind("second", 3, lent=())
        await node.start()
        await until(lambda: node.registrations() == 2)
        await until(lambda: bool(node.kubelet.devices.held(uid)) and uid in told(node))
        assert told(node)[uid] == held(node, uid)
        assert decided not in told(node)
        for name in ("past", "second"):
            node.server.delete("pods", name, namespace="default")
        await until(lambda: not told(node) and NODE_UNDECIDED not in node.annotations())
        assert second not in told(node)


@pytest.mark.needs_compiler
async def test_of_a_pod_that_was_served_by_a_slot_and_lost_its_decision_the_daemon_is_silent() -> None:
    async with daemon(runtime_version="containerd://2.4.2") as node:
        uid = node.bind("p", 1)
        await node.runs("p")
        writes = node.writes()
        pod: Any = node.server.store.get("pods", "default", "p")
        gone = dict.fromkeys(pod["metadata"]["annotations"])
        node.server.patch("pods", "p", {"metadata": {"annotations": gone}}, namespace="default")
        other = node.bind("other", 2, lent=())
        await until(lambda: other in told(node))
        assert uid not in told(node)
        assert node.writes() == writes + 1
        assert NODE_LOCK not in node.annotations()


@pytest.mark.needs_compiler
async def test_a_checkpoint_whose_disk_hangs_stops_neither_the_daemon_nor_what_it_writes_on_the_node() -> None:
    async with daemon(runtime_version="containerd://2.4.2") as node:
        await node.kubelet.stop()
        checkpoint = node.kubelet.root / "device-plugins" / CHECKPOINT_NAME
        checkpoint.unlink(missing_ok=True)
        # One who reads it waits until somebody writes.
        os.mkfifo(checkpoint)
        node.bind("past", 1, 2, lent=())
        node.machine(RowsRemapped(gpu=0, pending=True))
        await node.becomes(lambda: node.ill() == {0})
        async with asyncio.timeout(5):
            assert (await node.get("/healthz"))[0] == 200
