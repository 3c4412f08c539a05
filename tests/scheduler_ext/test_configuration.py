import pytest

from program.settings.effective import ConfigurationError, Effective, File, SettingSources, resolve
from scheduler_ext.admission.containers import AdmissionSettings
from scheduler_ext.cli.serving import admission_settings
from scheduler_ext.configuration import TABLE, SchedulerConfiguration, warnings
from scheduler_ext.policies import NodePolicy, parse_gpu_policy
from scheduler_ext.requests import RequestSettings, ResourceNames
from scheduler_ext.settings import ServeSettings

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
  defaultGPUNum: 2
  memoryFactor: 1
  gpuCorePolicy: default
  runtimeClassName: ""
  deviceSplitCount: 10
  migProfileAllowlist: []
cambricon:
  resourceCountName: cambricon.com/vmlu
"""
"""As the chart of HAMi 2.10 writes it, with names of a cluster's own."""


def written(
    device_config: str | None = None, own: str | None = None, **flags: str
) -> Effective[SchedulerConfiguration]:
    return resolve(
        TABLE,
        SettingSources(
            flags=flags,
            environment={},
            own=None if own is None else File(name="own.yaml", text=own),
            device_config=None if device_config is None else File(name=FILE, text=device_config),
        ),
    )


def refused(device_config: str | None = None, **flags: str) -> str:
    with pytest.raises(ConfigurationError) as error:
        written(device_config, **flags)
    return str(error.value)


def test_what_is_not_set_is_as_the_parts_have_it() -> None:
    configuration = written().configuration
    assert admission_settings(configuration) == AdmissionSettings()
    assert configuration.serve == ServeSettings()


def test_every_setting_of_requests_reaches_them() -> None:
    configuration = written(
        own="""
            node_scheduler_policy: spread
            gpu_scheduler_policy: binpack
            default_mem: 5
            default_cores: 7
            memory_factor: 1024
            resource_name: a/n
            resource_mem: a/m
            resource_mem_percentage: a/p
            resource_cores: a/c
            resource_priority: a/q
        """
    ).configuration
    assert configuration.requests == RequestSettings(
        names=ResourceNames(count="a/n", memory="a/m", memory_percentage="a/p", cores="a/c", priority="a/q"),
        default_memory_mib=5,
        default_cores=7,
        memory_factor=1024,
        node_policy=NodePolicy.SPREAD,
        gpu_policy=parse_gpu_policy("binpack"),
    )


def test_hamis_file_names_resources_and_defaults() -> None:
    effective = written(CHART)
    assert effective.configuration == TABLE.filled(
        resource_name="example.com/gpu",
        resource_mem="example.com/mem",
        resource_mem_percentage="example.com/mem-percentage",
        resource_cores="example.com/cores",
        resource_priority="example.com/priority",
        default_mem=2000,
        default_cores=10,
        default_gpu=2,
    )
    assert effective.warnings == ()


def test_a_flag_wins_over_hamis_file_and_that_over_our_own() -> None:
    hamis, ours = "nvidia: {defaultMemory: 7, defaultCores: 20}", "default_mem: 1\nmemory_factor: 3"
    found = written(hamis, ours, default_cores="5")
    assert (found.configuration.requests.default_memory_mib, found.configuration.requests.default_cores) == (7, 5)
    assert [found.origins[key] for key in ("default_mem", "default_cores", "memory_factor", "default_gpu")] == [
        f"{FILE}: nvidia.defaultMemory",
        "flag --default-cores",
        "own.yaml: memory_factor",
        "default",
    ]


def test_a_factor_of_zero_is_no_factor_and_an_empty_name_is_not_written() -> None:
    found = written("nvidia: {memoryFactor: 0, resourceCoreName: '', defaultMemory: }")
    assert found.configuration.requests == RequestSettings()
    assert found.warnings == (
        f"{FILE}: nvidia.resourceCoreName is '', which HAMi takes as not written, and so does this program",
    )


def test_every_value_of_hamis_file_that_cannot_be_used_is_named_at_once() -> None:
    values = "defaultCores: 500, gpuCorePolicy: x, resourceCoreName: a b, overwriteEnv: maybe, defaultMemory: -1"
    assert refused(f"nvidia: {{{values}}}", default_cores="10").splitlines() == [
        f"{FILE}: nvidia.defaultCores is 500; expected a whole number from 0 to 100",
        f"{FILE}: nvidia.gpuCorePolicy is 'x'; expected default, force or disable",
        f"{FILE}: nvidia.resourceCoreName is 'a b'; expected a resource name such as nvidia.com/gpu",
        f"{FILE}: nvidia.overwriteEnv is 'maybe'; expected true or false",
        f"{FILE}: nvidia.defaultMemory is -1; expected a whole number from 0 to 2147483647",
    ]


def test_a_name_for_two_resources_is_refused() -> None:
    assert refused(resource_mem="nvidia.com/gpu") == (
        "'nvidia.com/gpu' names two resources; each --resource-… flag needs a name of its own"
    )


def test_what_counts_otherwise_than_written_is_said() -> None:
    found = written(gpu_scheduler_policy="topology")
    assert list(warnings(found)) == [
        "--gpu-scheduler-policy: 'topology' is read as 'topology-aware'; write that",
    ]
    assert list(warnings(written())) == []
