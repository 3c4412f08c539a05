import asyncio
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import yaml
from click.testing import CliRunner

from deviceplugin.cli.run import run
from simulation.apiserver import EmbeddedApiServer
from tests.deviceplugin.registration import kubelet_root
from tests.polling import LONGEST_SECONDS


def test_a_missing_kubeconfig_is_one_sentence() -> None:
    answer = CliRunner().invoke(run, ["--node-name", "n", "--kubeconfig", "/nonexistent/kubeconfig"])
    assert answer.exit_code == 1
    assert "Traceback" not in answer.output
    assert "/nonexistent/kubeconfig" in answer.output


def test_an_unknown_strategy_is_refused_with_those_there_are() -> None:
    answer = CliRunner().invoke(run, ["--node-name", "n", "--device-list-strategy", "envvar,nope"])
    assert answer.exit_code == 2
    assert "envvar, volume-mounts, cdi-annotations, cdi-cri" in answer.output


def test_what_is_printed_can_be_given_back_and_holds_no_secret(tmp_path: Path) -> None:
    kubeconfig = write(tmp_path / "kubeconfig", "users: [{name: me, user: {token: s3cr3t}}]")
    arguments = ["--node-name", "n", "--kubeconfig", kubeconfig, "--pass-device-specs", "--disable-core-limit=false"]
    printed = CliRunner().invoke(run, [*arguments, "--print-config"], env={"LOG_LEVEL": "debug"})
    assert "s3cr3t" not in printed.output
    assert "features: [device-files]                        # flag --pass-device-specs\n" in printed.output
    saved = write(tmp_path / "saved.yaml", printed.stdout)
    again = CliRunner().invoke(run, ["--config", saved, "--print-config"])
    assert yaml.safe_load(again.stdout) == yaml.safe_load(printed.stdout)


def test_hamis_own_flag_for_its_file_does_as_well(tmp_path: Path) -> None:
    file = write(tmp_path / "device-config.yaml", "nvidia: {deviceSplitCount: 3, zzz: 1}")
    for arguments, environment in ((["--config-file", file], {}), ([], {"CONFIG_FILE": file})):
        answer = CliRunner().invoke(run, [*arguments, "--print-config"], env={"NODE_NAME": "n", **environment})
        assert yaml.safe_load(answer.stdout)["device_split_count"] == 3
        assert answer.stderr == f"Warning: {file}: nvidia.zzz is known neither to HAMi nor here\n"


def test_a_file_that_was_named_and_is_not_there_is_one_sentence() -> None:
    for flag in ("--config", "--device-config-file", "--node-config-file"):
        answer = CliRunner().invoke(run, ["--node-name", "n", flag, "/nonexistent/file"])
        assert answer.output == "Error: cannot read /nonexistent/file: No such file or directory\n"
        assert answer.exit_code == 1


def test_a_wrong_variable_in_the_environment_is_one_sentence() -> None:
    answer = CliRunner().invoke(run, ["--node-name", "n"], env={"DEVICE_SPLIT_COUNT": "many"})
    assert answer.output.endswith(
        "Error: environment variable DEVICE_SPLIT_COUNT is 'many'; expected a whole number from 1 to 1000\n"
    )
    assert answer.exit_code == 2


async def test_sighup_ends_it_for_a_restart_unless_its_files_hold_a_mistake(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    async with kubelet_root() as root, EmbeddedApiServer() as server:
        config = write(tmp_path / "kubeconfig", server.kubeconfig())
        write(file, f"kubeconfig: {config}\nkubelet_root: {root}\nnvml_library: /nonexistent/libnvidia-ml.so.1")
        async with daemon_process("--node-name", "n", "--config", str(file)) as daemon:
            await line_with(daemon, "Cannot load the NVML library")
            write(file, "log_lvl: info")
            daemon.send_signal(signal.SIGHUP)
            assert "SIGHUP ignored" in await line_with(daemon, "did you mean log_level?")
            write(file, "log_level: info")
            daemon.send_signal(signal.SIGHUP)
            assert await daemon.wait() == 0


async def test_without_a_driver_the_daemon_says_so_idles_and_stops_cleanly() -> None:
    async with kubelet_root() as root, EmbeddedApiServer() as server:
        config = write(Path(root, "kubeconfig"), server.kubeconfig())
        arguments = ["--node-name", "n", "--kubeconfig", config, "--kubelet-root", root]
        arguments += ["--nvml-library", "/nonexistent/libnvidia-ml.so.1", "--log-format", "json"]
        async with daemon_process(*arguments) as daemon:
            await line_with(daemon, "Cannot load the NVML library")
            daemon.send_signal(signal.SIGTERM)
            assert daemon.stderr is not None
            rest = (await daemon.stderr.read()).decode()
            assert await daemon.wait() == 0
            assert "Traceback" not in rest


@asynccontextmanager
async def daemon_process(*arguments: str) -> AsyncIterator[Process]:
    command = [sys.executable, "-m", "deviceplugin", "run", *arguments]
    daemon = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    try:
        yield daemon
    finally:
        if daemon.returncode is None:
            daemon.kill()
            await daemon.wait()


async def line_with(daemon: Process, words: str) -> str:
    """The next line it logs that holds these words."""
    assert daemon.stderr is not None
    async with asyncio.timeout(LONGEST_SECONDS):
        while words not in (line := (await daemon.stderr.readline()).decode()):
            assert line, f"ended without a line with {words!r}"
    return line


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_a_named_configuration_goes_before_our_own_file_and_after_the_rest(tmp_path: Path) -> None:
    own = write(tmp_path / "own.yaml", "device_split_count: 2\nlog_level: debug\nmig_strategy: single")
    (tmp_path / "configs").mkdir()
    named = write(tmp_path / "configs/mig.yaml", "device_split_count: 3\nmig_strategy: mixed")
    hamis = write(tmp_path / "device-config.yaml", "nvidia: {deviceSplitCount: 4}")
    arguments = ["--node-name", "n", "--config", own, "--configs", str(tmp_path / "configs"), "--config-name", "mig"]

    def printed(*more: str) -> str:
        answer = CliRunner().invoke(run, [*arguments, *more, "--print-config"])
        assert answer.exit_code == 0, answer.output
        return answer.stdout

    lines = [" ".join(line.split()) for line in printed().splitlines()]
    assert f"device_split_count: 3 # {named}: device_split_count" in lines
    assert f"mig_strategy: mixed # {named}: mig_strategy" in lines
    assert f"log_level: debug # {own}: log_level" in lines
    assert yaml.safe_load(printed("--device-config-file", hamis))["device_split_count"] == 4


def test_a_named_configuration_that_is_not_there_or_says_where_the_node_is_is_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "configs"
    folder.mkdir()
    file = write(folder / "a.yaml", "node_name: other")
    for name, sentence in (
        ("b", f"there is no configuration 'b' in {folder}. There are: a"),
        ("../a", f"there is no configuration '../a' in {folder}"),
        ("a", f"{file}: node_name cannot be set here: it is needed before a configuration is chosen"),
    ):
        answer = CliRunner().invoke(run, ["--node-name", "n", "--configs", str(folder), "--config-name", name])
        assert (answer.exit_code, sentence in answer.output) == (2, True), answer.output


async def test_the_printed_configuration_is_the_one_that_the_label_names(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    write(tmp_path / "configs/mig.yaml", "mig_strategy: mixed")
    async with EmbeddedApiServer() as server:
        labels = {"nvidia.com/device-plugin.config": "mig"}
        server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": labels}})
        config = write(tmp_path / "kubeconfig", server.kubeconfig())
        arguments = ["--node-name", "n", "--kubeconfig", config, "--configs", str(tmp_path / "configs")]
        arguments += ["--cdi-directory", str(tmp_path / "cdi"), "--print-config"]
        label = ["--config-label", "nvidia.com/device-plugin.config"]
        told = [await asyncio.to_thread(CliRunner().invoke, run, [*arguments, *more]) for more in (label, [])]
    found = [yaml.safe_load(each.stdout)["mig_strategy"] for each in told]
    assert found == ["mixed", "none"]
