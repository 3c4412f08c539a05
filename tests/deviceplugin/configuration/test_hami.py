import pytest

from deviceplugin.configuration.table import TABLE
from deviceplugin.container.edits import DeviceListStrategy
from tests.deviceplugin.configuration.written import HAMI, refused, written


def text(name: str) -> str:
    return (HAMI / name).read_text(encoding="utf-8")


def test_the_device_config_of_2_10_is_read_as_it_is() -> None:
    effective = written(device_config=text("device-config-2.10.yaml"))
    assert effective.configuration == TABLE.filled(
        node_name="n", device_split_count=4, device_cores_scaling=1.5, features=("numa",)
    )
    assert effective.warnings == ()


def test_the_device_config_of_2_5_is_read_as_it_is() -> None:
    effective = written(device_config=text("device-config-2.5.yaml"))
    assert effective.configuration == TABLE.filled(
        node_name="n", resource_name="example.com/gpu", device_memory_scaling=1.8, disable_core_limit=True
    )
    assert effective.warnings == ()


def test_the_entry_of_this_node_in_config_json_is_read_as_it_is() -> None:
    effective = written({"node_name": "node-a"}, node_config=text("config.json"))
    assert effective.configuration == TABLE.filled(
        node_name="node-a",
        device_memory_scaling=1.5,
        libcuda_log_level="3",
        filter_devices=("GPU-ebe7c3f7-303d-558d-435e-99a160631fe4", "1", "3"),
    )
    assert effective.warnings == ()


def test_the_config_json_that_the_chart_ships_says_nothing_about_this_node() -> None:
    effective = written(node_config=text("config-chart-default.json"))
    assert (effective.configuration, effective.warnings) == (TABLE.filled(node_name="n"), ())


def test_dynamic_mig_is_refused_for_the_node_that_asks_for_it_and_for_no_other() -> None:
    assert refused({"node_name": "node-b"}, node_config=text("config.json")) == (
        "config.json: nodeconfig[1].operatingmode is 'mig': this daemon does not create MIG devices on demand; "
        "to share MIG devices that exist already, set mig_strategy"
    )
    assert written({"node_name": "node-c"}, node_config=text("config.json")).configuration.sharing.mode == "hami-core"


def test_zero_false_and_nothing_override_where_they_mean_something() -> None:
    read = written(
        device_config="nvidia: {preConfiguredDeviceMemory: 8192, enableNumaTopology: true, libCudaLogLevel: 4}",
        node_config='{"nodeconfig": [{"name": "n", "preconfigureddevicememory": 0, "enablenumatopology": false, '
        '"libcudaloglevel": ""}]}',
    ).configuration
    assert (read.sharing.preconfigured_memory_mib, read.kubelet.numa_hints, read.containers.libcuda_log_level) == (
        0,
        False,
        "",
    )


def test_a_zero_that_cannot_be_meant_is_not_written_as_in_hami_and_said() -> None:
    effective = written(
        device_config="nvidia: {deviceSplitCount: 3}",
        node_config='{"nodeconfig": [{"name": "n", "devicesplitcount": 0, "operatingmode": ""}]}',
    )
    assert effective.configuration == TABLE.filled(node_name="n", device_split_count=3)
    assert effective.warnings == (
        "config.json: nodeconfig[0].devicesplitcount is 0, which HAMi takes as not written, and so does this program",
        "config.json: nodeconfig[0].operatingmode is '', which HAMi takes as not written, and so does this program",
    )


def test_keys_of_config_json_count_in_any_case() -> None:
    entry = '{"NodeConfig": [{"Name": "n", "deviceSplitCount": 7, "FilterDevices": {"Index": [2]}}]}'
    read = written(node_config=entry).configuration
    assert (read.sharing.split_count, read.sharing.hidden) == (7, ("2",))


def test_several_entries_of_a_node_are_applied_in_order() -> None:
    first, second = (
        '{"name": "n", "devicesplitcount": 7, "devicecorescaling": 2}',
        '{"name": "n", "devicesplitcount": 8}',
    )
    read = written(node_config=f'{{"nodeconfig": [{first}, {second}]}}').configuration
    assert (read.sharing.split_count, read.sharing.core_scaling) == (8, 2.0)


def test_the_flags_that_nvidias_plugin_reads_from_the_same_file_count() -> None:
    read = written(
        device_config="""
            version: v1
            flags:
              migStrategy: single
              nvidiaDevRoot: /run/nvidia/driver
              gdsEnabled: true
              failOnInitError: true
              plugin: {passDeviceSpecs: true, deviceListStrategy: [cdi-cri, envvar], deviceIDStrategy: uuid}
            imex: {channelIDs: [0], required: false}
        """
    )
    assert read.warnings == ()
    assert read.configuration == TABLE.filled(
        node_name="n",
        mig_strategy="single",
        dev_root="/run/nvidia/driver",
        device_list_strategy=(DeviceListStrategy.CDI_CRI, DeviceListStrategy.ENVVAR),
        features=("gds", "imex", "device-files"),
    )


@pytest.mark.parametrize(
    ("device_config", "warning"),
    [
        ("nvida: {}\nnvidia:", "device.yaml: nvida is known neither to HAMi nor here; did you mean nvidia?"),
        (
            "nvidia: {deviceSplitcounts: 3}",
            "device.yaml: nvidia.deviceSplitcounts is known neither to HAMi nor here; did you mean deviceSplitCount?",
        ),
        ("flags: {plugin: {zzz: 1}}", "device.yaml: flags.plugin.zzz is known neither to HAMi nor here"),
    ],
)
def test_a_key_that_nobody_knows_is_a_warning_because_hami_may_be_newer(device_config: str, warning: str) -> None:
    assert written(device_config=device_config).warnings == (warning,)


def test_an_unknown_key_of_this_nodes_entry_is_a_warning() -> None:
    entry = '{"nodeconfig": [{"name": "n", "devicesplitcuont": 3}, {"name": "m", "zzz": 1}]}'
    assert written(node_config=entry).warnings == (
        "config.json: nodeconfig[0].devicesplitcuont is known neither to HAMi nor here; did you mean devicesplitcount?",
    )


@pytest.mark.parametrize(
    ("device_config", "sentence"),
    [
        (
            "nvidia: {deviceSplitCount: 0}",
            "device.yaml: nvidia.deviceSplitCount is 0; expected a whole number from 1 to 1000",
        ),
        ("nvidia: [1]", "device.yaml: nvidia is [1]; expected keys with values"),
        (
            "log_level: info",
            "device.yaml is this program's own configuration, not HAMi's: give it as --config",
        ),
        ("nvidia:\n  a: 1\n b: 2", "device.yaml: line 3, column 2: not YAML: "),
    ],
)
def test_a_mistake_in_the_device_config_is_named(device_config: str, sentence: str) -> None:
    assert refused(device_config=device_config).startswith(sentence)


@pytest.mark.parametrize(
    ("node_config", "sentence"),
    [
        ("", "config.json: line 1, column 1: not JSON: Expecting value"),
        ('{"nodeconfig": {}', "config.json: line 1, column 18: not JSON: "),
        ('{"nodeconfig": {"name": "n"}}', "config.json: nodeconfig: expected a list with an entry for each node"),
        (
            '{"nodeconfig": [{"name": "n", "devicememoryscaling": "2"}]}',
            "config.json: nodeconfig[0].devicememoryscaling is '2'; expected a number above 0 and up to 100",
        ),
        (
            '{"nodeconfig": [{"name": "n", "filterdevices": {"index": [-1]}}]}',
            "config.json: nodeconfig[0].filterdevices.index is [-1]; expected a list, each a whole number from 0",
        ),
    ],
)
def test_a_mistake_in_config_json_is_named(node_config: str, sentence: str) -> None:
    assert refused(node_config=node_config).startswith(sentence)


def test_a_value_left_empty_in_yaml_is_not_written() -> None:
    assert written(device_config="nvidia: {deviceSplitCount: null}\nflags:\n").configuration == TABLE.filled(
        node_name="n"
    )
