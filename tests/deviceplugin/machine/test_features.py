import json
import re
from dataclasses import replace as replace_fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deviceplugin.machine.discovery import NodeSharing
from deviceplugin.machine.features import feature_labels, label_value
from deviceplugin.machine.readings import GpuReading, MachineReading
from deviceplugin.node.labels import FEATURE_LABEL
from proto.annotations.keys import NODE_CLIQUE as CLIQUE
from proto.devices import DeviceUUID
from simulation.machines import load
from simulation.machines.described import describe_reading
from simulation.machines.description import MachineDescription, MigDevice

GOLDEN = json.loads((Path(__file__).parents[2] / "data/feature-labels.json").read_text())
"""Of each described machine whose GPUs four containers share, by the rules of GPU feature discovery 0.20."""
DGX = load("dgxa100-8x-a100-40g")
SMALL, LARGE = MigDevice("1g.5gb", 4864, 7, 0), MigDevice("3g.20gb", 20096, 1, 0)
VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def cut(*devices: tuple[MigDevice, ...]) -> MachineDescription:
    """The first GPUs of a DGX A100, with these MIG devices."""
    gpus = tuple(replace(gpu, mig="enabled", mig_devices=each) for gpu, each in zip(DGX.gpus, devices, strict=False))
    return replace(DGX, gpus=gpus)


def labels_of(machine: MachineDescription, sharing: NodeSharing) -> dict[str, str]:
    return dict(feature_labels(describe_reading(machine), sharing))


def of_gpus(labels: dict[str, str], resource: str = "nvidia.com/gpu") -> dict[str, str]:
    return {name.removeprefix(f"{resource}."): value for name, value in labels.items() if name.startswith(resource)}


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_a_machine_has_the_labels_that_gpu_feature_discovery_gives_it(name: str) -> None:
    assert labels_of(load(name), NodeSharing(split_count=4)) == GOLDEN[name]


def test_every_name_is_one_that_the_admission_policy_lets_pass_and_every_value_is_a_labels() -> None:
    several = [labels_of(cut((SMALL, LARGE)), NodeSharing(mig_strategy=each)) for each in ("none", "single", "mixed")]
    for labels in (*GOLDEN.values(), *several):
        assert all(re.match(FEATURE_LABEL, name) for name in labels)
        assert all(VALUE.fullmatch(value) for value in labels.values()), labels


@given(st.text(max_size=100))
def test_any_text_becomes_a_labels_value(text: str) -> None:
    assert VALUE.fullmatch(label_value(text)), label_value(text)


def test_gpus_that_one_container_has_at_a_time_are_not_called_shared() -> None:
    labels = of_gpus(labels_of(DGX, NodeSharing(split_count=1)))
    assert (labels["product"], labels["replicas"], labels["sharing-strategy"]) == ("NVIDIA-A100-SXM4-40GB", "1", "none")


def test_mps_is_a_strategy_of_its_own() -> None:
    labels = labels_of(DGX, NodeSharing(split_count=4, mode="mps"))
    assert labels["nvidia.com/mps.capable"] == "true"
    assert of_gpus(labels)["sharing-strategy"] == "mps"


def test_under_strategy_none_a_gpu_with_mig_on_is_a_gpu_that_is_not_shared() -> None:
    labels = of_gpus(labels_of(cut((SMALL,)), NodeSharing(split_count=4)))
    assert (labels["product"], labels["count"], labels["replicas"]) == ("NVIDIA-A100-SXM4-40GB", "1", "0")


def test_under_strategy_single_the_labels_of_gpus_tell_of_mig_devices() -> None:
    labels = labels_of(cut((SMALL, SMALL), (SMALL,)), NodeSharing(split_count=4, mig_strategy="single"))
    assert labels["nvidia.com/mig.strategy"] == "single"
    assert of_gpus(labels) == {
        "product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
        "count": "3",
        "replicas": "1",
        "sharing-strategy": "none",
        "memory": "4864",
        "family": "ampere",
        "compute.major": "8",
        "compute.minor": "0",
        "machine": "unknown",
        "mode": "compute",
        "multiprocessors": "14",
        "slices.gi": "1",
        "slices.ci": "1",
        "engines.copy": "1",
        "engines.decoder": "0",
        "engines.encoder": "0",
        "engines.jpeg": "0",
        "engines.ofa": "0",
    }


@pytest.mark.parametrize("devices", [((SMALL, LARGE),), ((SMALL,), ()), ((),)])
def test_under_strategy_single_devices_that_are_not_alike_are_called_invalid(
    devices: tuple[tuple[MigDevice, ...], ...],
) -> None:
    labels = of_gpus(labels_of(cut(*devices), NodeSharing(mig_strategy="single")))
    told = {name: labels[name] for name in ("product", "count", "replicas", "sharing-strategy", "memory")}
    assert told == {
        "product": "NVIDIA-A100-SXM4-40GB-MIG-INVALID",
        "count": "0",
        "replicas": "0",
        "sharing-strategy": "",
        "memory": "0",
    }


def test_under_strategy_mixed_every_profile_has_labels_beside_those_of_gpus() -> None:
    extra = MigDevice("1g.10gb+me", 9856, 9, 0)
    labels = labels_of(cut((SMALL, extra, SMALL)), NodeSharing(split_count=4, mig_strategy="mixed"))
    small, with_engines = (of_gpus(labels, f"nvidia.com/mig-{each}") for each in ("1g.5gb", "1g.10gb.me"))
    assert (small["product"], small["count"]) == ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "2")
    assert (with_engines["product"], with_engines["memory"]) == ("NVIDIA-A100-SXM4-40GB-MIG-1g.10gb.me", "9856")
    assert labels["nvidia.com/mig.strategy"] == "mixed"


def test_of_several_models_the_one_there_is_most_of_is_told() -> None:
    def gpu(index: int, name: str) -> GpuReading:
        return GpuReading(index=index, uuid=DeviceUUID(f"GPU-{index}"), name=name, bus_id="")

    def told(*models: str) -> tuple[str, str]:
        machine = MachineReading(gpus=tuple(gpu(index, name) for index, name in enumerate(models)))
        labels = feature_labels(machine, NodeSharing(split_count=1))
        return labels["nvidia.com/gpu.product"], labels["nvidia.com/gpu.count"]

    assert told("A", "B", "B") == ("B", "2")
    assert told("B", "A", "A", "B") == ("B", "2")


def test_what_the_driver_does_not_tell_has_no_label_and_gpus_left_alone_do_not_count() -> None:
    machine = describe_reading(DGX)
    labels = feature_labels(MachineReading(gpus=machine.gpus), NodeSharing(hidden=("0", "1")))
    assert not [name for name in labels if "cuda" in name]
    assert labels["nvidia.com/gpu.count"] == "6"
    assert feature_labels(machine, NodeSharing(hidden=tuple("01234567"))) == {}


def test_a_machine_is_called_by_its_dmi_name() -> None:
    machine = MachineReading(gpus=describe_reading(DGX).gpus, product="NVIDIA DGX A100 (920-23687)")
    assert feature_labels(machine, NodeSharing())["nvidia.com/gpu.machine"] == "NVIDIA-DGX-A100-920-23687"


def test_a_machine_with_a_gpu_that_is_not_registered_with_the_fabric_is_in_no_clique() -> None:
    tray = describe_reading(load("gb200-nvl72-tray"))
    first = tray.gpus[0]
    assert first.fabric is not None
    assert CLIQUE in feature_labels(tray, NodeSharing())
    for fabric in (replace_fields(first.fabric, state=2), replace_fields(first.fabric, clique=9)):
        gpus = (replace_fields(first, fabric=fabric), *tray.gpus[1:])
        assert CLIQUE not in feature_labels(replace_fields(tray, gpus=gpus), NodeSharing())
