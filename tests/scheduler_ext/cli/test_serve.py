"""`topogpu-scheduler serve` as a process."""

import asyncio
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import yaml
from click.testing import CliRunner

from scheduler_ext.cli.serve import serve
from scheduler_ext.configuration import TABLE
from simulation.apiserver import EmbeddedApiServer, Fault
from tests.polling import until

DOCUMENT = Path(__file__).parents[3] / "docs" / "configuration.md"
UNREACHABLE = EmbeddedApiServer(port=1).kubeconfig()


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """The command sets them, and other tests follow in this process."""
    loggers = [logging.getLogger(name) for name in (None, "scheduler_ext", "program", "proto")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def refusal(*args: str, status: int = 2) -> str:
    result = CliRunner().invoke(serve, list(args))
    assert result.exit_code == status
    _, _, error = result.stderr.rpartition("Error: ")
    assert len(error.splitlines()) == 1
    return error.strip()


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--node-scheduler-policy", "tidy"), "flag --node-scheduler-policy is 'tidy'; expected binpack, spread or"),
        (("--gpu-scheduler-policy", "tidy"), "flag --gpu-scheduler-policy is 'tidy'; expected binpack, spread,"),
        (("--http_bind", "8080"), "flag --http_bind is '8080'; expected host:port, or :port for every interface"),
        (("--http-bind", ""), "flag --http_bind is empty; expected host:port, or :port for every interface"),
        (("--node-lock-timeout", "soon"), "flag --node-lock-timeout is 'soon'; expected a duration above zero and"),
        (("--node-lock-timeout", "0s"), "flag --node-lock-timeout is '0s'; expected a duration above zero and up to a"),
        (("--metrics-bind-address", "9395"), "flag --metrics-bind-address is '9395'; expected host:port, :port for"),
        (("--node-label-selector", "gpu"), "flag --node-label-selector is 'gpu'; expected key=value, or a comma list"),
        (("--leader-elect=true",), "--leader-elect needs --leader-elect-resource-name"),
        (
            ("--leader-elect", "--leader-elect-resource-name", "l"),
            "--leader-elect needs --leader-elect-resource-namespace",
        ),
        (("--scheduler-name", "Ours!"), "flag --scheduler-name is 'Ours!'; expected a name of lower-case letters,"),
        (("--runtime-class-name", "a b"), "flag --runtime-class-name is 'a b'; expected a name of lower-case letters,"),
        (("--resource-name", "gpu"), "flag --resource-name is 'gpu'; expected a resource name such as nvidia.com/gpu"),
        (("--webhook-secret", "a/b/c"), "flag --webhook-secret is 'a/b/c'; expected namespace/name"),
        (
            ("--kube-scheduler-healthz", "https://10.0.0.1:10259/healthz"),
            "flag --kube-scheduler-healthz is 'https://10.0.0.1:10259/healthz'; expected a URL of this host, such as",
        ),
        (("--kube-scheduler-healthz", "127.0.0.1:10259"), "flag --kube-scheduler-healthz is '127.0.0.1:10259'; expe"),
        (("--default-mem", "nan"), "flag --default-mem is 'nan'; expected a whole number from 0 to 2147483647"),
        (("--set-aside-after-seconds", "soon"), "flag --set-aside-after-seconds is 'soon'; expected 0 or a duration"),
    ],
)
def test_a_bad_flag_is_one_sentence(args: tuple[str, ...], sentence: str) -> None:
    assert refusal(*args).startswith(sentence)


def test_a_file_that_cannot_be_read_is_one_sentence() -> None:
    assert "/nowhere/config" in refusal("--kubeconfig", "/nowhere/config", status=1)
    file = "/nowhere/device-config.yaml"
    assert refusal("--device-config-file", file, status=1) == f"cannot read {file}: No such file or directory"


def test_a_runtime_directory_that_cannot_hold_bindings_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(file))
    assert refusal(status=1) == f"{file} cannot hold the Bindings under way: File exists"


def test_print_config_tells_every_setting_with_its_source_and_is_read_back(tmp_path: Path) -> None:
    hami = tmp_path / "device-config.yaml"
    hami.write_text("nvidia: {defaultMemory: 7, defaultMem: 1}")
    flags = ["--device-config-file", str(hami), "--default-cores", "3", "--debug"]
    printed = CliRunner().invoke(serve, [*flags, "--print-config"], env={"HAMI_NODELOCK_EXPIRE": "90s"})
    assert (printed.exit_code, printed.stderr) == (
        0,
        f"Warning: {hami}: nvidia.defaultMem is known neither to HAMi nor here; did you mean defaultMemory?\n",
    )
    origins = dict(re.findall(r"^(\w+): .*? # (.*)$", printed.stdout, re.MULTILINE))
    assert list(origins) == list(TABLE.settings)
    assert {key: origin for key, origin in origins.items() if origin != "default"} == {
        "default_mem": f"{hami}: nvidia.defaultMemory",
        "default_cores": "flag --default-cores",
        "node_lock_timeout": "environment variable HAMI_NODELOCK_EXPIRE",
        "log_level": "flag --debug",
    }
    own = tmp_path / "own.yaml"
    own.write_text(printed.stdout)
    again = CliRunner().invoke(serve, ["--config", str(own), "--print-config"])
    assert yaml.safe_load(again.stdout) == yaml.safe_load(printed.stdout)


@pytest.mark.parametrize("returns", ["one", "all"])
def test_what_filter_returns_is_chosen_by_word(returns: str) -> None:
    assert "The kubeconfig /nowhere is missing" in refusal(
        "--filter-returns", returns, "--kubeconfig", "/nowhere", status=1
    )


def test_the_service_has_these_flags_and_defaults() -> None:
    defaults = {flag: setting.default_text for setting in TABLE.settings.values() for flag in setting.flags}
    documented = {
        "--http_bind": "127.0.0.1:8080",
        "--scheduler-name": "topogpu-scheduler",
        "--default-mem": "0 MiB",
        "--default-cores": "0",
        "--default-gpu": "1",
        "--node-scheduler-policy": "binpack",
        "--gpu-scheduler-policy": "spread",
        "--node-lock-timeout": "5m",
        "--leader-elect": "false",
        "--leader-elect-resource-name": "",
        "--leader-elect-resource-namespace": "",
        "--metrics-bind-address": ":9395",
    }
    assert {flag: defaults[flag] for flag in documented} == documented


HAMIS = {
    *("http_bind", "cert_file", "key_file", "scheduler-name", "node-scheduler-policy", "gpu-scheduler-policy"),
    *("metrics-bind-address", "node-label-selector", "kube-qps", "kube-burst", "kube-timeout", "profiling"),
    *("node-lock-timeout", "node-lock-retry-timeout", "force-overwrite-default-scheduler", "leader-elect"),
    *("leader-elect-resource-name", "leader-elect-resource-namespace", "legacy-metrics", "device-config-file", "debug"),
    *("default-mem", "default-cores", "default-gpu", "v", "logtostderr", "alsologtostderr", "stderrthreshold"),
    *("vmodule", "log_dir", "log_file", "log_file_max_size", "log_backtrace_at", "add_dir_header", "skip_headers"),
    *("skip_log_headers", "one_output"),
}
"""Of its scheduler 2.10, klog's, and those of HAMi 2.4 (cmd/scheduler/main.go of Project-HAMi/HAMi, k8s.io/klog/v2)."""


def test_every_flag_of_hamis_is_known_and_has_a_row_in_the_document() -> None:
    known = {flag for parameter in serve.params for flag in parameter.opts}
    assert {f"--{flag}" for flag in HAMIS} - known == set()
    instead = DOCUMENT.read_text("utf-8").partition("## In place of HAMi's scheduler")[2]
    rows = re.findall(r"^\| .*`-.*$", instead, re.MULTILINE)
    assert HAMIS - {flag for row in rows for flag in re.findall(r"`--?([\w-]+)`", row)} == set()


def test_flags_that_can_mean_nothing_here_say_what_to_use_instead() -> None:
    *lines, last = told("--profiling", "--logtostderr=false", "--vmodule", "a=4", "--kube-timeout=0")
    assert [line.partition("scheduler_ext.cli.")[2] for line in lines] == [
        "serve: --profiling changes nothing: there is no Go profiler here; use py-spy, or the histograms of /metrics",
        "serve: --kube-timeout changes nothing: a call to the API server may take 10 s",
        "serve: --vmodule changes nothing: use --log-level debug",
    ]
    assert last == "Error: The kubeconfig /nowhere is missing or is not a file: check --kubeconfig."


@pytest.mark.parametrize(
    ("flags", "level"),
    [((), "INFO"), (("--debug",), "DEBUG"), (("-v=4",), "DEBUG"), (("-v", "3"), "INFO"), (("--v=5",), "DEBUG")],
)
def test_hamis_words_for_more_log_lines_are_understood(flags: tuple[str, ...], level: str) -> None:
    refusal("--kubeconfig", "/nowhere", *flags, status=1)
    assert logging.getLevelName(logging.getLogger("scheduler_ext").level) == level


def told(*flags: str) -> list[str]:
    """What it prints before it ends for want of a kubeconfig."""
    command = [sys.executable, "-m", "scheduler_ext", "serve", "--kubeconfig", "/nowhere", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stderr.splitlines()


def test_a_taken_port_is_one_sentence() -> None:
    with tempfile.TemporaryDirectory(prefix="tg", dir="/tmp") as folder, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        kubeconfig = Path(folder) / "config"
        kubeconfig.write_text(UNREACHABLE)
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "scheduler_ext", "serve", "--http_bind", address, "--log-level", "error"]
        command += ["--metrics-bind-address", "127.0.0.1:0"]
        result = subprocess.run(
            [*command, "--kubeconfig", str(kubeconfig)], capture_output=True, text=True, timeout=120, check=False
        )
        assert result.returncode == 1
        assert result.stdout == ""
        assert result.stderr == (
            f"Error: Cannot listen on {address}: address already in use; choose another --http_bind.\n"
        )


@asynccontextmanager
async def serving(server: EmbeddedApiServer, *flags: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The program and the first line that it printed."""
    with tempfile.NamedTemporaryFile("w") as kubeconfig:
        kubeconfig.write(server.kubeconfig())
        kubeconfig.flush()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "scheduler_ext", "serve", "--http_bind", "127.0.0.1:0"),
            *("--kubeconfig", kubeconfig.name, "--metrics-bind-address", "", *flags),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        try:
            assert process.stdout is not None
            yield process, (await asyncio.wait_for(process.stdout.readline(), 120)).decode().strip()
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def answer(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as http, http.get(url) as response:
        return response.status, await response.text()


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
async def test_it_says_where_it_listens_answers_and_stops_cleanly(stop: signal.Signals) -> None:
    async with EmbeddedApiServer() as server, serving(server) as (process, line):
        assert re.fullmatch(r"listening on http://127\.0\.0\.1:\d+", line)
        assert await answer(f"{line.split()[-1]}/healthz") == (200, "")
        process.send_signal(stop)
        _, errors = await asyncio.wait_for(process.communicate(), 120)
        assert (process.returncode, b"Traceback" in errors) == (0, False)


async def test_a_webhook_that_gets_no_certificate_is_served_and_not_ready() -> None:
    ours = ("--webhook-secret", "a/b")
    async with EmbeddedApiServer() as server:
        server.inject(Fault(resources=frozenset({"secrets"}), status=403))
        async with serving(server, "--webhook-bind-address", "127.0.0.1:0", *ours) as (_, line):

            async def waits_for_it() -> bool:
                told = await answer(f"{line.split()[-1]}/readyz")
                return told == (503, "the webhook has no certificate yet; the log has the reason\n")

            await until(waits_for_it)


def test_a_fault_in_what_must_go_on_ends_the_program() -> None:
    faulty = "from proto.kubernetes.client import ApiServer; ApiServer.list_page = None; "
    with tempfile.TemporaryDirectory(prefix="tg", dir="/tmp") as folder:
        kubeconfig = Path(folder) / "config"
        kubeconfig.write_text(UNREACHABLE)
        command = [sys.executable, "-c", faulty + "from scheduler_ext.cli import main; main()", "serve"]
        command += ["--http_bind", "127.0.0.1:0", "--metrics-bind-address", "", "--kubeconfig", str(kubeconfig)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        "Error: A part of the extender failed, and no answer is correct without it. See the log above."
    )
