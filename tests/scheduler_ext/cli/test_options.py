from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from scheduler_ext.cli.decide import decide
from scheduler_ext.cli.options import request_options
from scheduler_ext.cli.serve import serve
from scheduler_ext.policies import NodePolicy, parse_gpu_policy
from scheduler_ext.requests import RequestSettings, ResourceNames


def given(*arguments: str) -> RequestSettings:
    """What a command with these flags is given."""
    found: list[RequestSettings] = []

    @click.command()
    @request_options
    def command(requests: RequestSettings) -> None:
        found.append(requests)

    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    return found[0]


def test_without_flags_the_settings_are_the_defaults() -> None:
    assert given() == RequestSettings()


def test_every_flag_reaches_the_settings() -> None:
    found = given(
        *("--node-scheduler-policy=spread", "--gpu-scheduler-policy=binpack", "--default-mem=5", "--default-cores=7"),
        *("--memory-factor=1024", "--resource-name=a/n", "--resource-mem=a/m", "--resource-mem-percentage=a/p"),
        *("--resource-cores=a/c", "--resource-priority=a/q", "--node-topology=off"),
    )
    assert found == RequestSettings(
        names=ResourceNames(count="a/n", memory="a/m", memory_percentage="a/p", cores="a/c", priority="a/q"),
        default_memory_mib=5,
        default_cores=7,
        memory_factor=1024,
        node_policy=NodePolicy.SPREAD,
        gpu_policy=parse_gpu_policy("binpack"),
        node_topology=False,
    )


@pytest.mark.parametrize("command", [serve, decide], ids=["serve", "decide"])
@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("--resource-mem=nvidia.com/gpu", "'nvidia.com/gpu' names two resources; each --resource-… flag needs"),
        ("--resource-cores=", "--resource-cores '' is no name of a resource, such as nvidia.com/gpu"),
    ],
)
def test_a_name_for_two_resources_is_refused(command: click.Command, argument: str, sentence: str) -> None:
    result = CliRunner().invoke(command, [argument])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {sentence}")


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ("defaultCores: 500", "nvidia.defaultCores: 500 is not in the range 0<=x<=100."),
        ("gpuCorePolicy: x", "nvidia.gpuCorePolicy: 'x' is not one of 'default', 'force', 'disable'."),
        ("resourceCoreName: a b", "nvidia.resourceCoreName 'a b' is no name of a resource, such as nvidia.com/gpu"),
    ],
)
def test_a_bad_value_of_the_file_is_blamed_on_the_file(tmp_path: Path, section: str, sentence: str) -> None:
    file = tmp_path / "device-config.yaml"
    file.write_text(f"nvidia: {{{section}}}")
    result = CliRunner().invoke(serve, ["--device-config-file", str(file), "--default-cores", "10"])
    assert (result.exit_code, result.stderr) == (1, f"Error: {file}: {sentence}\n")
