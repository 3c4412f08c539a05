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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import click
import pytest
from click.testing import CliRunner

from scheduler_ext.cli.serve import serve
from simulation.apiserver import EmbeddedApiServer, Fault
from tests.scheduler_ext.rig import eventually

DOCUMENT = Path(__file__).parents[3] / "docs" / "configuration-scheduler.md"
UNREACHABLE = EmbeddedApiServer(port=1).kubeconfig()


def refusal(*args: str) -> str:
    result = CliRunner().invoke(serve, list(args))
    assert result.exit_code == 1
    assert len(result.output.strip().splitlines()) == 1
    return result.output.strip()


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--node-scheduler-policy", "tidy"), "--node-scheduler-policy: unknown node policy 'tidy'"),
        (("--gpu-scheduler-policy", "tidy"), "--gpu-scheduler-policy: unknown GPU policy 'tidy'"),
        (("--http_bind", "8080"), "'8080' is not an address to listen on"),
        (("--node-lock-timeout", "soon"), "'soon' is not a duration"),
        (("--node-lock-timeout", "0s"), "'0s' is not a duration above zero"),
        (("--node-lock-timeout", "99999999999999h"), "'99999999999999h' is longer than a year"),
        (("--kubeconfig", "/nowhere/config"), "/nowhere/config"),
        (("--metrics-bind-address", "9395"), "'9395' is not an address to listen on"),
        (("--node-label-selector", "gpu"), "'gpu' selects no label"),
        (("--leader-elect=true",), "--leader-elect needs --leader-elect-resource-name"),
        (("--leader-elect",), "--leader-elect needs --leader-elect-resource-name"),
        (
            ("--leader-elect", "--leader-elect-resource-name", "l"),
            "--leader-elect-resource-namespace",
        ),
        (("--scheduler-name", "Ours!"), "--scheduler-name 'Ours!' is no name"),
        (("--runtime-class-name", "a b"), "--runtime-class-name 'a b' is no name"),
        (("--resource-name", "gpu"), "--resource-name 'gpu' is no name of a resource, such as nvidia.com/gpu"),
        (("--resource-mem", "nvidia.com/gpu mem"), "--resource-mem 'nvidia.com/gpu mem' is no name of a resource"),
        (("--leader-elect", "--leader-elect-resource-name", "a/b"), "--leader-elect-resource-name 'a/b' is no name"),
        (
            (
                *("--webhook-secret", "a/b/c", "--webhook-configuration", "w"),
                *("--webhook-service", "::1", "--webhook-service", "s.ns.svc"),
            ),
            "--webhook-secret 'b/c' is no name",
        ),
        (
            ("--webhook-secret", "a/b", "--webhook-configuration", "w", "--webhook-service", "s ns"),
            "--webhook-service 's ns' is no name",
        ),
        (
            ("--kube-scheduler-healthz", "https://10.0.0.1:10259/healthz"),
            "--kube-scheduler-healthz 'https://10.0.0.1:10259/healthz' is no URL of this host",
        ),
        (("--kube-scheduler-healthz", "127.0.0.1:10259"), "is no URL of this host, such as https://127.0.0.1:10259"),
        (("--kube-qps", "nan"), "--kube-qps nan is no number of writes a second"),
        (("--node-lock-retry-timeout", "soon"), "'soon' is not a duration"),
        (("--device-config-file", "/nowhere/device-config.yaml"), "/nowhere/device-config.yaml: cannot be read"),
    ],
)
def test_a_bad_flag_is_one_sentence(args: tuple[str, ...], sentence: str) -> None:
    assert sentence in refusal(*args)


@pytest.mark.parametrize("returns", ["one", "all"])
def test_what_filter_returns_is_chosen_by_word(returns: str) -> None:
    assert "The kubeconfig /nowhere is not there" in refusal("--filter-returns", returns, "--kubeconfig", "/nowhere")


def test_the_service_has_these_flags_and_defaults() -> None:
    defaults = {flag: parameter.default for parameter in serve.params for flag in parameter.opts}
    documented = {
        "--http_bind": "127.0.0.1:8080",
        "--scheduler-name": "",
        "--default-mem": 0,
        "--default-cores": 0,
        "--default-gpu": 1,
        "--node-scheduler-policy": "binpack",
        "--gpu-scheduler-policy": "spread",
        "--node-lock-timeout": "5m",
        "--leader-elect": False,
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
    rows = re.findall(r"^\| (`-.*?) \|", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert HAMIS - {flag for row in rows for flag in re.findall(r"`--?([\w-]+)`", row)} == set()


def test_the_document_lists_every_flag_with_its_default_and_meaning() -> None:
    rows = re.findall(r"^\| (`-.*?) \| (\S+) \| (.+) \|$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert rows == [
        (", ".join(f"`{flag}`" for flag in option.opts), _default(option), option.help)
        for option in serve.params
        if isinstance(option, click.Option) and not option.hidden
    ]


def _default(option: click.Option) -> str:
    default = option.default
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default}`" if isinstance(default, (str, int, float)) and default != "" else "–"


def test_flags_that_can_mean_nothing_here_say_what_to_use_instead() -> None:
    flags = ("--profiling", "--logtostderr=false", "--vmodule", "a=4", "--node-lock-retry-timeout=28s")
    first, *lines = told(*flags, "--kube-burst=20")
    assert first == "warning: --kube-burst changes nothing without --kube-qps: writes are not limited"
    assert [line.partition("scheduler_ext.cli.")[2] for line in lines[:-1]] == [
        "logs: --profiling changes nothing: Go's profiler has nothing to look at here; "
        "use py-spy, or the histograms of /metrics",
        "logs: --vmodule changes nothing: use --log-level debug",
        "serve: --node-lock-retry-timeout 28s counts as 22s: after that kube-scheduler gives up the bind",
    ]
    assert lines[-1] == "Error: The kubeconfig /nowhere is not there or no file: check --kubeconfig."


@pytest.mark.parametrize(
    ("flags", "level"),
    [((), "INFO"), (("--debug",), "DEBUG"), (("-v=4",), "DEBUG"), (("-v", "3"), "INFO"), (("--v=5",), "DEBUG")],
)
def test_hamis_words_for_more_log_lines_are_understood(flags: tuple[str, ...], level: str) -> None:
    refusal("--kubeconfig", "/nowhere", *flags)
    assert logging.getLevelName(logging.getLogger("scheduler_ext").level) == level


def told(*flags: str) -> list[str]:
    """What it prints before it ends for want of a kubeconfig."""
    command = [sys.executable, "-m", "scheduler_ext", "serve", "--kubeconfig", "/nowhere", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stderr.splitlines()


def test_topology_is_accepted_as_a_policy_with_a_warning() -> None:
    command = [sys.executable, "-m", "scheduler_ext", "serve", "--gpu-scheduler-policy", "topology"]
    result = subprocess.run(
        [*command, "--kubeconfig", "/nowhere/config"], capture_output=True, text=True, timeout=120, check=False
    )
    assert "'topology' is read as 'topology-aware'; write that" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: ")
    assert "/nowhere/config" in result.stderr.splitlines()[-1]


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
    ours = ("--webhook-secret", "a/b", "--webhook-configuration", "w", "--webhook-service", "s.ns.svc")
    async with EmbeddedApiServer() as server:
        server.inject(Fault(resources=frozenset({"secrets"}), status=403))
        async with serving(server, "--webhook-bind-address", "127.0.0.1:0", *ours) as (_, line):

            async def waits_for_it() -> bool:
                told = await answer(f"{line.split()[-1]}/readyz")
                return told == (503, "the webhook has no certificate yet; the log says why\n")

            await eventually(waits_for_it)


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
        "Error: A part of the extender has failed, and nothing true can be answered without it: see above."
    )
