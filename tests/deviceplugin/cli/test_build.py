"""What is configured arrives in the part that acts on it."""

from deviceplugin.cli.build import agent_settings, allocation_settings, health_settings, node_sharing
from deviceplugin.configuration import TABLE
from deviceplugin.container.edits import AllocationSettings, DeviceListStrategy, DriverFeature
from deviceplugin.health.step import APPLICATION_XIDS, HealthSettings
from deviceplugin.machine.discovery import NodeSharing
from deviceplugin.settings import AgentSettings, HamiScheduler, KubeletSettings
from proto.devices import DeviceUUID


def test_what_nobody_configured_is_each_parts_own_default() -> None:
    default = TABLE.filled(node_name="n")
    assert agent_settings(default) == AgentSettings(node_name="n")
    assert node_sharing(default) == NodeSharing()
    assert default.kubelet == KubeletSettings()
    assert health_settings(default) == HealthSettings()
    assert allocation_settings(default) == AllocationSettings(libcuda_log_level="1")


def test_sharing_is_as_configured() -> None:
    configured = TABLE.filled(
        node_name="n",
        device_split_count=4,
        device_memory_scaling=1.5,
        device_cores_scaling=2.0,
        operating_mode="mps",
        mig_strategy="mixed",
        preconfigured_device_memory=8192,
        filter_uuids=("GPU-1",),
        filter_indices=(3,),
    )
    assert node_sharing(configured) == NodeSharing(
        split_count=4,
        memory_scaling=1.5,
        core_scaling=2.0,
        mode="mps",
        mig_strategy="mixed",
        preconfigured_memory_mib=8192,
        hidden_uuids=frozenset({DeviceUUID("GPU-1")}),
        hidden_indices=frozenset({3}),
    )


def test_what_containers_get_is_as_configured() -> None:
    configured = TABLE.filled(
        node_name="n",
        device_memory_scaling=1.5,
        device_list_strategy=(DeviceListStrategy.CDI_CRI,),
        cdi_kind="vendor.example/gpu",
        disable_core_limit=True,
        libcuda_log_level="",
        resource_priority="example.com/priority",
        pass_device_specs=True,
        imex_channel_ids=(0,),
        gdrcopy_enabled=True,
        mofed_enabled=True,
    )
    assert allocation_settings(configured) == AllocationSettings(
        strategies=(DeviceListStrategy.CDI_CRI,),
        cdi_kind="vendor.example/gpu",
        disable_core_limit=True,
        libcuda_log_level="",
        priority_resource="example.com/priority",
        pass_device_specs=True,
        imex_channels=(0,),
        features=(DriverFeature.GDRCOPY, DriverFeature.MOFED),
    )


def test_the_agent_and_its_kubelet_are_as_configured() -> None:
    configured = TABLE.filled(
        node_name="n",
        kubelet_root="/k",
        resource_name="example.com/gpu",
        hook_path="/opt",
        read_seconds=5.0,
        hami_handshake=HamiScheduler.V2_7,
        enable_numa_topology=True,
    )
    assert agent_settings(configured) == AgentSettings(
        node_name="n", hook_path="/opt", read_seconds=5.0, hami_scheduler=HamiScheduler.V2_7
    )
    assert configured.kubelet == KubeletSettings(root="/k", resource_name="example.com/gpu", numa_hints=True)


def test_health_switches_are_as_configured() -> None:
    configured = TABLE.filled(
        node_name="n", disable_health_checks=("79",), enable_health_checks=("13",), health_recovery_seconds=5.0
    )
    assert health_settings(configured) == HealthSettings(
        ignored_xids=APPLICATION_XIDS | {79}, fatal_xids=frozenset({13}), recovery_seconds=5.0
    )
