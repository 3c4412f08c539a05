"""What each release writes, and the next must still read: one file a release, and none is ever edited."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.allocation.decision import decided_devices
from deviceplugin.container.edits import ContainerFacts, cache_directory
from deviceplugin.node.desired import patch_of
from deviceplugin.node.registration import Offer, registration
from deviceplugin.records.holdings import Holding
from deviceplugin.settings import HamiScheduler
from deviceplugin.slots.proof import Evidence, ProvenPod, prove_slot
from proto import __version__
from proto.annotations import keys
from proto.annotations.mig_allocations import decode_mig_allocations, mig_allocations
from proto.annotations.node_allocation import AllocationMode
from proto.annotations.node_limits import NodeLimits
from proto.annotations.node_lock import BindPhase, NodeLock, decode_lock, decode_lock_uid, encode_lock, encode_lock_uid
from proto.annotations.node_register import decode_register, decode_scores
from proto.devices import Device, DeviceShare, DeviceUUID, MigInstance, MigPlacement, MigProfile, PodShares
from proto.kubernetes.objects import Container, Node, NodeStatus, ObjectMeta, Pod, PodSpec, PodStatus, Resources
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.verbs.bind_decision import binding_of
from tests.deviceplugin.slots.slot_rig import as_recorded

GOLDEN = Path(__file__).parent / "data" / "golden"
NOW = datetime(2030, 1, 1, tzinfo=UTC)
A = DeviceUUID("GPU-aaaaaaaa-0000-0000-0000-000000000000")
B = DeviceUUID("GPU-bbbbbbbb-0000-0000-0000-000000000000")
PLACES = (MigPlacement(start=0, size=2), MigPlacement(start=2, size=2))
PROFILE = MigProfile(name="2g.10gb", memory_mib=9856, cores=28, slice_count=2, placements=PLACES)
MODEL = "NVIDIA A100-SXM4-40GB"
DEVICES = (
    Device(
        uuid=A, index=0, replicas=10, memory_mib=40960, cores=100, type=MODEL, numa=0, mode="hami-core", healthy=True
    ),
    Device(
        uuid=B,
        index=1,
        replicas=7,
        memory_mib=40960,
        cores=100,
        type=MODEL,
        numa=1,
        mode="mig",
        healthy=False,
        mig_profiles=(PROFILE,),
    ),
)
SCORES = {A: {B: 210}, B: {A: 210}}
INSTANCE = MigInstance(profile="2g.10gb", placement=PLACES[1])
SHARES: PodShares = (
    (),
    (DeviceShare(uuid=A, memory_mib=3000, cores=30),),
    (DeviceShare(uuid=B, memory_mib=9856, cores=28, instance=INSTANCE),),
)
LOCK = NodeLock(taken_at=NOW, namespace="ml", pod="train")


def written() -> dict[str, Any]:
    """All that this version leaves where a later one finds it: on Nodes, on pods, and on a node's disk."""
    lock = encode_lock(LOCK)
    pod = binding_of(PodName(namespace="ml", name="train"), "uid-1", "n", SHARES, NOW, phase=BindPhase.ALLOCATING)
    return {
        "node": {str(scheduler): _reported(scheduler) for scheduler in HamiScheduler},
        "lock": {keys.NODE_LOCK: lock, keys.NODE_LOCK_UID: encode_lock_uid(lock, "uid-1")},
        "pod": pod.metadata.annotations,
        "region": cache_directory("/usr/local", ContainerFacts(pod_uid="uid-1", name="main")),
    }


def _reported(scheduler: HamiScheduler) -> Any:
    offer = Offer(devices=DEVICES, scores=SCORES, mode=AllocationMode.SLOTS, limits=NodeLimits.HAMI_CORE)
    patch = patch_of(Node(), registration(Node(), offer, scheduler, now=NOW), NOW)
    assert patch is not None
    metadata: Any = patch.body["metadata"]
    return metadata["annotations"]


def golden(release: str) -> Any:
    return json.loads((GOLDEN / f"{release}.json").read_text(encoding="utf-8"))


def bound_pod(annotations: dict[str, str]) -> Pod:
    asking = Resources(limits={keys.RESOURCE_COUNT: "1"})
    containers = [
        Container(name="init"),
        Container(name="main", resources=asking),
        Container(name="m", resources=asking),
    ]
    return Pod(
        metadata=ObjectMeta(name="train", namespace="ml", uid="uid-1", annotations=annotations),
        spec=PodSpec(node_name="n", init_containers=containers[:1], containers=containers[1:]),
        status=PodStatus(phase="Running"),
    )


RELEASES = sorted(path.stem for path in GOLDEN.glob("*.json"))


def test_this_version_writes_what_its_golden_file_holds() -> None:
    """A change of a format gets a new version and a file of its own, beside those of the versions before."""
    assert json.loads(json.dumps(written())) == {key: golden(__version__)[key] for key in written()}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("scheduler", HamiScheduler)
def test_the_node_of_an_earlier_daemon_is_read(release: str, scheduler: HamiScheduler) -> None:
    annotations = golden(release)["node"][scheduler]
    devices, scores = decode_register(annotations[keys.NODE_REGISTER]), decode_scores(annotations[keys.NODE_SCORE])
    assert [(gpu.uuid, gpu.memory_mib, gpu.healthy) for gpu in devices] == [(A, 40960, True), (B, 40960, False)]
    assert scores == SCORES
    if not scheduler.asks:
        assert devices == DEVICES


@pytest.mark.parametrize("release", RELEASES)
def test_the_pod_of_an_earlier_extender_is_served_and_counted(release: str) -> None:
    pod = bound_pod(golden(release)["pod"])
    served = decided_devices(pod, keys.DEVICES_ALLOCATED, keys.RESOURCE_COUNT)
    assert [[(share.uuid, share.memory_mib, share.cores) for share in held] for held in served] == [
        [(share.uuid, share.memory_mib, share.cores) for share in held] for held in SHARES
    ]
    assert decode_mig_allocations(pod.metadata.annotations[keys.MIG_ALLOCATIONS]) == mig_allocations(SHARES)
    ledger = Ledger()
    metadata = ObjectMeta(name="n", annotations=golden(release)["node"]["off"])
    ledger.replace_nodes([Node(metadata=metadata, status=NodeStatus(allocatable={keys.RESOURCE_COUNT: "20"}))])
    ledger.replace_pods([pod])
    used = {gpu.device.uuid: (gpu.replicas, gpu.memory_mib, gpu.cores) for gpu in ledger.snapshot().nodes["n"].gpus}
    assert used == {A: (1, 3000, 30), B: (1, 9856, 28)}


@pytest.mark.parametrize("release", RELEASES)
def test_the_lock_of_an_earlier_extender_is_its_pods(release: str) -> None:
    lock = golden(release)["lock"]
    assert decode_lock(lock[keys.NODE_LOCK]) == LOCK
    assert decode_lock_uid(lock[keys.NODE_LOCK], lock[keys.NODE_LOCK_UID]) == "uid-1"


@pytest.mark.parametrize("release", RELEASES)
def test_running_containers_find_their_slot_under_the_name_they_were_given(release: str) -> None:
    """Kubelet's checkpoint has it."""
    slot, pod = golden(release)["slot"], bound_pod(golden(release)["pod"])
    held = Holding(
        pod_uid="uid-1",
        container_name="main",
        resource_name=keys.RESOURCE_COUNT,
        device_ids={"-1": slot["ids"][:1]},
        answer=as_recorded(slot["name"]),
    )
    inventory = {device.uuid: replace(device, healthy=True) for device in DEVICES}
    evidence = Evidence(
        node="n", resource=keys.RESOURCE_COUNT, pods=(pod,), inventory=inventory, listed=None, recorded=(held,)
    )
    answer = prove_slot(frozenset(slot["ids"][:1]), evidence)
    assert isinstance(answer, ProvenPod)
    assert [each.name for each in answer.slots] == [slot["name"]]
