"""A container runtime, kubelet and our daemon on one machine."""

import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from deviceplugin.plugin_sockets import identity
from proto.devices import DeviceUUID
from simulation import machines
from simulation.hami_core import install_placeholder
from simulation.machines.description import MachineDescription, gpu_uuid
from simulation.nvml.build import build_library
from simulation.nvml.machine_file import MACHINE_FILE_VARIABLE, Fault, write_machine_file, write_sysfs
from tests.cluster.control_plane import ControlPlane, free_port
from tests.node.binaries import NodeBinaries
from tests.node.machine import Inside, Machine, make_device_files
from tests.node.numa import hide_numa, show_numa, write_runc
from tests.node.observed import Start, read_starts
from tests.node.runtimes import PodNetwork, runtime_for

NODE = "node-a"
ZONE_CPUS = 4
MACHINE = "dgxa100-8x-a100-40g"
DAEMON_USER = "topogpu-device-plugin"
_SOURCES = str(Path(__file__).parents[2])


class RealNode:
    """`kubelet`, `runtime` and `daemon` are None while they do not run. All methods block."""

    def __init__(
        self,
        binaries: NodeBinaries,
        plane: ControlPlane,
        archive: Path,
        *,
        layered: Sequence[str] = (),
        network: PodNetwork | None = None,
    ) -> None:
        self.machine = Machine(layered)
        self.description: MachineDescription = machines.load(MACHINE)
        self.root = self.machine.folder / "kubelet"
        """/var/lib/kubelet, as seen from outside."""
        self.runtime: Inside | None = None
        self.kubelet: Inside | None = None
        self.daemon: Inside | None = None
        self._binaries = binaries
        self._folder = self.machine.folder
        self._runtime = runtime_for(self.machine, binaries, archive, network)
        self._port = free_port()
        self._report_seconds = 1
        self._write_credentials(plane)
        self._runtime.configure()
        (self._folder / "kubelet.yaml").write_text(yaml.safe_dump(self._kubelet_configuration()))
        (self._folder / "kubelet.conf.d").mkdir()
        self._write_gpus()
        install_placeholder(self.hook_path)

    @property
    def cdi(self) -> Path:
        return self._folder / "run" / "cdi"

    @property
    def dev_root(self) -> Path:
        """Holds the device files of the GPUs, which no driver is behind."""
        return self._folder / "driver"

    @property
    def hook_path(self) -> Path:
        return self._folder / "hook"

    def binary(self, name: str) -> str:
        """Its path."""
        return self._binaries.path(name)

    def uuid(self, gpu: int) -> DeviceUUID:
        return DeviceUUID(gpu_uuid(self.description.id, gpu, NODE))

    def ensure_kubelet(self) -> None:
        """The machine is on, and its runtime and kubelet run."""
        if self.runtime is None:
            self.power_on()
        if self.kubelet is None or not self.kubelet.is_running():
            self.start_kubelet()

    def power_on(self) -> None:
        """The machine with its runtime, as its service manager would start it."""
        self.machine.power_on()
        self._start_runtime()

    def power_off(self) -> None:
        """As when the plug is pulled: /var/lib is kept, /run is not."""
        self.machine.power_off()
        for program in (self.runtime, self.kubelet, self.daemon):
            if program is not None:
                program.stop(signal.SIGKILL)
        self.runtime = self.kubelet = self.daemon = None

    def discard(self, logs: Path) -> None:
        """Only what the programs said is left, in the folder `logs`."""
        self.power_off()
        for log in self._folder.glob("*.log"):
            shutil.copy(log, logs)
        self.machine.discard()

    def configure_cdi(self, cdi: bool) -> None:
        """From now on the runtime applies CDI devices, or not, where that is a switch of it."""
        self._runtime.configure(cdi=cdi)
        if self.runtime is not None:
            self.runtime.stop()
        self._start_runtime()

    def _start_runtime(self) -> None:
        socket = self._folder / self._runtime.socket.lstrip("/")
        left = identity(str(socket))
        self.runtime = self.machine.start("runtime", self._runtime.command, self._runtime.environment)
        self.runtime.wait_for(lambda: identity(str(socket)) not in (None, left))
        self._runtime.load_image()

    def start_kubelet(self) -> None:
        """Returns once its sockets are there."""
        command = [
            self._binaries.path("kubelet"),
            f"--config={self._folder / 'kubelet.yaml'}",
            f"--config-dir={self._folder / 'kubelet.conf.d'}",
            f"--kubeconfig={self._folder / 'kubelet.kubeconfig'}",
            f"--hostname-override={NODE}",
            "--v=2",
        ]
        socket = str(self.root / "device-plugins" / "kubelet.sock")
        # A kubelet that has ended leaves its socket behind.
        left = identity(socket)
        self.kubelet = self.machine.start("kubelet", command, {"KUBELET_CONFIG_DROPIN_DIR_ALPHA": "true"})
        self.kubelet.wait_for(lambda: identity(socket) not in (None, left))

    def report_every(self, seconds: int) -> None:
        """From its next start on kubelet writes the Node's status so often, where it sees no need to do so earlier."""
        self._report_seconds = seconds
        (self._folder / "kubelet.yaml").write_text(yaml.safe_dump(self._kubelet_configuration()))

    def align(self, policy: str, scope: str = "container") -> None:
        """From its next power on each NUMA node of the machine has `ZONE_CPUS` CPUs, of which kubelet keeps the first
        for itself, and kubelet keeps CPUs and GPUs together by this policy.
        """
        zones = {number: range(number * ZONE_CPUS, (number + 1) * ZONE_CPUS) for number in self.zones}
        show_numa(self._folder, zones)
        runc = write_runc(self._folder, self.binary("runc"))
        configuration = self._folder / "containerd.toml"
        configuration.write_text(configuration.read_text().replace(self.binary("runc"), str(runc)))
        self._configure_alignment(
            cpuManagerPolicy="static",
            reservedSystemCPUs="0",
            topologyManagerPolicy=policy,
            topologyManagerScope=scope,
        )

    def align_no_more(self) -> None:
        """From its next power on the machine has its host's NUMA nodes."""
        hide_numa(self._folder)
        self._runtime.configure()
        write_sysfs(self.description, self._folder / "sys")
        self._configure_alignment()

    def _configure_alignment(self, **fields: str) -> None:
        kind = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
        (self._folder / "kubelet.conf.d" / "alignment.conf").write_text(yaml.safe_dump(kind | fields))
        # Kubelet does not start with the state of another policy.
        (self.root / "cpu_manager_state").unlink(missing_ok=True)

    @property
    def zones(self) -> list[int]:
        """The NUMA nodes with CPUs."""
        return [node.id for node in self.description.host.numa]

    def stop_kubelet(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.kubelet is not None:
            self.kubelet.stop(how)
            self.kubelet = None

    def start_daemon(self, *flags: str) -> None:
        """`topogpu-device-plugin run`, with the fake driver below it."""
        log = self._folder / "daemon.log"
        if log.exists():
            log.rename(log.with_name(f"daemon-until-{log.stat().st_mtime_ns}.log"))
        command = self._daemon_command("run", "--metrics-bind-address", "", *flags)
        self.daemon = self.machine.start("daemon", command, self._daemon_environment())

    def replace_daemon(self, *flags: str) -> None:
        """As a DaemonSet with `maxSurge` does: the next one is ready when the one before is asked to end."""
        going = self.daemon
        self.start_daemon(*flags)
        daemon = self.daemon
        assert daemon is not None
        daemon.wait_for(lambda: "registered nvidia.com/gpu with kubelet" in daemon.text())
        if going is not None:
            going.stop()

    def ask_daemon(self, verb: str, *flags: str) -> str:
        """What another of its commands prints, run where it runs. Raises MachineFailed."""
        return self.machine.run(*self._daemon_command(verb, *flags), environment=self._daemon_environment())

    def stop_daemon(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.daemon is not None:
            self.daemon.stop(how)
            self.daemon = None

    def gpus(self, *faults: Fault) -> None:
        """What the driver shows from now on."""
        write_machine_file(self.description, self._folder / "machine", NODE, faults)

    def starts(self, pod: dict[str, Any], container: str) -> list[Start]:
        """What each start of the container was given, by its own words; the first is first."""
        metadata = pod["metadata"]
        name = f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}"
        return read_starts(self._folder / "log" / "pods" / name / container)

    def _daemon_command(self, verb: str, *flags: str) -> list[str]:
        own = ["--node-name", NODE, "--kubeconfig", str(self._folder / "daemon.kubeconfig")]
        own += ["--host-root", str(self._folder), "--nvml-library", str(build_library())]
        own += ["--dev-root", str(self.dev_root), "--pass-device-specs", "true"]
        own += ["--hook-path", str(self.hook_path), "--kubelet-config", "/kubelet.yaml,/kubelet.conf.d/"]
        return [sys.executable, "-m", "deviceplugin", verb, *own, *flags]

    def _daemon_environment(self) -> dict[str, str]:
        return {MACHINE_FILE_VARIABLE: str(self._folder / "machine"), "PYTHONPATH": _SOURCES}

    def _write_credentials(self, plane: ControlPlane) -> None:
        for name, user in (("kubelet", "admin"), ("daemon", DAEMON_USER)):
            shutil.copy(plane.kubeconfig(user), self._folder / f"{name}.kubeconfig")

    def _kubelet_configuration(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": self._port,
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{self._runtime.socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.machine.cgroup}",
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "failCgroupV1": False,
            # The network is the host's own.
            "makeIPTablesUtilChains": False,
            "evictionHard": {"nodefs.available": "0%", "imagefs.available": "0%", "memory.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": f"{self._report_seconds}s",
            "registryPullQPS": 0,
            "maxPods": 110,
        }

    def _write_gpus(self) -> None:
        self.gpus()
        write_sysfs(self.description, self._folder / "sys")
        make_device_files(self.dev_root / "dev", len(self.description.gpus))
