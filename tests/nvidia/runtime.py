"""Containers by NVIDIA's own runtime, runc and containerd, on the simulated driver and control groups of version 2.

Everything is in one mount namespace, which has its own /etc, /run and control groups' tree.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.nvidia.driver import TRIPLE, Driver
from tests.nvidia.programs import Programs

CDI = "/run/cdi"
LIMITS = "/run/topogpu-fake-nvml.limits"
"""A hook has no environment of ours: the fake NVML keeps limits there then."""
_MACHINE_FILE = "/etc/topogpu-fake-nvml-machine"
"""The machine in the same case."""
_CONFIG = "/etc/nvidia-container-runtime/config.toml"
_SOCKET = "/run/containerd.sock"
_CUDA = (f"/usr/lib/{TRIPLE}/libcuda.so.1", "/usr/lib64/libcuda.so.1")
_ROOT_FOLDERS = ("bin", "dev", "etc", "proc", "run", "sbin", "sys", "tmp", f"usr/lib/{TRIPLE}", "usr/lib64", "usr/bin")
_SECONDS = 60.0


class NoHost(Exception):
    """This machine cannot make the namespace, in one sentence."""


class Refused(Exception):
    """The runtime made no container: its error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a container's process could open: GPUs by their minor numbers, NVIDIA's device files, and CUDA's library."""

    opened: tuple[int, ...]
    files: frozenset[str]
    has_cuda: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """The settings of NVIDIA's runtime that matter here."""

    mode: str = "auto"
    obeys_unprivileged_env: bool = True
    accepts_volume_mounts: bool = False


@dataclass(frozen=True, slots=True)
class Runtimes:
    """The folders with containerd and with runc, and the program that looks around in a container."""

    search_path: str
    runc: str
    look: Path


class Host:
    def __init__(self, programs: Programs, runtimes: Runtimes, driver: Driver) -> None:
        """Raises NoHost."""
        self.driver, self.folder = driver, driver.folder / "host"
        self._programs, self._runtimes, self._count = programs, runtimes, 0
        self._containerd: subprocess.Popen[bytes] | None = None
        shutil.copytree("/etc", self.folder / "etc", symlinks=True, ignore_dangling_symlinks=True)
        shutil.copy(driver.machine_file, f"{self.folder}{_MACHINE_FILE}")
        (self.folder / "etc/nvidia-container-runtime").mkdir(exist_ok=True)
        self.cdi = self.folder / "cdi"
        self.cdi.mkdir()
        self.set(Toolkit())
        script = "; ".join(
            (
                "umount --lazy /sys/fs/cgroup",
                "mount -t cgroup2 none /sys/fs/cgroup",
                f"mount --bind {self.folder}/etc /etc",
                "echo ready",
                "exec sleep infinity",
            )
        )
        command = driver.inside("sh", "-ec", script, bound={CDI: self.cdi})
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            raise NoHost(f"control groups of version 2 cannot be mounted here: {self._holder.communicate()[1].strip()}")

    def set(self, toolkit: Toolkit) -> None:
        """The toolkit's configuration from now on."""
        Path(f"{self.folder}{_CONFIG}").write_text(
            f"""accept-nvidia-visible-devices-envvar-when-unprivileged = {str(toolkit.obeys_unprivileged_env).lower()}
accept-nvidia-visible-devices-as-volume-mounts = {str(toolkit.accepts_volume_mounts).lower()}
[nvidia-container-cli]
root = "{self.driver.root}"
ldconfig = "@/sbin/ldconfig"
[nvidia-container-runtime]
runtimes = ["{self._runtimes.runc}"]
mode = "{toolkit.mode}"
[nvidia-container-runtime.modes.cdi]
default-kind = "nvidia.com/gpu"
spec-dirs = ["{CDI}"]
[nvidia-ctk]
path = "{self._programs.path("nvidia-cdi-hook")}"
"""
        )

    def close(self) -> None:
        if self._containerd is not None:
            children = Path(f"/proc/{self._containerd.pid}/task/{self._containerd.pid}/children").read_text().split()
            for pid in children or [str(self._containerd.pid)]:
                os.kill(int(pid), signal.SIGTERM)
            self._containerd.wait(_SECONDS)
        self._holder.kill()
        self._holder.communicate()

    def limits(self) -> list[list[str]]:
        """The limits of control groups that the driver was given: words of UUID, soft, hard and folder."""
        return [line.split() for line in self.read(LIMITS).splitlines()]

    def read(self, path: str) -> str:
        """The text of the file on the host, empty without it."""
        return subprocess.run(self._inside("cat", path), check=False, capture_output=True, text=True).stdout

    def by_runc(
        self,
        *env: str,
        command: Sequence[str] = (),
        mounts: Mapping[str, str] | None = None,
        runtime: str = "nvidia-container-runtime",
    ) -> Seen:
        """A container by NVIDIA's runtime (or plain runc) over runc, which changes it at `create` alone. Raises
        Refused.
        """
        name, root, bundle = self._fresh()
        runc = self._runtimes.runc
        self._run("sh", "-ec", f"cd {bundle} && {runc} spec")
        path = bundle / "config.json"
        spec: dict[str, Any] = json.loads(path.read_text())
        spec["process"] |= {"terminal": False, "args": [*(command or ("/bin/look", *_CUDA))], "env": list(env)}
        for kind in ("bounding", "effective", "permitted"):
            spec["process"]["capabilities"][kind].append("CAP_MKNOD")  # Kubernetes' default has it
        spec["root"] = {"path": str(root), "readonly": False}
        spec["mounts"] += [
            {"destination": place, "source": source, "type": "bind", "options": ["bind", "rw"]}
            for place, source in (mounts or {}).items()
        ]
        spec["linux"]["resources"] = {
            "devices": [{"allow": False, "access": "rwm"}, {"allow": True, "type": "c", "access": "m"}]
        }
        path.write_text(json.dumps(spec))
        output = bundle / "output"
        program = runc if runtime == "runc" else self._programs.path(runtime)
        state = ("--root", f"{bundle}/state")
        with output.open("wb") as file:
            created = subprocess.run(
                self._inside(program, *state, "create", "--bundle", str(bundle), name),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                check=False,
                timeout=_SECONDS,
            )
        if created.returncode:
            raise Refused(output.read_text())
        try:
            self._run(program, *state, "start", name)
            until = time.monotonic() + _SECONDS
            while json.loads(self._run(runc, *state, "state", name))["status"] != "stopped":
                assert time.monotonic() < until
                time.sleep(0.02)
        finally:
            self._run(runc, *state, "delete", "--force", name)
        return _seen(output.read_text())

    def by_containerd(self, *env: str, device: str, runtime: str = "nvidia-container-runtime") -> Seen:
        """A container with a CDI device by containerd, over NVIDIA's runtime or plain runc. Raises Refused."""
        self._start_containerd()
        name, root, _ = self._fresh()
        program = self._runtimes.runc if runtime == "runc" else self._programs.path(runtime)
        # Shares of processors need a controller that a host with the older control groups has elsewhere.
        words = ["ctr", "--address", _SOCKET, "run", "--rm", "--runc-binary", program, "--cpu-shares", "0"]
        words += ["--rootfs", "--device", device]
        words += [word for entry in env for word in ("--env", entry)]
        done = subprocess.run(
            self._inside(*words, str(root), name, "/bin/look", *_CUDA),
            check=False,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        if done.returncode:
            raise Refused(done.stderr)
        return _seen(done.stdout)

    def _start_containerd(self) -> None:
        if self._containerd is not None:
            return
        config = self.folder / "containerd.toml"
        off = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images")
        config.write_text(
            f'version = 3\ndisabled_plugins = {json.dumps(off)}\nroot = "/run/containerd-root"\n'
            f'state = "/run/containerd-state"\n[grpc]\n  address = "{_SOCKET}"\n'
        )
        with (self.folder / "containerd.log").open("wb") as log:
            self._containerd = subprocess.Popen(
                self._inside("containerd", "--config", str(config)), stdout=log, stderr=log
            )
        until = time.monotonic() + _SECONDS
        answers = self._inside("ctr", "--address", _SOCKET, "version")
        while subprocess.run(answers, check=False, capture_output=True).returncode:
            assert time.monotonic() < until, (self.folder / "containerd.log").read_text()[-2000:]
            time.sleep(0.05)

    def _fresh(self) -> tuple[str, Path, Path]:
        """A container's name, its root without what another one left, and its bundle."""
        self._count += 1
        name = f"nvidia-{os.getpid()}-{self._count}"
        root, bundle = self.folder / name / "root", self.folder / name / "bundle"
        for folder in _ROOT_FOLDERS:
            (root / folder).mkdir(parents=True)
        bundle.mkdir()
        shutil.copy(self._runtimes.look, root / "bin/look")
        return name, root, bundle

    def _run(self, *command: str) -> str:
        done = subprocess.run(self._inside(*command), check=False, capture_output=True, text=True, timeout=_SECONDS)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _inside(self, *command: str) -> list[str]:
        """Without our variables, as an operating system starts the services that make containers."""
        clean = ["env", "-i", f"PATH={self._runtimes.search_path}"]
        return ["nsenter", f"--target={self._holder.pid}", "--mount", "--wd=/", "--", *clean, *command]


def _seen(output: str) -> Seen:
    found = json.loads(output.strip().splitlines()[-1])
    return Seen(opened=tuple(found["opened"]), files=frozenset(found["files"]), has_cuda=found["has_cuda"])
