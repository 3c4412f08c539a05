from datetime import UTC, datetime

from proto.annotations import keys
from proto.annotations.node_lock import BindPhase
from proto.devices import ContainerShares, DeviceShare, DeviceUUID, MigInstance, MigPlacement
from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.verbs.bind_decision import binding_of

T0 = datetime(2030, 1, 1, tzinfo=UTC)
ALLOCATING = BindPhase.ALLOCATING


def annotations(*containers: ContainerShares) -> dict[str, str]:
    return binding_of(
        PodName(namespace="ns", name="p"), "uid-p", "n", containers, T0, phase=ALLOCATING
    ).metadata.annotations


def test_a_decision_is_written_whole_and_only_once() -> None:
    assert annotations((DeviceShare(uuid=DeviceUUID("G0"), memory_mib=1000, cores=10),), ()) == {
        keys.POD_NODE: "n",
        keys.POD_TIME: "1893456000",
        keys.DEVICES_TO_ALLOCATE: "G0,NVIDIA,1000,10:;;",
        keys.DEVICES_ALLOCATED: "G0,NVIDIA,1000,10:;;",
        keys.BIND_PHASE: "allocating",
        keys.BIND_TIME: "1893456000",
    }


def test_mig_instances_are_written_beside_the_devices() -> None:
    instance = MigInstance(profile="2g.10gb", placement=MigPlacement(start=2, size=2))
    share = DeviceShare(uuid=DeviceUUID("G1"), memory_mib=9856, cores=29, instance=instance)
    written = annotations((), (share,))
    assert written[keys.DEVICES_ALLOCATED] == ";G1,NVIDIA,9856,29:;"
    assert written[keys.MIG_ALLOCATIONS] == (
        '[{"containerIndex":1,"deviceIndex":0,"gpuUUID":"G1","profile":"2g.10gb","placement":{"start":2,"size":2}}]'
    )


def test_a_pod_without_gpus_is_bound_without_annotations() -> None:
    assert (
        binding_of(PodName(namespace="ns", name="p"), "u", "n", None, T0, phase=ALLOCATING).metadata.annotations == {}
    )
