from pathlib import Path

import pytest

from scheduler_ext.device_config import DeviceConfig, DeviceConfigError, read_device_config
from scheduler_ext.requests import RequestSettings
from tests.scheduler_ext.cli.test_options import given

FILE = "device-config.yaml"
CHART = """
nvidia:
  resourceCountName: example.com/gpu
  resourceMemoryName: example.com/mem
  resourceMemoryPercentageName: example.com/mem-percentage
  resourceCoreName: example.com/cores
  resourcePriorityName: example.com/priority
  overwriteEnv: false
  defaultMemory: 2000
  defaultCores: 10
  defaultGPUNum: 1
  memoryFactor: 1
  gpuCorePolicy: default
  runtimeClassName: ""
  deviceSplitCount: 10
  migProfileAllowlist: []
cambricon:
  resourceCountName: cambricon.com/vmlu
"""
"""As the chart of HAMi 2.10 writes it, with names of a cluster's own."""


def test_hamis_file_says_names_and_defaults() -> None:
    assert read_device_config(CHART, FILE) == DeviceConfig(
        defaults={
            "resource_name": "example.com/gpu",
            "resource_mem": "example.com/mem",
            "resource_mem_percentage": "example.com/mem-percentage",
            "resource_cores": "example.com/cores",
            "resource_priority": "example.com/priority",
            "overwrite_env": False,
            "default_mem": 2000,
            "default_cores": 10,
            "default_gpu": 1,
            "memory_factor": 1,
            "gpu_core_policy": "default",
            "runtime_class_name": "",
        }
    )


def test_an_unknown_key_is_warned_of() -> None:
    config = read_device_config("nvidia: {defaultMem: 5}", FILE)
    assert config.warnings == (
        f"{FILE}: nvidia.defaultMem is known neither to HAMi nor here; did you mean defaultMemory?",
    )


def test_empty_names_and_a_factor_of_zero_say_nothing() -> None:
    text = "nvidia: {memoryFactor: 0, resourceCoreName: '', gpuCorePolicy: '', defaultMemory: }"
    assert read_device_config(text, FILE).defaults == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nvidia: [", "not YAML"),
        ("amd: {}", "has no section nvidia"),
        ("nvidia: 7", "has no section nvidia"),
        ("nvidia: {defaultMemory: -1}", "nvidia.defaultMemory: expected a whole number from 0, found -1"),
        ("nvidia: {defaultCores: true}", "nvidia.defaultCores: expected a whole number from 0, found True"),
        ("nvidia: {resourceCountName: 7}", "nvidia.resourceCountName: expected text, found 7"),
        ("nvidia: {overwriteEnv: maybe}", "nvidia.overwriteEnv: expected true or false, found 'maybe'"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(text: str, problem: str) -> None:
    with pytest.raises(DeviceConfigError) as refusal:
        read_device_config(text, FILE)
    assert str(refusal.value).startswith(FILE)
    assert problem in str(refusal.value)


def test_the_file_stands_in_for_flags_that_are_not_given(tmp_path: Path) -> None:
    file = tmp_path / FILE
    file.write_text("nvidia: {defaultMemory: 7, defaultCores: 20}")
    found = given("--device-config-file", str(file), "--default-cores", "5")
    assert found == RequestSettings(default_memory_mib=7, default_cores=5)
