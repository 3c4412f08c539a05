"""A cluster without GPUs: the real daemons and extender beside a simulated control plane and kubelets (edge)."""

import asyncio
import errno
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

import aiohttp

from proto.annotations.keys import NODE_REGISTER, NODE_SCORE, RESOURCE_COUNT
from proto.kubernetes.client import ApiServer
from proto.kubernetes.objects import Pod
from proto.quantity import integer_quantity
from simulation import machines
from simulation.admission import admitted
from simulation.apiserver.server import EmbeddedApiServer
from simulation.choice import DEFAULT_GPU_POLICY, DEFAULT_NODE_POLICY
from simulation.controllers.running import control
from simulation.hami_core import install_placeholder
from simulation.kube_scheduler import KubeSchedulerStandIn
from simulation.kubelet.lives import Life, life
from simulation.kubelet.runtime import StandInSettings
from simulation.kubelet.standin import KubeletStandIn
from simulation.machines.description import MachineDescription
from simulation.machines.sets import PlacedMachine, expanded
from simulation.machines.yaml_tree import MachineDescriptionError
from simulation.nvml.build import NoCompiler, build_library
from simulation.nvml.machine_file import MACHINE_FILE_VARIABLE, write_machine_file, write_sysfs
from simulation.processes import ChildProcess, ProcessFailed
from simulation.watching import ClusterView
from simulation.workload import MACHINES, SCHEDULER_NAME

READY_SECONDS = 30.0
_POLL_SECONDS = 0.05
_LONGEST_PARENT = 40
"""Characters: the sockets below must stay under the 108 a unix socket's path may have."""
_MIB_A_NODE = 2
"""Logs and files of a simulated node, and of the programs beside it."""
_ANY_PORT = "127.0.0.1:0"
_RUNTIME = "containerd://2.4.2"
SYSTEM_NAMESPACE = "topogpu-system"
_OLD_RUNTIME = "containerd://1.6.36"
"""Knows no CDI, so that the daemon there cannot hand out slots and the extender takes the node lock."""

KUBECONFIG = "kubeconfig"
"""The file in the cluster's directory; beside it, a directory for each node."""
MACHINE_FILE = "machine"
"""The file in a node's directory."""


class SimulationFailed(Exception):
    """The cluster could not be started or has failed; one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """One node for each of `machines`; port 0 takes any free one."""

    machines: tuple[str, ...]
    labels: tuple[Mapping[str, str], ...] = ()
    """The labels of each node; none without them."""
    api_port: int = 0
    keep: bool = False
    checks: bool = True
    """True if every moment is checked for over-booking."""
    default_scheduler: bool = False
    """True if pods that name no scheduler are scheduled too, as the webhook of an installation has it."""
    daemon_options: tuple[str, ...] = ()
    extender_options: tuple[str, ...] = ()
    status_page: bool = False
    """True if the extender serves its status page."""
    metrics: bool = False
    """True if daemons and extender serve metrics, on any free ports of 127.0.0.1."""
    pods_end: bool = False
    """True if pods end by themselves as their commands and restart policies have it."""


@dataclass(slots=True, kw_only=True)
class SimulatedNode:
    name: str
    machine: MachineDescription
    kubelet: KubeletStandIn
    daemon: ChildProcess | None
    """None on a machine without GPUs."""


@dataclass(slots=True, kw_only=True)
class SimulatedCluster:
    """The running programs. `view` follows pods and nodes; `check` raises ProcessFailed when a program has ended."""

    settings: ClusterSettings
    directory: Path
    progress: Callable[[str], None]
    now: Callable[[], datetime]
    server: EmbeddedApiServer
    api: ApiServer
    view: ClusterView
    library: Path
    described: Mapping[str, MachineDescription]
    """Nodes by the name that the settings have."""
    extender: str = ""
    """The extender's address."""
    page: str = ""
    """The address of the status page; empty without one."""
    metrics: dict[str, str] = field(default_factory=dict)
    """Addresses of metrics, by the name of the program."""
    processes: list[ChildProcess] = field(default_factory=list)
    nodes: list[SimulatedNode] = field(default_factory=list)
    kubelets: list[KubeletStandIn] = field(default_factory=list)

    @property
    def kubeconfig(self) -> Path:
        return self.directory / KUBECONFIG

    def check(self) -> None:
        for process in self.processes:
            process.check_running()

    async def spawn(
        self, name: str, module: str, arguments: list[str], extra: Mapping[str, str], under: Sequence[str] = ()
    ) -> ChildProcess:
        """`under` are words before the program, such as those of `unshare`."""
        process = await ChildProcess.start(
            name,
            [*under, sys.executable, "-m", module, *arguments],
            {**os.environ, "PYTHONUNBUFFERED": "1", **extra},
            self.directory / f"{name}.log",
        )
        self.processes.append(process)
        return process

    async def stop(self) -> None:
        """Ends all programs at once, so that hanging ones do not wait for each other; then the kubelets."""
        await asyncio.gather(*(process.stop() for process in self.processes), return_exceptions=True)
        await asyncio.gather(*(kubelet.stop() for kubelet in self.kubelets), return_exceptions=True)


def machine_kinds(named: tuple[str, ...], nodes: int | None) -> tuple[PlacedMachine, ...]:
    """Returns a machine for each node: named ones and those of sets, or else the four of the demo, in turn."""
    kinds = tuple(expanded(named or MACHINES))
    return tuple(kinds[place % len(kinds)] for place in range(len(kinds) if nodes is None else nodes))


@asynccontextmanager
async def simulated_cluster(
    settings: ClusterSettings, progress: Callable[[str], None], now: Callable[[], datetime]
) -> AsyncIterator[SimulatedCluster]:
    """Starts the cluster. On leaving, everything is stopped and removed. Raises SimulationFailed."""
    directory = Path(tempfile.mkdtemp(prefix="topogpu-", dir=_parent()))
    try:
        _check_room(directory, len(settings.machines))
        async with AsyncExitStack() as stack:
            yield await _started(settings, directory, progress, now, stack)
    except (ProcessFailed, MachineDescriptionError, NoCompiler) as error:
        raise SimulationFailed(str(error)) from error
    except OSError as error:
        raise SimulationFailed(f"the simulation could not be set up: {error}") from error
    finally:
        if settings.keep:
            progress(f"Logs, kubeconfig and checkpoints are kept in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


async def _started(
    settings: ClusterSettings,
    directory: Path,
    progress: Callable[[str], None],
    now: Callable[[], datetime],
    stack: AsyncExitStack,
) -> SimulatedCluster:
    described = {kind: machines.load(kind) for kind in dict.fromkeys(settings.machines)}
    library = await asyncio.to_thread(build_library, _library_folder(directory))
    server = await _start_api_server(settings.api_port, stack)
    kubeconfig = directory / KUBECONFIG
    kubeconfig.write_text(server.kubeconfig())
    progress(f"API server at {server.url}")
    api = await ApiServer.connect(str(kubeconfig))
    stack.push_async_callback(api.close)
    view = ClusterView(api, checks=settings.checks)
    view.start()
    stack.push_async_callback(view.stop)
    cluster = SimulatedCluster(
        settings=settings,
        directory=directory,
        progress=progress,
        now=now,
        server=server,
        api=api,
        view=view,
        library=library,
        described=described,
    )
    stack.push_async_callback(cluster.stop)
    await _start_programs(cluster)
    await _wait_for_nodes(cluster)
    await _wait_for_extender(cluster)
    if settings.default_scheduler:
        server.webhooks.append(admitted)
    scheduler = KubeSchedulerStandIn(api, cluster.extender, SCHEDULER_NAME, also_default=settings.default_scheduler)
    await stack.enter_async_context(scheduler)
    controllers = asyncio.create_task(control(server, progress, now))
    controllers.add_done_callback(partial(_ended, progress))
    stack.push_async_callback(_cancelled, controllers)
    return cluster


def _ended(progress: Callable[[str], None], controllers: asyncio.Task[None]) -> None:
    if not controllers.cancelled() and (error := controllers.exception()) is not None:
        progress(f"the stand-in controllers ended with {error!r}: workloads get no more pods")


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _parent() -> str:
    folder = tempfile.gettempdir()
    return folder if len(folder) <= _LONGEST_PARENT else "/tmp"  # noqa: S108 - mkdtemp makes a private folder in it


def _check_room(directory: Path, nodes: int) -> None:
    """Raises SimulationFailed: on a full disk each program would fail in its own way."""
    free, needed = shutil.disk_usage(directory).free >> 20, _MIB_A_NODE * (nodes + 1)
    if free < needed:
        raise SimulationFailed(
            f"{directory.parent} has {free} MiB free of {needed} needed; TMPDIR names another folder"
        )


def _library_folder(directory: Path) -> Path | None:
    """None is the user's cache; where that cannot be written, a folder that goes when the cluster does."""
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(home) if home else Path.home() / ".cache") / "topogpu"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return directory / "library"
    return None if os.access(folder, os.W_OK) else directory / "library"


async def _start_api_server(port: int, stack: AsyncExitStack) -> EmbeddedApiServer:
    try:
        return await stack.enter_async_context(EmbeddedApiServer(port=port))
    except OSError as error:
        why = "is taken by another program" if error.errno == errno.EADDRINUSE else "cannot be opened by this user"
        raise SimulationFailed(f"port {port} {why}; give another one with --api-port, or 0 for any free one") from error


async def _start_programs(cluster: SimulatedCluster) -> None:
    """When one fails, nothing is being started any more on return."""
    nodes = asyncio.create_task(_start_nodes(cluster))
    try:
        await _start_first_extender(cluster)
        await nodes
    finally:
        nodes.cancel()
        await asyncio.gather(nodes, return_exceptions=True)


async def _start_nodes(cluster: SimulatedCluster) -> None:
    for position, kind in enumerate(cluster.settings.machines):
        name = f"node-{position + 1}"
        cluster.progress(f"{name}: {kind}")
        labels = cluster.settings.labels[position] if cluster.settings.labels else {}
        cluster.nodes.append(await _start_node(cluster, name, kind, labels))


async def _start_node(cluster: SimulatedCluster, name: str, kind: str, labels: Mapping[str, str]) -> SimulatedNode:
    """Returns the kubelet first: the daemon registers on its socket."""
    root = cluster.directory / name
    description = cluster.described[kind]
    machine_file = root / MACHINE_FILE
    root.mkdir()
    write_machine_file(description, machine_file, name)
    write_sysfs(description, root / "sys")
    # Where the daemon looks for the control groups of pods.
    (root / "cgroup").mkdir(exist_ok=True)
    (root / "sys/fs").mkdir(parents=True, exist_ok=True)
    (root / "sys/fs/cgroup").symlink_to(root / "cgroup")
    install_placeholder(root / "hook")
    kubelet = KubeletStandIn(
        name,
        root,
        cluster.api,
        StandInSettings(
            api_url=cluster.server.url,
            labels={"topogpu.io/machine": Path(kind).stem, **labels},
            cdi_directories=[root / "cdi"],
            cgroups=root / "cgroup",
            runtime_version=_OLD_RUNTIME if kind == MACHINES[-1] else _RUNTIME,
        ),
        now=cluster.now,
        life=partial(_life, cluster.server) if cluster.settings.pods_end else lambda _: None,
    )
    cluster.kubelets.append(kubelet)
    await kubelet.start()
    if not description.gpus:
        return SimulatedNode(name=name, machine=description, kubelet=kubelet, daemon=None)
    flags = ["run", "--node-name", name, "--kubeconfig", str(cluster.kubeconfig), "--kubelet-root", str(root)]
    flags += ["--host-root", str(root), "--hook-path", str(root / "hook")]
    flags += ["--metrics-bind-address", _ANY_PORT if cluster.settings.metrics else ""]
    flags += ["--cdi-directory", str(root / "cdi"), "--nvml-library", str(cluster.library)]
    environment = {MACHINE_FILE_VARIABLE: str(machine_file)}
    daemon = await cluster.spawn(
        f"daemon-{name}", "deviceplugin", [*flags, *cluster.settings.daemon_options], environment
    )
    if cluster.settings.metrics:
        cluster.metrics[name] = await _listening(daemon, r"metrics are served on port (\d+)", "http://127.0.0.1:{}")
    return SimulatedNode(name=name, machine=description, kubelet=kubelet, daemon=daemon)


def _life(server: EmbeddedApiServer, pod: Pod) -> Life | None:
    found = server.store.get("pods", pod.metadata.namespace, pod.metadata.name)
    return None if found is None or found["metadata"]["uid"] != pod.metadata.uid else life(found)


async def _start_first_extender(cluster: SimulatedCluster) -> None:
    options = ["--status-bind-address", _ANY_PORT] if cluster.settings.status_page else []
    process, cluster.extender = await start_extender(cluster, "extender", options)
    cluster.progress(f"extender at {cluster.extender}")
    if cluster.settings.metrics:
        cluster.metrics["extender"] = await _listening(process, r"metrics are served on (http://[\d.]+:\d+)/metrics")
    if cluster.settings.status_page:
        cluster.page = await _listening(process, r"status page is served on (http://[\d.]+:\d+)")


async def start_extender(
    cluster: SimulatedCluster, name: str, options: Sequence[str] = (), under: Sequence[str] = ()
) -> tuple[ChildProcess, str]:
    """Starts an extender. Returns it and its address. Raises ProcessFailed."""
    flags = ["serve", "--http_bind", _ANY_PORT, "--kubeconfig", str(cluster.kubeconfig)]
    flags += ["--scheduler-name", SCHEDULER_NAME]
    flags += ["--metrics-bind-address", _ANY_PORT if cluster.settings.metrics else ""]
    flags += ["--node-scheduler-policy", DEFAULT_NODE_POLICY, "--gpu-scheduler-policy", DEFAULT_GPU_POLICY]
    flags += [*cluster.settings.extender_options, *options]
    process = await cluster.spawn(name, "scheduler_ext", flags, {"POD_NAMESPACE": SYSTEM_NAMESPACE}, under)
    return process, await _listening(process, r"listening on (http://[\d.]+:\d+)")


async def _listening(process: ChildProcess, pattern: str, form: str = "{}") -> str:
    """Returns the address that the program logs, in this form. Started again, it will listen there. Raises
    ProcessFailed.
    """
    address = form.format((await process.wait_for_line(pattern, READY_SECONDS))[1])
    process.arguments[process.arguments.index(_ANY_PORT)] = address.removeprefix("http://")
    return address


async def _wait_for_nodes(cluster: SimulatedCluster) -> None:
    view = cluster.view

    def waiting() -> list[SimulatedNode]:
        return [node for node in cluster.nodes if not _is_published(view, node)]

    if not await view.wait_until(lambda: not waiting(), cluster.check, READY_SECONDS):
        late = waiting()[0]
        said = late.daemon.last_lines() if late.daemon is not None else "its kubelet did not register it"
        raise SimulationFailed(f"{late.name} had not published its GPUs after {READY_SECONDS:g} s: {said}")
    cluster.progress("GPUs and link scores are on the node annotations")


def _is_published(view: ClusterView, node: SimulatedNode) -> bool:
    seen = view.nodes.get(node.name)
    if seen is None or node.daemon is None:
        return seen is not None
    if not {NODE_REGISTER, NODE_SCORE} <= seen.metadata.annotations.keys():
        return False
    return integer_quantity(seen.status.allocatable.get(RESOURCE_COUNT, 0)) > 0


async def _wait_for_extender(cluster: SimulatedCluster) -> None:
    url = cluster.extender
    try:
        async with asyncio.timeout(READY_SECONDS), aiohttp.ClientSession() as session:
            while True:
                cluster.check()
                async with session.get(f"{url}/readyz") as answer:
                    if answer.status == 200:
                        return
                await asyncio.sleep(_POLL_SECONDS)
    except (TimeoutError, aiohttp.ClientError) as error:
        raise SimulationFailed(f"the extender at {url} did not become ready: {error or 'no answer in time'}") from error
