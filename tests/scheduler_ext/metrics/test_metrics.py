from dataclasses import replace

import msgspec
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from proto.annotations.keys import DEVICES_ALLOCATED, MIG_ALLOCATIONS
from proto.annotations.mig_allocations import MigAllocation, encode_mig_allocations
from proto.devices import DeviceShare, DeviceUUID, MigPlacement
from proto.kubernetes.objects import ObjectMeta, ResourceQuota, ResourceQuotaSpec
from scheduler_ext.cluster.bound import read_bound
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.cluster.records import PodRecord
from scheduler_ext.metrics.counters import Admission, ExtenderMetrics
from scheduler_ext.metrics.families import MIB, MetricsInput
from scheduler_ext.requests import ResourceNames
from scheduler_ext.settings import MetricsDetail
from scheduler_ext.verbs.answer_log import AnswerOutcome
from tests.builders import container, node, node_json, pod
from tests.polling import until
from tests.scheduler_ext.gpus import device
from tests.scheduler_ext.rig import running

ANSWERS = "topogpu_extender_answers_total"
GPU = {
    "node": "n",
    "device_uuid": "G0",
    "device_index": "0",
    "device_type": "NVIDIA A100-SXM4-40GB",
    "zone": "vGPU",
}


def seen() -> MetricsInput:
    ledger = Ledger()
    ledger.replace_nodes([node("n", [device(0)])])
    hard: dict[str, str | int | float] = {"limits.nvidia.com/gpumem": 8000, "limits.nvidia.com/gpucores": 50}
    ledger.quotas.apply(
        ResourceQuota(metadata=ObjectMeta(name="q", namespace="default"), spec=ResourceQuotaSpec(hard=hard))
    )
    share = DeviceShare(uuid=DeviceUUID("G0"), memory_mib=4096, cores=20)
    ledger.reserve("uid-p", pod(container(gpu=1), name="p"), "n", ((share,),), until=1e9)
    return MetricsInput(
        snapshot=ledger.snapshot(),
        records={**ledger.records.every(), "uid-mig": mig_record()},
        names={"uid-p": PodName(namespace="default", name="p")},
        resources=ResourceNames(),
        reservations=1,
        kept=0,
        waiting=2,
        leads=True,
        synced=True,
        problems=0,
    )


def mig_record() -> PodRecord:
    """Of two instances one exists already."""
    place = MigPlacement(start=2, size=2)
    planned = MigAllocation(container=0, device=1, gpu=DeviceUUID("G0"), profile="2g.10gb", placement=place)
    made = msgspec.structs.replace(planned, device=0, mig_uuid="MIG-a", gpu_instance=3, compute_instance=0)
    annotations = {
        DEVICES_ALLOCATED: "G0,NVIDIA,9856,29:G0,NVIDIA,9856,29:;",
        MIG_ALLOCATIONS: encode_mig_allocations((made, planned)),
    }
    found = read_bound(pod(container(gpu=2), annotations=annotations, node_name="n"), ResourceNames())
    assert found is not None
    return found


def page(*, legacy_names: bool = False, detail: MetricsDetail = MetricsDetail.PODS) -> str:
    metrics = ExtenderMetrics()
    metrics.answered("filter", AnswerOutcome.REFUSED, 0.002)
    metrics.misfits(["AllocatedCardsInsufficientRequest 2/4 + CardInsufficientMemory 2/4"] * 3)
    metrics.misfits(["node unregistered: hami.io/device-cordon", "NodeInsufficientDevice"])
    metrics.lock_waited(0.5)
    metrics.requeued()
    metrics.admitted(Admission.DENIED, "QuotaExceeded", 0.002)
    return b"".join(metrics.exposition(replace(seen(), legacy_names=legacy_names, detail=detail))).decode()


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def samples(text: str, name: str) -> list[tuple[dict[str, str], float]]:
    return [(one.labels, one.value) for family in families(text).values() for one in family.samples if one.name == name]


def test_hamis_families_have_its_names_labels_and_units() -> None:
    text = page()
    held = {**GPU, "device_cores": "20"}
    assert samples(text, "hami_gpu_memory_limit_bytes") == [(GPU, 40960 * MIB)]
    assert samples(text, "hami_gpu_core_limit_ratio") == [(GPU, 100)]
    assert samples(text, "hami_gpu_memory_allocated_bytes") == [(held, 4096 * MIB)]
    assert samples(text, "hami_gpu_shared_count") == [(GPU, 1)]
    assert samples(text, "hami_gpu_core_allocated_ratio") == [(GPU, 20)]
    assert samples(text, "hami_node_gpu_overview") == [({**held, "device_memory_limit": "40960"}, 4096 * MIB)]
    assert samples(text, "hami_node_gpu_memory_allocated_ratio") == [(GPU, 0.1)]
    quota = {"namespace": "default", "quota_name": "nvidia.com/gpumem", "zone": "vGPU"}
    assert samples(text, "hami_resource_quota_used")[0] == ({**quota, "limit": "8000"}, 4096)
    assert samples(text, "hami_resource_quota_limit")[0] == (quota, 8000)
    vgpu = {"namespace": "default", "node": "n", "pod": "p", "container_index": "0", "device_uuid": "G0"}
    assert samples(text, "hami_vgpu_memory_allocated_bytes") == [({**vgpu, "zone": "vGPU"}, 4096 * MIB)]
    assert samples(text, "hami_vgpu_core_allocated_ratio") == [({**vgpu, "zone": "vGPU"}, 20)]


def test_a_large_cluster_may_leave_out_what_it_has_most_of() -> None:
    pods, gpus, nodes = (set(families(page(detail=each))) for each in MetricsDetail)
    assert {name for name in pods - gpus if not name.startswith("hami_vgpu")} == {"hami_node_gpu_mig_instance_info"}
    assert {name.split("_gpu")[0] for name in gpus - nodes} == {"hami", "hami_node"}
    text = page(detail=MetricsDetail.NODES)
    assert "G0" not in text
    told = {
        "gpus": 1,
        "memory_limit_bytes": 40960 * MIB,
        "memory_allocated_bytes": 4096 * MIB,
        "core_allocated_ratio": 0.2,
    }
    for name, value in told.items():
        assert samples(text, f"topogpu_node_{name}") == [({"node": "n"}, value)]


def test_whatever_a_node_calls_its_gpus_the_page_can_be_read() -> None:
    odd = 'NVIDIA "A100"\\ 40\nGB'
    ledger = Ledger()
    ledger.replace_nodes([node("n", [replace(device(0), type=odd)])])
    text = b"".join(ExtenderMetrics().exposition(replace(seen(), snapshot=ledger.snapshot()))).decode()
    assert [labels["device_type"] for labels, _ in samples(text, "hami_gpu_shared_count")] == [odd]


def test_legacy_names_stand_beside_the_new_ones_if_asked_for() -> None:
    text = page(legacy_names=True)
    gpu = {
        "nodeid": "n",
        "deviceuuid": "G0",
        "deviceidx": "0",
        "devicetype": "NVIDIA A100-SXM4-40GB",
        "zone": "vGPU",
    }
    held = {**gpu, "devicecores": "20"}
    pod_labels = {"podnamespace": "default", "nodename": "n", "podname": "p", "containeridx": "0", "deviceuuid": "G0"}
    assert samples(text, "GPUDeviceMemoryLimit") == [(gpu, 40960 * MIB)]
    assert samples(text, "GPUDeviceCoreLimit") == [(gpu, 100)]
    assert samples(text, "GPUDeviceMemoryAllocated") == [(held, 4096 * MIB)]
    assert samples(text, "GPUDeviceSharedNum") == [(gpu, 1)]
    assert samples(text, "GPUDeviceCoreAllocated") == [(gpu, 20)]
    assert samples(text, "nodeGPUOverview") == [({**held, "devicememorylimit": "40960"}, 4096 * MIB)]
    assert samples(text, "nodeGPUMemoryPercentage") == [(gpu, 0.1)]
    quota = {"quotanamespace": "default", "quotaName": "nvidia.com/gpumem", "limit": "8000", "zone": "vGPU"}
    assert samples(text, "QuotaUsed")[0] == (quota, 4096)
    assert samples(text, "vGPUMemoryAllocated") == [({**pod_labels, "zone": "vGPU"}, 4096 * MIB)]
    assert samples(text, "vGPUCoreAllocated") == [({**pod_labels, "zone": "vGPU"}, 20)]
    assert set(families(page())) < set(families(text))


def test_mig_instances_are_told_once_their_daemon_has_made_them() -> None:
    labels = {
        "node": "n",
        "device_uuid": "G0",
        "device_index": "0",
        "mig_uuid": "MIG-a",
        "profile": "2g.10gb",
        "gpu_instance_id": "3",
        "compute_instance_id": "0",
        "placement_start": "2",
        "placement_size": "2",
        "zone": "vGPU",
    }
    assert samples(page(), "hami_node_gpu_mig_instance_info") == [(labels, 1)]
    legacy = {"nodeid": "n", "deviceuuid": "G0", "deviceidx": "0", "migname": "MIG-a", "zone": "vGPU"}
    assert samples(page(legacy_names=True), "nodeGPUMigInstance") == [(legacy, 1)]


def test_failures_are_counted_by_word() -> None:
    failures = samples(page(), "topogpu_fit_failures_total")
    assert {labels["reason"]: value for labels, value in failures} == {
        "AllocatedCardsInsufficientRequest": 3,
        "CardInsufficientMemory": 3,
        "NodeUnregistered": 1,
        "NodeInsufficientDevice": 1,
    }


def test_the_extenders_own_state_is_told() -> None:
    text = page()
    assert samples(text, ANSWERS) == [({"verb": "filter", "outcome": "refused"}, 1)]
    assert samples(text, "topogpu_extender_call_duration_seconds_count") == [({"verb": "filter"}, 1)]
    assert samples(text, "topogpu_node_lock_wait_duration_seconds_sum") == [({}, 0.5)]
    for name, value in (("reservations", 1), ("waiting_pods", 2), ("leader", 1), ("nudges_total", 1)):
        assert samples(text, f"topogpu_{name}") == [({}, value)]


async def test_metrics_are_served_on_a_port_of_their_own() -> None:
    async with running(node_json("a")) as rig:
        pod = rig.add_pod("p")
        await rig.filter(pod, "a")
        assert await rig.bind(pod, "a") == ""

        async def told() -> bool:
            async with rig.http.get(rig.metrics_url + "/metrics") as response:
                text = await response.text()
            held = [value for labels, value in samples(text, "hami_vgpu_memory_allocated_bytes")]
            answers = {(labels["verb"], labels["outcome"]) for labels, _ in samples(text, ANSWERS)}
            return held == [1000 * MIB] and answers == {("filter", "ok"), ("bind", "ok")}

        await until(told)
        assert (await rig.status("/metrics"))[0] == 404
