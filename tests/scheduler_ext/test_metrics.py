import re
from pathlib import Path

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from proto.devices import DeviceShare, DeviceUUID
from proto.kubernetes.objects import ObjectMeta, ResourceQuota, ResourceQuotaSpec
from scheduler_ext.binding.lock import PodName
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.metric_families import MIB, Seen
from scheduler_ext.metrics import Metrics, Outcome
from scheduler_ext.requests import ResourceNames
from tests.scheduler_ext.gpus import container, device, node, pod
from tests.scheduler_ext.rig import eventually, node_json, running

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics-scheduler.md"
ANSWERS = "topogpu_extender_answers_total"
GPU = {
    "node": "n",
    "device_uuid": "G0",
    "device_index": "0",
    "device_type": "NVIDIA A100-SXM4-40GB",
    "zone": "vGPU",
}


def seen() -> Seen:
    ledger = Ledger()
    ledger.replace_nodes([node("n", [device(0)])])
    hard: dict[str, str | int | float] = {"limits.nvidia.com/gpumem": 8000, "limits.nvidia.com/gpucores": 50}
    ledger.apply_quota(
        ResourceQuota(metadata=ObjectMeta(name="q", namespace="default"), spec=ResourceQuotaSpec(hard=hard))
    )
    share = DeviceShare(uuid=DeviceUUID("G0"), memory_mib=4096, cores=20)
    ledger.reserve("uid-p", pod(container(gpu=1), name="p"), "n", ((share,),), until=1e9)
    return Seen(
        snapshot=ledger.snapshot(),
        holdings=ledger.holdings(),
        names={"uid-p": PodName(namespace="default", name="p")},
        resources=ResourceNames(),
        reservations=ledger.reservations(),
        waiting=2,
        leads=True,
        synced=True,
        problems=0,
    )


def page() -> str:
    metrics = Metrics()
    metrics.answered("filter", Outcome.REFUSED, 0.002)
    metrics.misfits(["2/4 AllocatedCardsInsufficientRequest, 2/4 CardInsufficientMemory"] * 3)
    metrics.misfits(["node unregistered: hami.io/device-cordon", "NodeInsufficientDevice"])
    metrics.lock_waited(0.5)
    metrics.nudged()
    return metrics.exposition(seen()).decode()


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


def test_the_document_lists_every_metric_with_its_labels() -> None:
    """The process's own are Prometheus' everywhere, and left out."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \| ([^|]+) \|$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    told = [(name, kind, tuple(re.findall(r"`(\w+)`", labels)), text) for name, kind, labels, text in rows]
    assert told == [
        (name + "_total" * (family.type == "counter"), family.type, _labels(family), family.documentation)
        for name, family in families(page()).items()
        if not name.startswith("process_")
    ]


def _labels(family: Metric) -> tuple[str, ...]:
    return tuple(label for label in family.samples[0].labels if label not in {"zone", "le"})


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

        await eventually(told)
        assert (await rig.status("/metrics"))[0] == 404
