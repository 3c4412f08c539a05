"""A daemon with everything to show: two GPUs, a pod with a region, and one of each happening."""

from deviceplugin.metrics.metrics import KubeletCall, Metrics, Outcome
from deviceplugin.metrics.view import DaemonView
from deviceplugin.usage.cgroups import CgroupOwner
from deviceplugin.usage.shared_region import Region, RegionDevice
from deviceplugin.usage.used import GpuProcess, GpuSample, NodeSample
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.devices import Device, DeviceUUID
from proto.kubernetes.objects import ContainerStatus, Pod
from tests.builders import container, pod

NOW = 2_000_000_000.0
MIB = 1 << 20
A, B = DeviceUUID("GPU-a"), DeviceUUID("GPU-b")
MAIN = "1" * 64


def device(uuid: DeviceUUID, index: int, *, healthy: bool = True) -> Device:
    return Device(
        uuid=uuid,
        index=index,
        replicas=10,
        memory_mib=40_960,
        cores=100,
        type="NVIDIA A100-SXM4-40GB",
        numa=0,
        mode="hami-core",
        healthy=healthy,
    )


def training(name: str = "train") -> Pod:
    return pod(
        container("main"),
        name=name,
        namespace="ml",
        annotations={DEVICES_ALLOCATED: "GPU-a,NVIDIA,3000,30:;"},
        phase="Running",
        statuses=[ContainerStatus(name="main", container_id=f"containerd://{MAIN}")],
    )


def view(*pods: Pod) -> DaemonView:
    return DaemonView(
        node_name="node-1",
        devices=(device(A, 0), device(B, 1, healthy=False)),
        pods={each.metadata.uid: each for each in pods or (training(),)},
        pods_known=True,
        mode_known=True,
        registered=True,
        gpus_known=True,
    )


def sample() -> NodeSample:
    account = RegionDevice(
        uuid=A,
        limit_bytes=3000 * MIB,
        core_limit_percent=30,
        context_bytes=100,
        module_bytes=20,
        buffer_bytes=3,
        total_bytes=123,
        utilization_percent=9,
    )
    return NodeSample(
        gpus=(
            GpuSample(
                uuid=A,
                memory_total_bytes=40_960 * MIB,
                memory_used_bytes=512 * MIB,
                busy_percent=80,
                memory_busy_percent=25,
                temperature_celsius=71,
                power_watts=312.5,
                nvlinks=12,
                nvlinks_active=11,
                processes=(
                    GpuProcess(pid=10, used_bytes=400 * MIB, sm_percent=60),
                    GpuProcess(pid=11, used_bytes=64 * MIB, sm_percent=20),
                ),
            ),
        ),
        owners={10: CgroupOwner("uid-train", MAIN)},
        regions={
            ("uid-train", "main"): Region(version="1.2", devices=(account,), last_kernel_unix_seconds=1_999_999_990)
        },
    )


def busy_metrics() -> Metrics:
    metrics = Metrics(now=lambda: NOW)
    metrics.called(KubeletCall.ALLOCATE, 0.004)
    metrics.allocated(KubeletCall.ALLOCATE, Outcome.OK, "slots")
    metrics.registered(True)
    metrics.reported(True)
    metrics.reported(False)
    metrics.saw("pods")
    metrics.health_event("xid")
    metrics.eviction("evicted")
    metrics.memory_limit("set")
    metrics.nvml_read("usage", 0.01)
    return metrics


def page() -> str:
    return busy_metrics().exposition(view(), sample(), 0.5).decode()
