"""A cluster of one node with four GPUs: daemon and extender are real processes, all that they talk to is a stand-in."""

import asyncio
import atexit
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp

from proto.annotations.node_allocation import AllocationMode
from proto.kubernetes.client import ApiServer
from simulation import machines
from simulation.apiserver import EmbeddedApiServer
from simulation.apiserver.server import utc_now
from simulation.hami_core import install_placeholder
from simulation.kube_scheduler import KubeSchedulerStandIn
from simulation.kubelet.runtime import StandInSettings
from simulation.kubelet.standin import KubeletStandIn
from simulation.machines.description import gpu_uuid
from simulation.nvml.build import build_library, compiler
from simulation.nvml.machine_file import MACHINE_FILE_VARIABLE, write_machine_file, write_sysfs
from simulation.nvml.machine_file import Fault as DriverFault
from simulation.processes import ChildProcess
from tests.builders import pod_json
from tests.deviceplugin.gpus import NODE
from tests.faults.observer import Observer
from tests.faults.steps import DAEMON, EXTENDER, UNINSTALL, Moment
from tests.relay import Relay

MACHINE = machines.load("4x-a100-pcie-80g-bridged")
UUIDS = tuple(gpu_uuid(MACHINE.id, index, NODE) for index in range(len(MACHINE.gpus)))
GPU_MIB = MACHINE.gpus[0].memory_mib
MOST = (10, GPU_MIB, 100)
"""Slots, MiB and cores of each GPU."""
_HERE = Path(__file__).parent
_AGAIN_SECONDS = 0.5
"""Seconds until a program that has ended is started again, as kubelet does."""
_DISK_MIB = 2


class Need(StrEnum):
    """What a fault needs of the world around it."""

    RELAY = "relay"
    """Both programs reach the API server through a relay."""
    DISK = "disk"
    """CDI specs, HAMi-core and Bindings are on a small file system of their own, which needs root."""
    CLOCK = "clock"
    """Both programs have a wall clock that can be set."""


@dataclass(eq=False, kw_only=True)
class World:
    """`programs` run, and are started again whenever they end."""

    server: EmbeddedApiServer
    relay: Relay
    kubelet: KubeletStandIn
    observer: Observer
    http: aiohttp.ClientSession
    folder: Path
    commands: dict[str, list[str]]
    environment: dict[str, str]
    urls: dict[str, str]
    """Of /readyz and /metrics of each program."""
    verbs: str
    """The URL at which kube-scheduler reaches the extender."""
    allocation: AllocationMode = AllocationMode.SLOTS
    """What the daemon must choose."""
    moment: Moment = field(default_factory=Moment)
    programs: dict[str, ChildProcess] = field(default_factory=dict)
    ends: list[str] = field(default_factory=list)
    """How programs ended that no fault killed."""
    uids: set[str] = field(default_factory=set)
    """Of all pods that there ever were."""
    _kept: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _killed: set[str] = field(default_factory=set)

    @property
    def disk(self) -> Path:
        return self.folder / "disk"

    @property
    def node(self) -> dict[str, Any]:
        return self.server.store.get("nodes", "", NODE) or {"metadata": {}}

    def pods(self) -> list[dict[str, Any]]:
        return self.server.store.objects("pods")

    def machine(self, *faults: DriverFault) -> None:
        """What the driver shows from now on."""
        write_machine_file(MACHINE, self.folder / "machine", NODE, faults)

    async def start(self, program: str) -> None:
        self.programs[program] = await self._spawn(program)
        self._kept[program] = asyncio.create_task(self._keep(program))

    async def stop(self, program: str) -> None:
        """In order, and for good."""
        self._kept.pop(program).cancel()
        await self.programs.pop(program).stop()

    async def run(self, program: str) -> int:
        """The exit status of a program that ends by itself."""
        self.programs[program] = await self._spawn(program)
        try:
            return await self.programs[program].ended()
        finally:
            await self.programs.pop(program).stop()

    def signal(self, program: str, number: signal.Signals) -> None:
        """To the program, or to the one that removes what it left."""
        if number is signal.SIGKILL:
            self._killed.add(program)
        os.kill((self.programs.get(program) or self.programs[UNINSTALL]).pid, number)

    async def _spawn(self, program: str) -> ChildProcess:
        log = self.folder / f"{program}.log"
        return await ChildProcess.start(program, self.commands[program], self.environment, log)

    async def _keep(self, program: str) -> None:
        while True:
            status = await self.programs[program].ended()
            if program not in self._killed:
                self.ends.append(f"{program} ended with status {status}: {self.programs[program].last_lines()}")
            self._killed.discard(program)
            await asyncio.sleep(_AGAIN_SECONDS)
            await self.programs[program].start_again()

    async def end(self) -> None:
        for kept in self._kept.values():
            kept.cancel()
        for program in self.programs.values():
            if program.exit_status is None:
                os.kill(program.pid, signal.SIGCONT)
        await asyncio.gather(*(program.stop() for program in self.programs.values()))

    def create(self, name: str, gpus: int, memory_mib: int) -> None:
        pod = pod_json(name, gpus=gpus, memory_mib=memory_mib)
        del pod["metadata"]["uid"]  # a name that comes again is another pod
        made = self.server.create(pod)
        self.uids.add(made["metadata"]["uid"])

    async def delete(self, name: str) -> None:
        """As people do; not answered while the API server is away."""
        url = f"{self.server.url}/api/v1/namespaces/default/pods/{name}"
        while True:
            try:
                async with self.http.delete(url) as answer:
                    if answer.status in (200, 404):
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)

    async def get(self, url: str) -> tuple[int, bytes]:
        """Status and body; 0 where there is no answer."""
        try:
            async with self.http.get(url, timeout=aiohttp.ClientTimeout(total=5)) as answer:
                return answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError):
            return 0, b""


@asynccontextmanager
async def world(needs: frozenset[Need]) -> AsyncIterator[World]:
    """No program has been started when the block begins."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(_folder(Need.DISK in needs))
        server = await stack.enter_async_context(EmbeddedApiServer())
        relay = await stack.enter_async_context(Relay(int(server.url.rpartition(":")[2])))
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(server.kubeconfig())
        api = await ApiServer.connect(str(kubeconfig))
        stack.push_async_callback(api.close)
        if Need.RELAY in needs:
            kubeconfig.write_text(server.kubeconfig().replace(server.url, relay.url))
        kubelet = KubeletStandIn(
            *(NODE, folder, api),
            StandInSettings(
                api_url=server.url, cdi_directories=[folder / "disk/cdi"], runtime_version="containerd://2.4.2"
            ),
            now=utc_now,
        )
        stack.push_async_callback(kubelet.stop)
        ports = [stack.enter_context(_port()) for _ in range(3)]
        capacity = dict.fromkeys(UUIDS, MOST)
        it = World(
            server=server,
            relay=relay,
            kubelet=kubelet,
            observer=Observer(lambda: server.store.objects("pods"), kubelet.running, capacity),
            http=await stack.enter_async_context(aiohttp.ClientSession()),
            folder=folder,
            commands=_commands(folder, ports),
            environment=_environment(folder, Need.CLOCK in needs),
            urls={DAEMON: f"http://{ports[0]}", EXTENDER: f"http://{ports[1]}"},
            verbs=f"http://{ports[2]}",
        )
        it.machine()
        write_sysfs(MACHINE, folder / "sys")
        install_placeholder(folder / "disk/hook")
        await kubelet.start()
        scheduler = await stack.enter_async_context(KubeSchedulerStandIn(api, it.verbs))
        _watch(it, scheduler)
        stack.push_async_callback(it.end)
        yield it


def _watch(it: World, scheduler: KubeSchedulerStandIn) -> None:
    """Each peer stops at the armed step, and the observer looks after every write and before every start."""
    it.server.moments.before, it.server.moments.after = it.moment.before_request, it.moment.after_request
    it.server.written = it.observer.look
    it.kubelet.devices.moments.before = it.moment.before_kubelet_calls
    scheduler.moments.before = it.moment.before_scheduler_calls
    scheduler.moments.after = it.moment.after_scheduler_called


def _commands(folder: Path, ports: list[str]) -> dict[str, list[str]]:
    daemon = ["--node-name", NODE, "--kubeconfig", str(folder / "kubeconfig"), "--kubelet-root", str(folder)]
    daemon += ["--host-root", str(folder), "--nvml-library", str(build_library())]
    daemon += ["--hook-path", str(folder / "disk/hook"), "--cdi-directory", str(folder / "disk/cdi")]
    daemon += ["--metrics-bind-address", ports[0], "--remediation-seconds", "10", "--read-seconds", "2"]
    daemon += ["--limits", "driver,hami-core,unenforced"]  # one container gets parts of two GPUs
    extender = ["--kubeconfig", str(folder / "kubeconfig")]
    extender += ["--metrics-bind-address", ports[1], "--http_bind", ports[2], "--webhook-bind-address", "127.0.0.1:0"]
    return {
        DAEMON: [sys.executable, "-m", "deviceplugin", "run", *daemon],
        EXTENDER: [sys.executable, "-m", "scheduler_ext", "serve", *extender],
        UNINSTALL: [sys.executable, "-m", "deviceplugin", "uninstall-node", *daemon, "--host-root", str(_host(folder))],
    }


def _host(folder: Path) -> Path:
    """The host's root as a container sees it, with nothing of the machine at hand."""
    host = folder / "host"
    (host / folder.parent.relative_to("/")).mkdir(parents=True)
    (host / folder.relative_to("/")).symlink_to(folder)
    return host


def _environment(folder: Path, has_clock: bool) -> dict[str, str]:
    found = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(_HERE / "probe"), "FAULTS_TASKS": str(folder)}
    found["RUNTIME_DIRECTORY"] = str(folder / "disk/bindings")
    found[MACHINE_FILE_VARIABLE] = str(folder / "machine")
    if has_clock:
        set_clock(folder, 0)
        found |= {"LD_PRELOAD": str(_wall_clock()), "WALL_CLOCK": str(folder / "wall-clock")}
    return found


def set_clock(folder: Path, seconds: int) -> None:
    """Sets the wall clock of the programs, from the true time."""
    with open(folder / "wall-clock", "r+b" if (folder / "wall-clock").exists() else "wb") as file:
        file.write(seconds.to_bytes(8, sys.byteorder, signed=True))


@cache
def _wall_clock() -> Path:
    """Built once for each process of the tests."""
    library = Path(tempfile.mkdtemp(prefix="tg-clock")) / "wall_clock.so"
    atexit.register(shutil.rmtree, library.parent)
    subprocess.run([*compiler(), "-shared", "-fPIC", "-O1", "-o", library, _HERE / "wall_clock.c"], check=True)
    return library


@contextmanager
def _folder(has_disk: bool) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tg", dir="/tmp"))
    disk = folder / "disk"
    disk.mkdir()
    if has_disk:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK_MIB}m", "tmpfs", disk], check=True)
    try:
        for name in ("cdi", "hook", "bindings"):
            (disk / name).mkdir()
        if has_disk:  # so that it can become read-only alone
            subprocess.run(["mount", "--bind", disk / "cdi", disk / "cdi"], check=True)
        yield folder
    finally:
        if has_disk:
            subprocess.run(["umount", "--recursive", "--lazy", disk], check=True)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _port() -> Iterator[str]:
    """A free address. It is bound but nothing listens there, so that no other program is given it meanwhile."""
    with closing(socket.socket()) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield "127.0.0.1:{1}".format(*held.getsockname())
