"""The real command, on machines that are fine and machines that are not."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from click.testing import CliRunner

from deviceplugin.cli.node import doctor
from proto.annotations.keys import NODE_HANDSHAKE, NODE_LOCK, NODE_REGISTER
from proto.kubernetes.client import ApiServer
from simulation import machines
from simulation.apiserver import EmbeddedApiServer
from simulation.hami_core import install_placeholder
from simulation.kubelet.runtime import StandInSettings
from simulation.kubelet.standin import KubeletStandIn
from simulation.nvml.build import build_library
from simulation.nvml.machine_file import MACHINE_FILE_VARIABLE, write_machine_file, write_sysfs
from tests.deviceplugin.gpus import NODE
from tests.deviceplugin.registration import kubelet_root
from tests.polling import until

RESOURCE = "nvidia.com/gpu"
RUNTIME_CONFIG = "etc/nvidia-container-runtime/config.toml"
"""Below the host's root."""
KERNEL_MODULE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.12  Tue Jul 16 02:00:00 UTC 2024\n"


@dataclass
class Report:
    exit_code: int
    findings: list[dict[str, str]]

    def states(self) -> dict[str, str]:
        """The worst of each title."""
        order = ["skipped", "ok", "warning", "problem"]
        worst: dict[str, str] = {}
        for one in self.findings:
            worst[one["title"]] = max(worst.get(one["title"], "skipped"), one["state"], key=order.index)
        return worst

    def found(self, *states: str) -> set[str]:
        return {title for title, state in self.states().items() if state in states}

    def told(self, title: str) -> str:
        return " ".join(f"{one['explanation']} {one['remedy']}" for one in self.findings if one["title"] == title)


@dataclass
class FakeNode:
    """A healthy node: GPUs, kubelet, API server, HAMi-core, and the daemon as a process."""

    root: Path
    server: EmbeddedApiServer
    flags: list[str]
    environment: Mapping[str, str]
    kubelet: KubeletStandIn
    daemon: asyncio.subprocess.Process | None = None

    async def start_daemon(self) -> None:
        self.daemon = await self._process("run")
        await until(self._serves)

    async def examine(self, *more: str) -> Report:
        process = await self._process("doctor", "--output", "json", *more)
        output, _ = await process.communicate()
        assert process.returncode is not None
        return Report(process.returncode, json.loads(output)["findings"])

    def annotate(self, **annotations: str | None) -> None:
        self.server.patch("nodes", NODE, {"metadata": {"annotations": annotations}})

    async def _process(self, command: str, *more: str) -> asyncio.subprocess.Process:
        words = (sys.executable, "-m", "deviceplugin", command, *self.flags, *more)
        return await asyncio.create_subprocess_exec(
            *words,
            env={**os.environ, **self.environment},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )

    def _serves(self) -> bool:
        node: Any = self.server.store.get("nodes", "", NODE) or {"metadata": {}, "status": {}}
        registered = NODE_REGISTER in node["metadata"].get("annotations", {})
        return registered and node["status"].get("allocatable", {}).get(RESOURCE, "0") != "0"


@asynccontextmanager
async def fake_node() -> AsyncIterator[FakeNode]:
    async with AsyncExitStack() as stack:
        root = Path(await stack.enter_async_context(kubelet_root()))
        server = await stack.enter_async_context(EmbeddedApiServer())
        config = root / "kubeconfig"
        config.write_text(server.kubeconfig())
        api = await ApiServer.connect(str(config))
        stack.push_async_callback(api.close)
        kubelet = KubeletStandIn(
            *(NODE, root, api, StandInSettings(api_url=server.url)), now=lambda: datetime(2030, 1, 1, tzinfo=UTC)
        )
        stack.push_async_callback(kubelet.stop)
        await kubelet.start()
        machine = machines.load("4x-a100-pcie-80g-bridged")
        write_machine_file(machine, root / "machine", NODE)
        write_sysfs(machine, root / "sys")
        install_placeholder(root / "hook")
        flags = ["--node-name", NODE, "--kubeconfig", str(config), "--kubelet-root", str(root)]
        flags += ["--host-root", str(root), "--hook-path", str(root / "hook")]
        flags += ["--nvml-library", str(build_library()), "--metrics-bind-address", ""]
        (root / RUNTIME_CONFIG).parent.mkdir(parents=True)
        (root / RUNTIME_CONFIG).write_text("")
        node = FakeNode(root, server, flags, {MACHINE_FILE_VARIABLE: str(root / "machine")}, kubelet)
        try:
            yield node
        finally:
            if node.daemon is not None and node.daemon.returncode is None:
                node.daemon.kill()
                await node.daemon.wait()


@pytest.mark.needs_compiler
async def test_a_healthy_node_has_no_problem_and_stays_as_it_is() -> None:
    async with fake_node() as node:
        await node.start_daemon()
        before = node.server.store.version
        report = await node.examine()
        assert (report.exit_code, report.found("problem", "skipped")) == (0, set())
        assert report.found("warning") == {"CDI", "GPUs"}  # the runtime is unknown, and the GPUs are simulated
        assert "40 nvidia.com/gpu" in report.told("Kubelet's count")
        assert node.server.store.version == before


@pytest.mark.needs_compiler
async def test_settings_other_than_the_daemons_show_wherever_they_matter() -> None:
    async with fake_node() as node:
        await node.start_daemon()
        others = ["--device-split-count", "3", "--mig-strategy", "single", "--device-list-strategy", "cdi-cri"]
        report = await node.examine(*others)
        assert report.exit_code == 1
        assert report.found("problem") == {"Kubelet's count", "Node annotations", "CDI specifications"}
        assert report.found("warning") == {"CDI", "GPUs", "MIG strategy"}
        assert "40 nvidia.com/gpu where this machine has 12" in report.told("Kubelet's count")
        assert "has replicas 10 instead of 3" in report.told("Node annotations")


@pytest.mark.needs_compiler
async def test_what_a_dead_daemon_left_behind_is_told() -> None:
    async with fake_node() as node:
        await node.start_daemon()
        assert node.daemon is not None
        node.daemon.kill()
        await node.daemon.wait()
        node.annotate(**{NODE_REGISTER: "[]", NODE_LOCK: "2020-01-01T00:00:00Z,default,gone"})
        report = await node.examine()
        assert report.found("problem") == {"Device plugin", "Node annotations", "Node lock"}
        assert report.found("skipped") == {"Kubelet's count"}
        assert "has no listener" in report.told("Device plugin")
        assert "is not registered" in report.told("Node annotations")
        assert f"kubectl annotate node {NODE} hami.io/mutex.lock-" in report.told("Node lock")


@pytest.mark.needs_compiler
async def test_everything_broken_at_once_is_told_at_once() -> None:
    async with fake_node() as node:
        machine = machines.load("4x-a100-pcie-80g-bridged")
        software = msgspec.structs.replace(machine.software, init="LIB_RM_VERSION_MISMATCH")
        mismatch = msgspec.structs.replace(machine, software=software)
        write_machine_file(mismatch, node.root / "machine", NODE)
        (node.root / "proc/driver/nvidia").mkdir(parents=True)
        (node.root / "proc/driver/nvidia/version").write_text(KERNEL_MODULE)
        (node.root / "device-plugins/kubelet.sock").unlink()
        (node.root / "pod-resources/kubelet.sock").unlink()
        (node.root / "hook/vgpu/ld.so.preload").unlink()
        plugin = {"name": "device-plugin", "image": "projecthami/hami:v2.10.0", "command": ["nvidia-device-plugin"]}
        pod = {"metadata": {"name": "hami-abc", "namespace": "kube-system"}}
        node.server.create({"kind": "Pod", **pod, "spec": {"nodeName": NODE, "containers": [plugin]}})
        node.server.denied.add(("patch", "nodes"))
        node.annotate(**{NODE_HANDSHAKE: "Requesting_2020-01-01 00:00:00"})
        report = await node.examine()
        assert report.exit_code == 1
        assert report.found("problem") == {
            *("NVIDIA driver", "Kubelet's registration socket", "Device plugin", "Limits", "RBAC")
        }
        assert report.found("warning") == {"CDI", "Pod-resources socket", "Handshake of HAMi's scheduler"}
        assert "kernel module 550.90.12" in report.told("NVIDIA driver")
        assert "kube-system/hami-abc" in report.told("Device plugin")
        assert '{apiGroups: [""], resources: [nodes], verbs: [patch]}' in report.told("RBAC")


async def test_a_node_that_is_not_there_and_one_that_must_not_be_read() -> None:
    async with kubelet_root() as root, EmbeddedApiServer() as server:
        config = Path(root, "kubeconfig")
        config.write_text(server.kubeconfig())
        report = await asyncio.to_thread(examine_here, *bare_machine(root), "--kubeconfig", str(config))
        assert "has no node n" in report.told("Node")
        server.denied.add(("get", "nodes"))
        report = await asyncio.to_thread(examine_here, *bare_machine(root), "--kubeconfig", str(config))
        assert report.found("problem") >= {"Node", "RBAC"}
        await server.go_offline()
        report = await asyncio.to_thread(examine_here, *bare_machine(root), "--kubeconfig", str(config))
        assert "cannot be reached" in report.told("API server")


async def test_a_web_server_that_is_no_api_server_is_told_from_a_node_that_is_not_there() -> None:
    runner = web.AppRunner(web.Application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with kubelet_root() as root:
        config = Path(root, "kubeconfig")
        config.write_text(EmbeddedApiServer(port=runner.addresses[0][1]).kubeconfig())
        report = await asyncio.to_thread(examine_here, *bare_machine(root), "--kubeconfig", str(config))
    await runner.cleanup()
    assert "it is not an API server" in report.told("API server")
    assert report.found("skipped") >= {"Node", "RBAC"}


def test_a_machine_without_driver_kubelet_or_cluster_gets_an_answer_from_every_check(tmp_path: Path) -> None:
    report = examine_here(*bare_machine(str(tmp_path)), "--kubeconfig", "/nonexistent/kubeconfig")
    assert report.exit_code == 1
    assert report.found("problem") == {
        *("NVIDIA driver", "Kubelet's registration socket", "Device plugin", "API server")
    }
    assert "Cannot load the NVML library /nonexistent/libnvidia-ml.so.1" in report.told("NVIDIA driver")
    assert "/nonexistent/kubeconfig" in report.told("API server")


def test_a_folder_without_a_driver_is_named_where_containers_are_given_it_file_by_file(tmp_path: Path) -> None:
    settings = ("--driver-root", "/run/nvidia/driver")
    report = examine_here(*bare_machine(str(tmp_path)), "--kubeconfig", "/nonexistent/kubeconfig", *settings)
    missing = "No NVIDIA driver below /run/nvidia/driver: libcuda.so.1 is in none of its library folders. "
    assert report.told("Driver files").startswith(missing)
    libraries = tmp_path / "run/nvidia/driver/usr/lib64"
    libraries.mkdir(parents=True)
    (libraries / "libcuda.so.550.90.07").touch()
    (libraries / "libcuda.so.1").symlink_to("libcuda.so.550.90.07")
    report = examine_here(*bare_machine(str(tmp_path)), "--kubeconfig", "/nonexistent/kubeconfig", *settings)
    assert report.told("Driver files") == "Version 550.90.07 is below /run/nvidia/driver. "


def test_a_runtime_that_ignores_the_environment_of_containers_is_told_wherever_the_host_is_seen(tmp_path: Path) -> None:
    (tmp_path / RUNTIME_CONFIG).parent.mkdir(parents=True)
    (tmp_path / RUNTIME_CONFIG).write_text("accept-nvidia-visible-devices-envvar-when-unprivileged = false\n")
    bare = [*bare_machine(str(tmp_path)), "--kubeconfig", "/nonexistent/kubeconfig"]
    here = examine_here(*bare)
    assert "containers start without their GPUs" in here.told("NVIDIA's runtime")
    assert f"/{RUNTIME_CONFIG} has accept-nvidia-visible" in here.told("NVIDIA's runtime")
    by_cdi = examine_here(*bare, "--device-list-strategy", "cdi-cri")
    assert by_cdi.told("NVIDIA's runtime") == "It need not name GPUs to containers: device_list_strategy is cdi-cri. "


def test_a_container_that_nvidias_runtime_gave_no_driver_says_why_that_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = [*bare_machine(str(tmp_path)), "--kubeconfig", "/nonexistent/kubeconfig"]
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "all")
    assert "asks NVIDIA's runtime for the driver and has none" in examine_here(*bare).told("NVIDIA's runtime")
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "void")
    assert examine_here(*bare).told("NVIDIA's runtime").startswith("Its configuration is not visible here")


def test_a_configuration_the_daemon_would_refuse_is_a_problem_and_the_rest_is_still_looked_at() -> None:
    report = examine_here("--node-name", "n", "--log-level", "loud")
    assert "flag --log-level is 'loud'" in report.told("Configuration")
    assert report.found("problem") >= {"Configuration"}
    assert "NVIDIA driver" in report.states()


def test_valid_flags_beside_a_missing_or_wrong_one_are_used(tmp_path: Path) -> None:
    """Without a node's name the driver can be examined all the same, where the flags say it is."""
    flags = bare_machine(str(tmp_path))[2:]
    for wrong in ([], ["--node-name", "n", "--log-level", "loud"]):
        report = examine_here(*wrong, *flags)
        assert "/nonexistent/libnvidia-ml.so.1" in report.told("NVIDIA driver")
        assert str(tmp_path) in report.told("Kubelet's registration socket")


def test_the_text_shows_what_was_found_and_below_it_what_to_do(tmp_path: Path) -> None:
    library = install_placeholder(tmp_path).library
    library.write_text("")
    answer = CliRunner().invoke(doctor, [*bare_machine(str(tmp_path)), "--kubeconfig", "/nonexistent/kubeconfig"])
    lines = answer.output.splitlines()
    place = lines.index(
        f"✗ Limits: {library} is not an ELF file, so pods that ask for a part of a GPU are refused "
        "here; whole GPUs are given out."
    )
    assert lines[place + 1].startswith(
        "    → Install HAMi-core: set hamiCore.enabled of the chart, or run topogpu-device-plugin"
    )
    assert lines[-1] == "5 problems, 1 warning."


def bare_machine(root: str) -> list[str]:
    options = ["--node-name", "n", "--kubelet-root", root, "--hook-path", root, "--metrics-bind-address", ""]
    return [*options, "--nvml-library", "/nonexistent/libnvidia-ml.so.1", "--host-root", root]


def examine_here(*arguments: str) -> Report:
    answer = CliRunner().invoke(doctor, [*arguments, "--output", "json"])
    return Report(answer.exit_code, json.loads(answer.stdout)["findings"])
