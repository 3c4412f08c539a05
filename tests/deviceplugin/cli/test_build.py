"""What is configured arrives in the part that acts on it."""

from deviceplugin.configuration.table import TABLE
from deviceplugin.container.edits import AllocationSettings, DeviceListStrategy, DriverFeature
from deviceplugin.health.step import HealthSettings
from deviceplugin.machine.discovery import NodeSharing
from deviceplugin.settings import AgentSettings, HamiScheduler, HostSettings, KubeletSettings, RemediationSettings
from tests.deviceplugin.configuration.written import written


def test_the_default_configuration_is_each_parts_own() -> None:
    default = TABLE.filled(node_name="n")
    assert default.agent == AgentSettings(node_name="n")
    assert default.host == HostSettings()
    assert default.sharing == NodeSharing()
    assert default.kubelet == KubeletSettings()
    assert default.health == HealthSettings()
    assert default.remediation == RemediationSettings()
    assert default.containers == AllocationSettings(libcuda_log_level="1")


def test_sharing_is_as_configured() -> None:
    configured = TABLE.filled(
        node_name="n",
        device_split_count=4,
        device_memory_scaling=1.5,
        device_cores_scaling=2.0,
        operating_mode="mps",
        mig_strategy="mixed",
        preconfigured_device_memory=8192,
        filter_devices=("GPU-1", "3"),
    )
    assert configured.sharing == NodeSharing(
        split_count=4,
        memory_scaling=1.5,
        core_scaling=2.0,
        mode="mps",
        mig_strategy="mixed",
        preconfigured_memory_mib=8192,
        hidden=("GPU-1", "3"),
    )


def test_what_containers_get_is_as_configured() -> None:
    configured = TABLE.filled(
        node_name="n",
        device_list_strategy=(DeviceListStrategy.CDI_CRI,),
        disable_core_limit=True,
        libcuda_log_level="",
        features=("gdrcopy", "device-files", "imex"),
    )
    assert configured.containers == AllocationSettings(
        strategies=(DeviceListStrategy.CDI_CRI,),
        disable_core_limit=True,
        libcuda_log_level="",
        pass_device_specs=True,
        features=(DriverFeature.GDRCOPY, DriverFeature.IMEX),
    )
    assert configured.containers.imex_channels == (0,)


def test_the_agent_and_its_kubelet_are_as_configured() -> None:
    configured = TABLE.filled(
        node_name="n",
        kubelet_root="/k",
        resource_name="example.com/gpu",
        hook_path="/opt",
        read_seconds=5.0,
        hami_handshake=HamiScheduler.V2_7,
        features=("numa",),
    )
    assert configured.agent == AgentSettings(
        node_name="n", hook_path="/opt", read_seconds=5.0, hami_scheduler=HamiScheduler.V2_7
    )
    assert configured.kubelet == KubeletSettings(root="/k", resource_name="example.com/gpu", numa_hints=True)


def test_the_two_lists_of_health_checks_of_nvidias_plugin_are_one() -> None:
    both = written(environment={"DP_DISABLE_HEALTHCHECKS": "ALL,079", "DP_ENABLE_HEALTHCHECKS": "13"})
    assert both.configuration.health == HealthSettings(checks=("-all", "-79", "13"))
    assert both.origins["health_checks"] == (
        "environment variable DP_DISABLE_HEALTHCHECKS, environment variable DP_ENABLE_HEALTHCHECKS"
    )
    own = written({"health_checks": "-13"}, environment={"DP_ENABLE_HEALTHCHECKS": "13"})
    assert own.configuration.health.checks == ("-13",)


def test_switches_of_features_change_one_item_of_the_list_of_weaker_sources() -> None:
    switched = {"GDRCOPY_ENABLED": "true", "GDS_ENABLED": "false", "IMEX_CHANNEL_IDS": "0"}
    gdrcopy_and_imex = (DriverFeature.GDRCOPY, DriverFeature.IMEX)
    assert written(environment=switched).configuration.containers.features == gdrcopy_and_imex
    listed = written(environment={"FEATURES": "mofed", **switched}).configuration.containers.features
    assert listed == (DriverFeature.MOFED, *gdrcopy_and_imex)
    assert written({"features": "gds"}, switched).configuration.containers.features == (DriverFeature.GDS,)
    without_gds = written(environment=switched, own="features: [gds, mofed, numa]").configuration
    assert without_gds.features == ("mofed", "numa", "gdrcopy", "imex")
    assert without_gds.kubelet.numa_hints


def test_debug_and_hamis_verbosity_are_the_log_level() -> None:
    assert written({"log_level": "error", "v": "4"}).configuration.log_level == "debug"
    assert written({"log_level": "error", "v": "3"}).configuration.log_level == "error"
    assert written({"debug": "true"}).configuration.log_level == "debug"
