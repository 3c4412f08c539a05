from dataclasses import replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from deviceplugin.machine.readings import GpuReading, MigReading
from deviceplugin.metrics.telemetry import HOLDER, telemetry_page
from deviceplugin.usage.telemetry import Instance, NodeTelemetry, Quantity, Telemetry, instances_of
from proto.devices import DeviceUUID
from tests.deviceplugin.metrics_view import A, B, training, view

GPU = GpuReading(index=0, uuid=A, name="NVIDIA A100-SXM4-40GB", bus_id="00000000:3B:00.0", minor=2)
OTHER = GpuReading(index=1, uuid=B, name='A "quoted"\\ GPU', bus_id="00000000:5E:00.0")
VALUES = {Quantity.GPU_UTIL: 80.0, Quantity.PCIE_REPLAYS: 3, Quantity.FB_USED: 512}
LABELS = {
    "gpu": "0",
    "UUID": A,
    "pci_bus_id": "00000000:3B:00.0",
    "device": "nvidia2",
    "modelName": "NVIDIA A100-SXM4-40GB",
    "Hostname": "node-1",
    "DCGM_FI_DRIVER_VERSION": "570.86.15",
}
TRAIN = {"namespace": "ml", "pod": "train", "container": "main"}


def page(*gpus: Telemetry, **changed: Any) -> str:
    return telemetry_page(replace(view(), **changed), NodeTelemetry(driver="570.86.15", gpus=gpus), 0.5)


def series(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            found.setdefault(one.name, []).append((dict(one.labels), one.value))
    return found


def test_a_series_has_dcgm_exporters_labels_and_the_container_that_alone_holds_the_gpu() -> None:
    found = series(page(Telemetry(gpu=GPU, values=VALUES)))
    assert found["DCGM_FI_DEV_GPU_UTIL"] == [({**LABELS, **TRAIN}, 80.0)]
    assert found[HOLDER] == [({"UUID": A, **TRAIN}, 1.0)]


def test_names_and_kinds_are_written_as_dcgm_exporter_writes_them() -> None:
    text = page(Telemetry(gpu=GPU, values=VALUES))
    assert "# TYPE DCGM_FI_DEV_PCIE_REPLAY_COUNTER counter\nDCGM_FI_DEV_PCIE_REPLAY_COUNTER{" in text
    assert "# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n" in text
    assert "DCGM_FI_DEV_SM_CLOCK" not in text


def test_a_gpu_that_several_share_is_one_series_and_its_holders_are_listed() -> None:
    pods = {each.metadata.uid: each for each in (training("train"), training("infer"))}
    found = series(page(Telemetry(gpu=GPU, values=VALUES), pods=pods))
    assert found["DCGM_FI_DEV_GPU_UTIL"] == [(LABELS, 80.0)]
    assert sorted(labels["pod"] for labels, _ in found[HOLDER]) == ["infer", "train"]


def test_the_last_xid_is_told_of_gpus_that_are_listened_to() -> None:
    found = series(page(Telemetry(gpu=GPU), Telemetry(gpu=OTHER), xids={A: 79}))
    assert [(labels["gpu"], value) for labels, value in found["DCGM_FI_DEV_XID_ERRORS"]] == [("0", 79)]


def test_a_mig_instance_has_its_own_series_and_holder() -> None:
    devices = tuple(
        MigReading(uuid=DeviceUUID(f"MIG-{ci}"), profile="1c.2g.10gb", gi=3, ci=ci, parent=B) for ci in (0, 1)
    )
    [instance] = instances_of(replace(GPU, mig_devices=devices))
    assert instance == Instance(gi=3, profile="2g.10gb", devices=frozenset({devices[0].uuid, devices[1].uuid}))
    told = Telemetry(
        gpu=GPU, values={Quantity.FB_USED: 900}, instances=(replace(instance, values={Quantity.FB_USED: 7}),)
    )
    found = series(page(told))["DCGM_FI_DEV_FB_USED"]
    assert found == [({**LABELS, **TRAIN}, 900), ({**LABELS, "GPU_I_PROFILE": "2g.10gb", "GPU_I_ID": "3"}, 7)]


def test_a_name_with_anything_in_it_can_be_read_back() -> None:
    [(labels, _)] = series(page(Telemetry(gpu=OTHER, values=VALUES)))["DCGM_FI_DEV_FB_USED"]
    assert (labels["modelName"], labels["device"]) == (OTHER.name, "")
