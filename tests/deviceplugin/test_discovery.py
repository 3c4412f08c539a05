from dataclasses import replace

import pytest

from deviceplugin.discovery import NodeSharing, device_type, discover_devices
from deviceplugin.readings import GpuReading, MachineReading
from proto.devices import UNKNOWN_NUMA, Device, DeviceUUID

GPU = GpuReading(
    index=0,
    uuid=DeviceUUID("GPU-a"),
    name="NVIDIA A100-SXM4-40GB",
    bus_id="00000000:07:00.0",
    memory_mib=40960,
    numa=1,
)


def discovered(*gpus: GpuReading, sharing: NodeSharing | None = None) -> tuple[Device, ...]:
    return discover_devices(MachineReading(gpus=gpus), sharing or NodeSharing())


def test_a_gpu_becomes_a_device() -> None:
    assert discovered(GPU) == (
        Device(
            uuid=DeviceUUID("GPU-a"),
            index=0,
            slots=10,
            memory_mib=40960,
            cores=100,
            type="NVIDIA A100-SXM4-40GB",
            numa=1,
            mode="hami-core",
            healthy=True,
        ),
    )


def test_devices_come_by_index() -> None:
    late = replace(GPU, index=3, uuid=DeviceUUID("GPU-b"))
    assert [device.index for device in discovered(late, GPU)] == [0, 3]


def test_scaling_truncates() -> None:
    (device,) = discovered(
        replace(GPU, memory_mib=24258), sharing=NodeSharing(memory_scaling=1.5, core_scaling=1.15, split_count=4)
    )
    assert (device.memory_mib, device.cores, device.slots) == (36387, 114, 4)


def test_mig_mode_does_not_scale() -> None:
    (device,) = discovered(GPU, sharing=NodeSharing(mode="mig", memory_scaling=2.0, core_scaling=2.0))
    assert (device.memory_mib, device.cores) == (40960, 100)


@pytest.mark.parametrize(
    ("name", "registered"),
    [("Tesla T4", "NVIDIA-Tesla T4"), ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB")],
)
def test_a_type_begins_with_the_vendor(name: str, registered: str) -> None:
    assert device_type(name) == registered


def test_an_unknown_numa_node_stays_unknown() -> None:
    (device,) = discovered(replace(GPU, numa=UNKNOWN_NUMA))
    assert device.numa == -1


def test_a_lost_gpu_is_advertised_as_unhealthy() -> None:
    (device,) = discovered(replace(GPU, problem="GPU is lost"))
    assert not device.healthy


def test_a_gpu_without_memory_needs_a_configured_amount() -> None:
    unified = replace(GPU, memory_mib=None)
    assert discovered(unified) == ()
    (device,) = discovered(unified, sharing=NodeSharing(preconfigured_memory_mib=1000))
    assert device.memory_mib == 1000


@pytest.mark.parametrize(
    "sharing", [NodeSharing(hidden_indices=frozenset({0})), NodeSharing(hidden_uuids=frozenset({GPU.uuid}))]
)
def test_a_hidden_gpu_is_left_out(sharing: NodeSharing) -> None:
    assert discovered(GPU, sharing=sharing) == ()
