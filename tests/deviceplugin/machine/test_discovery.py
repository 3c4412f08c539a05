from dataclasses import replace
from typing import get_args

import pytest

from deviceplugin.machine.discovery import MigStrategy, NodeSharing, device_type, discover_devices, left_out, resources
from deviceplugin.machine.readings import GpuReading, MachineReading, MigReading
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
            replicas=10,
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
    assert (device.memory_mib, device.cores, device.replicas) == (36387, 114, 4)


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


@pytest.mark.parametrize("sharing", [NodeSharing(hidden=("0",)), NodeSharing(hidden=(GPU.uuid,))])
def test_a_hidden_gpu_is_left_out(sharing: NodeSharing) -> None:
    assert discovered(GPU, sharing=sharing) == ()


def mig(number: int, profile: str, memory_mib: int | None, parent: int) -> MigReading:
    return MigReading(
        uuid=DeviceUUID(f"MIG-{parent}-{number}"),
        profile=profile,
        gi=number,
        ci=0,
        parent=DeviceUUID(f"GPU-{parent}"),
        memory_mib=memory_mib,
    )


def cut(index: int, *profiles: tuple[str, int | None]) -> GpuReading:
    return replace(
        GPU,
        index=index,
        uuid=DeviceUUID(f"GPU-{index}"),
        mig_enabled=True,
        mig_devices=tuple(mig(n, profile, memory, index) for n, (profile, memory) in enumerate(profiles)),
    )


SMALL, LARGE = ("1g.5gb", 4864), ("3g.20gb", 20096)
NONE, SINGLE, MIXED = (NodeSharing(mig_strategy=strategy) for strategy in get_args(MigStrategy))


def named(machine: MachineReading, sharing: NodeSharing) -> dict[str, list[str]]:
    found = resources(machine, sharing, "nvidia.com/gpu")
    return {name: [device.uuid for device in devices] for name, devices in found.items()}


def test_a_mig_device_leads_to_its_gpu() -> None:
    machine = MachineReading(gpus=(cut(0, SMALL), cut(1, SMALL, LARGE)))
    assert {uuid: device.parent for uuid, device in machine.mig_devices.items()} == {
        "MIG-0-0": "GPU-0",
        "MIG-1-0": "GPU-1",
        "MIG-1-1": "GPU-1",
    }


def test_strategy_none_does_not_look_at_mig() -> None:
    machine = MachineReading(gpus=(cut(0, SMALL), GPU))
    assert named(machine, NONE) == {"nvidia.com/gpu": ["GPU-0", "GPU-a"]}
    assert left_out(machine, NONE) == ()


def test_strategy_single_makes_mig_devices_the_nodes_resource() -> None:
    machine = MachineReading(gpus=(cut(0, SMALL), replace(cut(1, SMALL), problem="GPU is lost")))
    small = Device(
        uuid=DeviceUUID("MIG-0-0"),
        index=0,
        replicas=1,
        memory_mib=4864,
        cores=100,
        type="NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        numa=1,
        mode="hami-core",
        healthy=True,
    )
    sharing = replace(SINGLE, memory_scaling=2.0, core_scaling=2.0)
    of_the_lost = replace(small, uuid=DeviceUUID("MIG-1-0"), index=1, healthy=False)
    assert resources(machine, sharing, "nvidia.com/gpu") == {"nvidia.com/gpu": (small, of_the_lost)}
    assert discover_devices(machine, sharing) == (small, of_the_lost)
    assert left_out(machine, sharing) == ()


def test_strategy_single_keeps_to_the_profile_there_is_most_of() -> None:
    machine = MachineReading(gpus=(cut(0, LARGE, SMALL, SMALL),))
    assert named(machine, SINGLE) == {"nvidia.com/gpu": ["MIG-0-1", "MIG-0-2"]}
    assert left_out(machine, SINGLE) == (
        "MIG device MIG-0-0 (3g.20gb) of GPU 0 (GPU-0) is not shared: strategy single wants one kind of device on a "
        "node, and this node has MIG devices of profile 1g.5gb; make them alike or choose strategy mixed",
    )


def test_strategy_single_keeps_to_whole_gpus_where_there_are_some() -> None:
    machine = MachineReading(gpus=(cut(0, SMALL), GPU))
    assert named(machine, SINGLE) == {"nvidia.com/gpu": ["GPU-a"]}
    (sentence,) = left_out(machine, SINGLE)
    assert "this node has GPUs without MIG" in sentence


def test_strategy_mixed_gives_every_profile_a_resource() -> None:
    machine = MachineReading(gpus=(replace(GPU, index=2), cut(0, SMALL, ("1g.10gb+me", 9728)), cut(1, SMALL)))
    assert named(machine, MIXED) == {
        "nvidia.com/gpu": ["GPU-a"],
        "nvidia.com/mig-1g.5gb": ["MIG-0-0", "MIG-1-0"],
        "nvidia.com/mig-1g.10gb.me": ["MIG-0-1"],
    }


def test_only_the_nodes_own_resource_is_registered() -> None:
    machine = MachineReading(gpus=(cut(0, SMALL), replace(GPU, index=1)))
    assert [device.uuid for device in discover_devices(machine, MIXED)] == ["GPU-a"]


def test_a_node_without_whole_gpus_has_its_own_resource_all_the_same() -> None:
    assert named(MachineReading(gpus=(cut(0, SMALL),)), MIXED) == {
        "nvidia.com/gpu": [],
        "nvidia.com/mig-1g.5gb": ["MIG-0-0"],
    }


@pytest.mark.parametrize("sharing", [SINGLE, MIXED])
def test_a_gpu_with_mig_on_and_no_mig_device_is_named(sharing: NodeSharing) -> None:
    machine = MachineReading(gpus=(cut(0),))
    assert named(machine, sharing) == {"nvidia.com/gpu": []}
    assert left_out(machine, sharing) == ("GPU 0 (GPU-0) has MIG on and no MIG device; create some or turn MIG off",)


def test_what_has_no_known_memory_is_named() -> None:
    machine = MachineReading(gpus=(replace(GPU, memory_mib=None), cut(1, ("1g.5gb", None))))
    assert left_out(machine, MIXED) == (
        "GPU 0 (GPU-a) is not shared: the driver does not report its memory; preconfigure an amount for it",
        "MIG device MIG-1-0 (1g.5gb) of GPU 1 (GPU-1) is not shared: the driver does not report its memory",
    )
    assert left_out(machine, replace(NONE, preconfigured_memory_mib=1000)) == ()


def test_what_has_more_memory_than_a_node_can_report_is_named() -> None:
    machine = MachineReading(gpus=(replace(GPU, memory_mib=2**31), cut(1, ("1g.5gb", 2**31))))
    assert left_out(machine, MIXED) == (
        "GPU 0 (GPU-a) is not shared: 2147483648 MiB are more than the node can report",
        "MIG device MIG-1-0 (1g.5gb) of GPU 1 (GPU-1) is not shared: 2147483648 MiB are more than the node can report",
    )


def test_hiding_a_gpu_hides_its_mig_devices_and_its_troubles() -> None:
    machine = MachineReading(gpus=(cut(0, LARGE), cut(1, SMALL, SMALL), replace(GPU, index=2, memory_mib=None)))
    hidden = replace(SINGLE, hidden=("0", "2", "MIG-1-0"))
    assert named(machine, hidden) == {"nvidia.com/gpu": ["MIG-1-1"]}
    assert left_out(machine, hidden) == ()
