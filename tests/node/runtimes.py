"""The container runtimes that a real node can have: how each is configured and started, and how it gets the image."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc

from tests.cluster.control_plane import free_port
from tests.node import image
from tests.node.binaries import NEWEST_CONTAINERD, NodeBinaries
from tests.node.cri import Cri, pb
from tests.node.machine import Machine
from tests.node.registry import serving

_CNI = {"cniVersion": "0.4.0", "name": "none", "plugins": [{"type": "loopback"}]}
"""Never called, because all pods are on the host's network; without one kubelet is not ready."""

_NO_PLUGIN = """#!/bin/sh
echo '{"cniVersion": "0.4.0", "supportedVersions": ["0.4.0"]}'
"""
"""CRI-O asks every plugin for its version before it is ready."""


class Runtime(Protocol):
    """One on a machine that is given to it. All methods block."""

    @property
    def socket(self) -> str:
        """Of CRI, as seen from inside."""

    @property
    def command(self) -> list[str]: ...

    @property
    def environment(self) -> Mapping[str, str]: ...

    def configure(self, *, cdi: bool = True) -> None:
        """Before its start. `cdi`: whether it applies CDI devices, where that is a switch of it."""

    def load_image(self) -> None:
        """The one of the tests; it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNetwork:
    """Of pods that are not on the host's own, and the program that starts their containers."""

    configuration: Mapping[str, Any]
    """CNI's list of plugins."""
    plugins: Path
    runc: Path


def runtime_for(machine: Machine, binaries: NodeBinaries, archive: Path, network: PodNetwork | None = None) -> Runtime:
    """`network` is for containerd 2 alone."""
    cni = machine.folder / "cni"
    cni.mkdir()
    (cni / "10-none.conflist").write_text(json.dumps(network.configuration if network else _CNI))
    (cni / "loopback").write_text(_NO_PLUGIN)
    (cni / "loopback").chmod(0o755)
    if binaries.runtime.startswith("cri-o"):
        return _CriO(machine, binaries, archive, free_port())
    return _Containerd(machine, binaries, archive, is_old=binaries.runtime != NEWEST_CONTAINERD, network=network)


@dataclass(frozen=True, slots=True)
class _Containerd:
    machine: Machine
    binaries: NodeBinaries
    archive: Path
    is_old: bool
    """1.7."""
    network: PodNetwork | None = None

    @property
    def socket(self) -> str:
        return "/run/containerd/containerd.sock"

    @property
    def command(self) -> list[str]:
        return [self.binaries.path("containerd"), "--config", str(self.machine.folder / "containerd.toml")]

    @property
    def environment(self) -> Mapping[str, str]:
        return {"PATH": self.binaries.search_path}

    def configure(self, *, cdi: bool = True) -> None:
        text = self._version_2(cdi) if self.is_old else self._version_3()
        (self.machine.folder / "containerd.toml").write_text(text)

    def load_image(self) -> None:
        if image.NAME not in self._ctr("images", "list", "--quiet"):
            local = [] if self.is_old else ["--local"]
            self._ctr("images", "import", *local, str(self.archive))

    def _ctr(self, *words: str) -> str:
        return self.machine.run(self.binaries.path("ctr"), "--namespace", "k8s.io", *words)

    # In both: without CAP_SYS_RESOURCE no process may lower an oom_score_adj.
    def _version_2(self, cdi: bool) -> str:
        cri = "io.containerd.grpc.v1.cri"
        return f"""version = 2
root = "{self.machine.folder / "runtime"}"
state = "/run/containerd"
[grpc]
  address = "{self.socket}"
[plugins."{cri}"]
  sandbox_image = "{image.NAME}"
  restrict_oom_score_adj = true
  {"enable_cdi = true" if cdi else ""}
  [plugins."{cri}".cni]
    conf_dir = "{self.machine.folder / "cni"}"
  [plugins."{cri}".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."{cri}".containerd.runtimes.runc.options]
      BinaryName = "{self.binaries.path("runc")}"
"""

    def _version_3(self) -> str:
        cri = "io.containerd.cri.v1"
        plugins = f'bin_dirs = ["{self.network.plugins}"]' if self.network else ""
        runc = str(self.network.runc) if self.network else self.binaries.path("runc")
        return f"""version = 3
root = "{self.machine.folder / "runtime"}"
state = "/run/containerd"
[grpc]
  address = "{self.socket}"
[plugins."{cri}.images"]
  [plugins."{cri}.images".pinned_images]
    sandbox = "{image.NAME}"
[plugins."{cri}.runtime"]
  restrict_oom_score_adj = true
  [plugins."{cri}.runtime".cni]
    conf_dir = "{self.machine.folder / "cni"}"
    {plugins}
  [plugins."{cri}.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."{cri}.runtime".containerd.runtimes.runc.options]
      BinaryName = "{runc}"
"""


_ADJUSTING_RUNC = """#!{python} -SE
# What this machine cannot do, and CRI-O has no setting against: without CAP_SYS_RESOURCE no process may lower an
# oom_score_adj, and the kernel may have the hugetlb controller without its being mounted.
import json, os, sys
words = sys.argv[1:]
if "--bundle" in words:
    path = os.path.join(words[words.index("--bundle") + 1], "config.json")
    with open(path) as file:
        spec = json.load(file)
    spec["process"]["oomScoreAdj"] = max(0, spec["process"].get("oomScoreAdj", 0))
    spec["linux"]["resources"].pop("hugepageLimits", None)
    with open(path, "w") as file:
        json.dump(spec, file)
os.execv("{runc}", ["{runc}", *words])
"""
_CRIO_CONF = """[crio]
root = "{folder}/storage"
runroot = "/run/containers/storage"
storage_driver = "vfs"
log_dir = "{folder}/logs"
version_file = "/run/crio/version"
version_file_persist = "{folder}/version"
clean_shutdown_file = "{folder}/clean.shutdown"
[crio.api]
listen = "{socket}"
[crio.runtime]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
pinns_path = "{pinns}"
namespaces_dir = "/run/crio/ns"
container_exits_dir = "/run/crio/exits"
container_attach_socket_dir = "/run/crio"
default_runtime = "runc"
disable_hostport_mapping = true
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
[crio.runtime.runtimes.runc]
runtime_path = "{folder}/runc"
runtime_type = "oci"
monitor_path = "{conmon}"
[crio.image]
pause_image = "{image}"
pause_command = ""
signature_policy = "{folder}/policy.json"
[crio.network]
network_dir = "{cni}"
plugin_dirs = ["{cni}"]
[crio.nri]
enable_nri = false
"""
_REGISTRIES = """[[registry]]
prefix = "{registry}"
location = "127.0.0.1:{port}"
insecure = true
"""


@dataclass(frozen=True, slots=True)
class _CriO:
    machine: Machine
    binaries: NodeBinaries
    archive: Path
    port: int
    """Of a registry while the image is loaded."""

    @property
    def socket(self) -> str:
        return "/run/crio/crio.sock"

    @property
    def command(self) -> list[str]:
        return [self.binaries.path("crio"), "--config", str(self._folder / "crio.conf"), "--config-dir", ""]

    @property
    def environment(self) -> Mapping[str, str]:
        """It looks for registries.conf at home."""
        return {"PATH": self.binaries.search_path, "HOME": str(self._folder)}

    @property
    def _folder(self) -> Path:
        return self.machine.folder / "runtime"

    def configure(self, *, cdi: bool = True) -> None:
        folder = self._folder
        (folder / "crio.conf").write_text(
            _CRIO_CONF.format(
                folder=folder,
                socket=self.socket,
                image=image.NAME,
                cni=self.machine.folder / "cni",
                pinns=self.binaries.path("pinns"),
                conmon=self.binaries.path("conmon"),
            )
        )
        (folder / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        home = folder / ".config" / "containers"
        home.mkdir(parents=True, exist_ok=True)
        registry = image.NAME.partition("/")[0]
        (home / "registries.conf").write_text(_REGISTRIES.format(registry=registry, port=self.port))
        runc = folder / "runc"
        runc.write_text(_ADJUSTING_RUNC.format(python=sys.executable, runc=self.binaries.path("runc")))
        runc.chmod(0o755)

    def load_image(self) -> None:
        """Pulled: CRI-O takes images from nowhere else."""
        socket = self.machine.folder / self.socket.lstrip("/")
        with serving(self.archive, self.port), grpc.insecure_channel(f"unix:{socket}") as channel:
            Cri(channel).pull(pb.PullImageRequest(image=pb.ImageSpec(image=image.NAME)))
