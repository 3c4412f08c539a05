from dataclasses import replace

from deviceplugin.usage.cgroups import CgroupOwner
from deviceplugin.usage.shared_region import Region, RegionDevice
from deviceplugin.usage.used import GpuProcess, GpuSample, NodeSample, VgpuUsage, node_usage
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.devices import DeviceUUID
from proto.kubernetes.objects import (
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    Pod,
)
from tests.builders import container, pod

MIB = 1 << 20
A, B = DeviceUUID("GPU-a"), DeviceUUID("GPU-b")
INDICES = {A: 0, B: 1}
MAIN, SIDE = "1" * 64, "2" * 64


def decided(
    allocated: str, *names: str, ids: tuple[str, ...] = (MAIN, SIDE), phase: str = "Running", init: int = 0
) -> Pod:
    """A pod named for its first container; the first `init` of `names` are init containers."""
    containers = [container(name) for name in names]
    return pod(
        *containers[init:],
        inits=containers[:init],
        name=names[0],
        namespace="ml",
        annotations={DEVICES_ALLOCATED: allocated},
        phase=phase,
        statuses=[
            ContainerStatus(name=name, container_id=f"containerd://{identifier}" if identifier else "")
            for name, identifier in zip(names, ids, strict=False)
        ],
    )


def gpu(uuid: DeviceUUID, *processes: tuple[int, int | None, int | None]) -> GpuSample:
    return GpuSample(
        uuid=uuid,
        memory_total_bytes=40_960 * MIB,
        processes=tuple(GpuProcess(pid=pid, used_bytes=used, sm_percent=sm) for pid, used, sm in processes),
    )


def row(container: str, uuid: DeviceUUID, **facts: object) -> VgpuUsage:
    plain = VgpuUsage(
        namespace="ml",
        pod=container,
        container=container,
        position=0,
        uuid=uuid,
        memory_limit_bytes=3000 * MIB,
        core_limit_percent=30,
        memory_used_bytes=0,
        busy_percent=0,
        pod_uid=f"uid-{container}",
    )
    return replace(plain, **{"peak_percent": facts.get("busy_percent", 0), **facts})  # type: ignore[arg-type]


def test_a_containers_use_is_the_sum_over_its_processes() -> None:
    owner = CgroupOwner("uid-main", MAIN)
    sample = NodeSample(gpus=(gpu(A, (10, 100, 5), (11, 200, 7)),), owners={10: owner, 11: owner})
    usage = node_usage([decided("GPU-a,NVIDIA,3000,30:;", "main")], sample, INDICES)
    assert usage.vgpus == (row("main", A, memory_used_bytes=300, busy_percent=12),)
    assert usage.foreign_bytes == {A: 0}


def test_containers_of_one_pod_on_one_gpu_are_told_apart_by_their_ids() -> None:
    shared = decided("GPU-a,NVIDIA,3000,30:;GPU-a,NVIDIA,1000,0:;", "main", "side")
    sample = NodeSample(
        gpus=(gpu(A, (10, 100, 5), (11, 200, 7)),),
        owners={10: CgroupOwner("uid-main", MAIN), 11: CgroupOwner("uid-main", SIDE)},
    )
    main, side = node_usage([shared], sample, INDICES).vgpus
    assert (main.memory_used_bytes, side.memory_used_bytes) == (100, 200)
    assert (side.container, side.memory_limit_bytes, side.core_limit_percent) == ("side", 1000 * MIB, 0)


def test_a_container_too_new_for_its_pods_status_is_known_by_being_the_only_one() -> None:
    sample = NodeSample(gpus=(gpu(A, (10, 100, 5)),), owners={10: CgroupOwner("uid-main", MAIN)})
    fresh = decided("GPU-a,NVIDIA,3000,30:;;", "main", "side", ids=("", ""))
    assert node_usage([fresh], sample, INDICES).vgpus[0].memory_used_bytes == 100


def test_memory_of_the_host_and_of_a_pod_that_does_not_hold_the_gpu_is_foreign() -> None:
    sample = NodeSample(
        gpus=(gpu(A, (10, 100, 5), (11, 200, 7), (12, None, 1)), gpu(B)),
        owners={11: CgroupOwner("uid-main", MAIN)},
    )
    usage = node_usage([decided("GPU-b,NVIDIA,3000,30:;", "main")], sample, INDICES)
    assert usage.foreign_bytes == {A: 300, B: 0}
    assert usage.vgpus == (row("main", B),)


def test_gpus_of_a_container_are_counted_by_nvml_index() -> None:
    usage = node_usage([decided("GPU-b,NVIDIA,3000,30:GPU-a,NVIDIA,3000,30:;", "main")], NodeSample(), INDICES)
    assert [(vgpu.position, vgpu.uuid) for vgpu in usage.vgpus] == [(0, A), (1, B)]


def test_a_share_without_a_size_is_the_whole_gpu() -> None:
    usage = node_usage([decided("GPU-a,NVIDIA,0,0:;", "main")], NodeSample(gpus=(gpu(A),)), INDICES)
    assert usage.vgpus[0].memory_limit_bytes == 40_960 * MIB


def test_what_the_driver_keeps_to_itself_is_taken_from_the_region() -> None:
    account = RegionDevice(
        uuid=A,
        limit_bytes=1,
        core_limit_percent=30,
        context_bytes=1,
        module_bytes=2,
        buffer_bytes=3,
        total_bytes=7,
        utilization_percent=9,
    )
    stranger = replace(account, uuid=DeviceUUID("GPU-invented"))
    region = Region(version="1.2", devices=(account, stranger), last_kernel_unix_seconds=50)
    sample = NodeSample(
        gpus=(gpu(A, (10, None, None)),),
        owners={10: CgroupOwner("uid-main", MAIN)},
        regions={("uid-main", "main"): region},
    )
    usage = node_usage([decided("GPU-a,NVIDIA,3000,30:;", "main")], sample, INDICES)
    expected = row("main", A, memory_used_bytes=7, busy_percent=9, region=account, last_kernel_unix_seconds=50)
    assert usage.vgpus == (expected,)


def test_nobodys_use_is_unknown_where_the_driver_lists_no_processes() -> None:
    sample = NodeSample(gpus=(GpuSample(uuid=A),))
    usage = node_usage([decided("GPU-a,NVIDIA,3000,30:;", "main")], sample, INDICES)
    assert usage.vgpus == (row("main", A, memory_used_bytes=None, busy_percent=None),)
    assert usage.foreign_bytes == {}


def test_the_slot_of_a_gpu_in_mig_mode_is_no_part_of_its_uuid() -> None:
    usage = node_usage([decided("GPU-a[1-2],NVIDIA,3000,30:;", "main")], NodeSample(), INDICES)
    assert usage.vgpus[0].uuid == A


def test_ended_pods_and_containers_hold_nothing() -> None:
    over = decided("GPU-a,NVIDIA,3000,30:;", "main", phase="Succeeded")
    done = decided("GPU-a,NVIDIA,3000,30:;GPU-a,NVIDIA,3000,30:;", "setup", "train", init=1)
    done.status.init_container_statuses[0].state = ContainerState(terminated=ContainerStateTerminated())
    assert [vgpu.container for vgpu in node_usage([over, done], NodeSample(), INDICES).vgpus] == ["train"]


def test_a_pod_that_cannot_be_read_is_counted_and_the_rest_is_reported() -> None:
    pods = [decided("nonsense", "bad"), decided("GPU-a,NVIDIA,3000,30:;", "main")]
    usage = node_usage(pods, NodeSample(), INDICES)
    assert usage.unreadable_pods == 1
    assert [vgpu.pod for vgpu in usage.vgpus] == ["main"]
