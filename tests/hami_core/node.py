"""A node with simulated GPUs and the real HAMi-core, and containers with exactly what the daemon gives them.

A container is a mount and a PID namespace with the daemon's mounts and environment. The driver is a pair of libraries
that count: memory is a number in a file which all processes share.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deviceplugin.container.edits import (
    PRELOAD_LIST,
    AllocationSettings,
    ContainerEdits,
    ContainerFacts,
    Hardware,
    Mount,
)
from deviceplugin.container.hami_core import prepared_edits
from deviceplugin.container.hami_core_install import install_hami_core
from deviceplugin.settings import AgentSettings
from proto.devices import Device, DeviceShare, DeviceUUID
from tests.hami_core.programs import Programs

CONTEXT_MIB = 256
"""What a CUDA context takes of the simulated GPU."""
STEP_MIB = 100
OUT_OF_MEMORY = 2
"""CUDA_ERROR_OUT_OF_MEMORY."""
_ANSWER_SECONDS = 60


def uuid(digit: str) -> DeviceUUID:
    return DeviceUUID(f"GPU-{digit * 8}-{digit * 4}-{digit * 4}-{digit * 4}-{digit * 12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedGpu:
    uuid: DeviceUUID
    memory_mib: int
    bus: str
    """Its PCI address; `-` for a MIG instance of the GPU before it."""
    multiprocessors: int = 108


class CoreNode:
    """`root` has the role of /usr/local: HAMi-core is installed below it."""

    def __init__(
        self, programs: Programs, folder: Path, gpus: Sequence[SimulatedGpu], library: Path | None = None
    ) -> None:
        self.programs, self.folder, self.root = programs, folder, folder / "root"
        self._containers: list[CoreContainer] = []
        for name in ("hostproc", "source", "root", "of-host"):
            (folder / name).mkdir()
        shutil.copytree("/etc", folder / "etc", symlinks=True, ignore_dangling_symlinks=True)
        (folder / "etc/ld.so.preload").touch()
        (folder / "etc/ld.so.conf.d/simulated-driver.conf").write_text(f"{programs.driver}\n")
        rows = (f"{each.uuid} {each.bus} {each.memory_mib} {each.multiprocessors}" for each in gpus)
        (folder / "list").write_text("".join(f"{row} {minor} Simulated\n" for minor, row in enumerate(rows)))
        shutil.copy(library or programs.library, folder / "source/libvgpu.so")
        install_hami_core(folder / "source", self.root, machine=os.uname().machine)
        self.inventory = {each.uuid: _device(number, each) for number, each in enumerate(gpus)}
        self._hardware = Hardware(pci_addresses={each.uuid: each.bus for each in gpus})

    def container(
        self,
        *shares: DeviceShare,
        pod: str = "1",
        allowed: bool = False,
    ) -> "CoreContainer":
        """A container of a pod of its own, as the daemon prepares it. Raises CannotLimit."""
        facts = ContainerFacts(pod_uid=uuid(pod).removeprefix("GPU-"), name="main")
        made = CoreContainer(self, facts, shares, allowed)
        self._containers.append(made)
        return made

    def edits(self, facts: ContainerFacts, shares: tuple[DeviceShare, ...], allowed: bool) -> ContainerEdits:
        return prepared_edits(
            *(shares, self.inventory, facts, AllocationSettings(), self._hardware),
            node=AgentSettings(hook_path=str(self.root), allows_unheld=allowed),
        )

    @property
    def driver_env(self) -> dict[str, str]:
        return {
            "FAKE_GPU_LIST": str(self.folder / "list"),
            "FAKE_GPU_STATE": str(self.folder / "state"),
            "FAKE_GPU_PROC": str(self.folder / "hostproc"),
            "FAKE_CONTEXT_MIB": str(CONTEXT_MIB),
        }

    def held_mib(self) -> dict[DeviceUUID, list[int]]:
        """MiB of each process on each GPU, by the driver's own count."""
        env = {**self.driver_env, "FAKE_GPU_PROC": "/proc"}
        done = subprocess.run([self.programs.held], env=env, check=True, capture_output=True, text=True)
        found: Mapping[str, Mapping[str, Sequence[int]]] = json.loads(done.stdout)
        return {DeviceUUID(gpu): [each[0] for each in processes.values()] for gpu, processes in found.items()}

    def close(self) -> None:
        for each in self._containers:
            each.stop()


class CoreContainer:
    def __init__(self, node: CoreNode, facts: ContainerFacts, shares: tuple[DeviceShare, ...], allowed: bool) -> None:
        self.node, self.facts, self._shares, self._allowed = node, facts, shares, allowed
        self.edits = node.edits(facts, shares, allowed)
        self._first: subprocess.Popen[str] | None = None
        self._tenants: list[Tenant] = []

    def start(
        self, program: str = "tenant", *, env: Mapping[str, str] | None = None, cleared: bool = False
    ) -> "Tenant":
        """One more process, the first of which starts the container. A `cleared` one has none of the container's
        limits in its environment, as after sudo.
        """
        visible = {name: value for name, value in self.edits.env.items() if name == "NVIDIA_VISIBLE_DEVICES"}
        given = visible if cleared else dict(self.edits.env)
        whole = {"PATH": "/usr/bin:/bin", **self.node.driver_env, **given, **(env or {})}
        pairs = [f"{name}={value}" for name, value in whole.items()]
        tenant = Tenant([*self._inside(), "env", "-i", *pairs, str(self.node.programs.tenant(program))])
        self._tenants.append(tenant)
        return tenant

    def shell(self, script: str) -> subprocess.CompletedProcess[str]:
        command = [*self._inside(), "sh", "-c", script]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    def restart(self) -> None:
        """Ends the container and prepares it again, as the daemon does before each start."""
        self.stop()
        self.edits = self.node.edits(self.facts, self._shares, self._allowed)

    def stop(self) -> None:
        for each in self._tenants:
            each.kill()
        if self._first is not None:
            self._first.kill()
            self._first.communicate()
        self._first, self._tenants = None, []

    def _inside(self) -> list[str]:
        if self._first is None:
            self._first = self._begin()
        children = Path(f"/proc/{self._first.pid}/task/{self._first.pid}/children").read_text().split()
        return ["nsenter", "--target", children[0], "--mount", "--pid"]

    def _begin(self) -> subprocess.Popen[str]:
        """The container's first process mounts what the daemon names, and waits as pid 1."""
        folder, root = self.node.folder, str(self.node.root)
        own = [f"mount --bind /proc {folder}/hostproc", f"mount --bind {root} {folder}/of-host"]
        own += [f"mount --bind {folder}/etc /etc", "ldconfig 2> /dev/null"]
        for mount in sorted(self.edits.mounts, key=_outer_first):
            make = "mkdir -p" if Path(mount.host_path).is_dir() else "touch"
            own.append(f"[ -e {mount.container_path} ] || {make} {mount.container_path}")
            # A mount over the root hides the host's own files there.
            own.append(f"mount --bind {mount.host_path.replace(root, f'{folder}/of-host', 1)} {mount.container_path}")
        inner = "unshare --pid --fork --kill-child --mount-proc sh -ec 'echo ready; exec sleep infinity'"
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", "; ".join([*own, f"exec {inner}"])]
        first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert first.stdout is not None
        if first.stdout.readline() != "ready\n":
            raise AssertionError(f"the container did not start: {first.communicate()[1]}")
        return first


class Tenant:
    """A process in a container: one command a line, one answer a line, of a CUresult and values."""

    def __init__(self, command: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, bufsize=1
        )

    def __call__(self, line: str, seconds: float = _ANSWER_SECONDS) -> list[str]:
        """The answer's words. Raises TimeoutError, and EOFError where the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            raise TimeoutError(f"no answer to {line!r} within {seconds} s")
        answer = self._process.stdout.readline().split()
        if not answer:
            raise EOFError(f"the process ended with {self._process.wait()}")
        return answer

    def begun(self, gpu: int = 0) -> "Tenant":
        """Itself, with a CUDA context on its GPU of that number."""
        assert self("init") == ["0"]
        assert self(f"use {gpu}") == ["0"]
        return self

    def filled_mib(self, how: str = "alloc", most: int = 20_000) -> tuple[int, int]:
        """MiB until a step is refused, and the code of the refusal; 0 where none of `most` MiB was."""
        for done in range(0, most, STEP_MIB):
            if code := int(self(f"{how} {STEP_MIB}")[0]):
                return done, code
        return most, 0

    def total_mib(self) -> int:
        """The GPU's memory as CUDA reports it."""
        return int(self("info")[2])

    def loads(self, library: str) -> bool:
        return library in Path(f"/proc/{self._host_pid()}/maps").read_text()

    def kill(self) -> None:
        """SIGKILL to the program itself; nsenter ends with it."""
        if self._process.poll() is None:
            os.kill(self._host_pid(), signal.SIGKILL)
        self._process.communicate()

    def _host_pid(self) -> int:
        """nsenter forks for the PID namespace."""
        pid, until = self._process.pid, time.monotonic() + _ANSWER_SECONDS
        while time.monotonic() < until:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if not children:
                return pid
            pid = int(children[0])
        raise TimeoutError("the process has no end of children")


def part(gpu: SimulatedGpu, memory_mib: int, cores: int = 0) -> DeviceShare:
    return DeviceShare(uuid=gpu.uuid, memory_mib=memory_mib, cores=cores)


def whole(gpu: SimulatedGpu) -> DeviceShare:
    return part(gpu, gpu.memory_mib, 100)


def holds(filled: tuple[int, int], limit_mib: int) -> bool:
    """The last step that succeeded is the last that fits beside the context."""
    mib, code = filled
    return code == OUT_OF_MEMORY and mib + CONTEXT_MIB <= limit_mib < mib + CONTEXT_MIB + STEP_MIB


def _outer_first(mount: Mount) -> tuple[bool, int]:
    """Folders come before what is mounted inside them, and the list of libraries, which every program reads, last."""
    return mount.container_path == PRELOAD_LIST, mount.container_path.count("/")


def _device(number: int, gpu: SimulatedGpu) -> Device:
    return Device(
        uuid=gpu.uuid,
        index=number,
        replicas=10,
        memory_mib=gpu.memory_mib,
        cores=100,
        type="NVIDIA-Simulated",
        numa=0,
        mode="mig" if gpu.bus == "-" else "hami-core",
        healthy=True,
    )
