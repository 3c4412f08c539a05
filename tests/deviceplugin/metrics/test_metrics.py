import re
from dataclasses import replace

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from deviceplugin.metrics.metrics import Metrics
from deviceplugin.metrics.series import MOST_VGPUS
from proto.build import BUILD_LABELS, build_labels
from tests.deviceplugin.metrics_view import MIB, NOW, busy_metrics, page, sample, training, view

VGPU = {
    "namespace": "ml",
    "pod": "train",
    "container": "main",
    "vdevice_index": "0",
    "device_uuid": "GPU-a",
    "zone": "vGPU",
}
GPU = {"device_index": "0", "device_uuid": "GPU-a", "device_type": "NVIDIA A100-SXM4-40GB", "zone": "vGPU"}
UNBOUNDED = {"pid", "container_id", "pod_uid", "uid", "error", "message", "address", "timestamp"}
OTHER_UNITS = ("_ms", "_milliseconds", "_minutes", "_hours", "_mib", "_mb", "_kb", "_gb", "_percent", "_milliwatts")
NOT_OURS = ("process_", "hami_")


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def samples(text: str, name: str) -> list[tuple[dict[str, str], float]]:
    return [(one.labels, one.value) for family in families(text).values() for one in family.samples if one.name == name]


def test_every_family_has_a_good_name_a_type_and_help() -> None:
    for name, family in families(page()).items():
        assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name)
        assert name.startswith(("hami_", "topogpu_", "process_"))
        assert family.documentation.endswith(".")
        assert family.type in {"gauge", "counter", "histogram"}


def test_counters_and_nothing_else_end_in_total() -> None:
    for family in families(page()).values():
        totals = {one.name for one in family.samples if one.name.endswith("_total")}
        assert bool(totals) == (family.type == "counter"), family.name
        assert not family.name.endswith(("_count", "_sum", "_bucket", "_info")) or family.name.startswith("hami_")
        assert family.type not in family.name


def test_units_are_the_base_ones() -> None:
    for name, family in families(page()).items():
        assert not name.endswith(OTHER_UNITS)
        if family.type == "histogram":
            assert name.endswith("_seconds")


def test_ratios_of_ours_run_from_0_to_1() -> None:
    for name, family in families(page()).items():
        if name.endswith("_ratio") and not name.startswith(NOT_OURS):
            assert all(0 <= one.value <= 1 for one in family.samples)


def test_labels_are_snake_case_and_bounded() -> None:
    for family in families(page()).values():
        for one in family.samples:
            assert all(re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", label) for label in one.labels)
            assert not UNBOUNDED & one.labels.keys()


def test_no_series_is_told_twice_and_none_says_when_it_began() -> None:
    lines = [line.rsplit(" ", 1)[0] for line in page().splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines))
    assert not [line for line in lines if "_created" in line]


def test_a_kernel_that_a_tenant_dates_to_the_future_was_launched_now() -> None:
    ((who, region),) = sample().regions.items()
    ahead = replace(sample(), regions={who: replace(region, last_kernel_unix_seconds=int(NOW) + 3_155_760_000)})
    text = busy_metrics().exposition(view(), ahead, 0.5).decode()
    assert samples(text, "hami_container_last_kernel_elapsed_seconds") == [(VGPU, 0)]


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("hami_host_gpu_memory_used_bytes", {"node": "node-1", **GPU}, 512 * MIB),
        ("hami_host_gpu_utilization_ratio", {"node": "node-1", **GPU}, 80),
        ("hami_host_gpu_memory_controller_utilization_ratio", GPU, 25),
        ("hami_host_gpu_temperature_celsius", {"node": "node-1", **GPU}, 71),
        ("hami_host_gpu_power_usage_watts", {"node": "node-1", **GPU}, 312.5),
        ("hami_vgpu_memory_used_bytes", VGPU, 400 * MIB),
        ("hami_vgpu_memory_limit_bytes", VGPU, 3000 * MIB),
        ("hami_container_device_utilization_ratio", VGPU, 60),
        ("hami_container_device_memory_bytes", VGPU, 123),
        ("hami_vgpu_memory_context_bytes", VGPU, 100),
        ("hami_vgpu_memory_module_bytes", VGPU, 20),
        ("hami_vgpu_memory_buffer_bytes", VGPU, 3),
        ("hami_container_last_kernel_elapsed_seconds", VGPU, 10),
    ],
)
def test_hamis_families_have_its_names_and_labels(name: str, labels: dict[str, str], value: float) -> None:
    assert samples(page(), name) == [(labels, value)]


def test_build_info_has_hamis_labels() -> None:
    ((labels, value),) = samples(page(), "hami_build_info")
    assert (sorted(labels), value) == (
        ["build_date", "compiler", "go_version", "platform", "revision", "version"],
        1,
    )


def test_the_image_says_what_it_was_built_of() -> None:
    told = build_labels({"TOPOGPU_REVISION": "0a1b2c", "TOPOGPU_BUILD_DATE": "2030-01-02T03:04:05Z"})
    outside = dict(zip(BUILD_LABELS, build_labels({}), strict=True))
    assert dict(zip(BUILD_LABELS, told, strict=True)) == outside | {
        "revision": "0a1b2c",
        "build_date": "2030-01-02T03:04:05Z",
    }
    assert (outside["revision"], outside["build_date"]) == ("", "")


def test_the_daemons_own_state_is_told() -> None:
    text = page()
    gpu_a, gpu_b = ({"device_index": "0", "device_uuid": "GPU-a"}, {"device_index": "1", "device_uuid": "GPU-b"})
    assert samples(text, "topogpu_gpu_healthy") == [(gpu_a, 1), (gpu_b, 0)]
    assert samples(text, "topogpu_gpu_nvlinks_active") == [(gpu_a, 11)]
    assert samples(text, "topogpu_gpu_foreign_memory_used_bytes") == [(gpu_a, 64 * MIB)]
    assert samples(text, "topogpu_vgpu_core_limit_ratio")[0][1] == 0.3
    assert samples(text, "topogpu_kubelet_registered") == [({}, 1)]
    assert samples(text, "topogpu_node_last_report_timestamp_seconds") == [({}, NOW)]
    assert samples(text, "topogpu_watch_age_seconds") == [({"resource": "pods"}, 0)]
    assert samples(text, "topogpu_node_patches_total") == [({"outcome": "ok"}, 1), ({"outcome": "failed"}, 1)]
    done = {"call": "Allocate", "outcome": "ok", "strategy": "slots"}
    assert samples(text, "topogpu_allocations_total") == [(done, 1)]
    assert samples(text, "topogpu_kubelet_call_duration_seconds_count") == [({"call": "Allocate"}, 1)]


def test_what_is_not_known_has_no_series() -> None:
    text = Metrics(now=lambda: NOW).exposition(view(), None, None).decode()
    assert samples(text, "hami_host_gpu_memory_used_bytes") == []
    assert samples(text, "topogpu_sample_age_seconds") == []
    assert [value for _, value in samples(text, "topogpu_gpu_healthy")] == [1, 0]


def test_more_shares_than_anybody_reads_are_counted_instead_of_told() -> None:
    crowd = view(*(training(f"train-{number}") for number in range(MOST_VGPUS + 3)))
    text = busy_metrics().exposition(crowd, replace(sample(), owners={}), 0.0).decode()
    assert len(samples(text, "hami_vgpu_memory_limit_bytes")) == MOST_VGPUS
    assert samples(text, "topogpu_vgpus_dropped") == [({}, 3)]
