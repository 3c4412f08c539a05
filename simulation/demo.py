"""The demo: machines without GPUs, the real daemons and the real extender, and pods from GPU to container."""

import asyncio
import errno
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import aiohttp

from deviceplugin.machine.described import describe_reading
from deviceplugin.machine.description import MachineDescription
from deviceplugin.machine.topology import Topology, build_topology, pair_scores
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import NODE_REGISTER, NODE_SCORE, RESOURCE_COUNT
from proto.kubernetes.client import ApiServer
from proto.kubernetes.objects import PODS, Pod
from proto.quantity import integer_quantity
from simulation import machines
from simulation.apiserver.server import EmbeddedApiServer
from simulation.choice import DEFAULT_GPU_POLICY, DEFAULT_NODE_POLICY
from simulation.hook import install_placeholder
from simulation.kube_scheduler import KubeSchedulerStandIn
from simulation.kubelet.container import CreatedContainer
from simulation.kubelet.standin import KubeletStandIn
from simulation.nvml.build import NoCompiler, build_library
from simulation.nvml.machine_file import write_machine_file, write_sysfs
from simulation.outcome import (
    DemoOutcome,
    NodeOutcome,
    PodOutcome,
    devices_by_uuid,
    is_unschedulable,
    node_outcome,
    pod_outcome,
    violations,
)
from simulation.processes import ChildProcess, ProcessFailed
from simulation.scheduling_queue import passed_nodes
from simulation.verification import score_violations
from simulation.watching import ClusterView
from simulation.workload import MACHINES, NAMESPACE, SCHEDULER_NAME, SHAPES, Shape, pod_object, workload

_READY_SECONDS = 30.0
_POLL_SECONDS = 0.05
_QUIET_SECONDS = 2.0
_SECONDS_PER_POD = 2.0
_MOST_EXPLAINED = 50
"""Pods that wait for whom the extender is asked again, node by node."""
_LONGEST_PARENT = 40
"""Characters: the sockets below must stay under the 108 a unix socket's path may have."""


_RUNTIME = "containerd://2.4.2"
_OLD_RUNTIME = "containerd://1.6.36"
"""Knows no CDI, so that the daemon there cannot hand out slots and the extender takes the node lock."""


class DemoFailed(Exception):
    """The demo could not be run to its end; one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """`nodes` cycles through MACHINES, `pods` through the shapes; port 0 takes any free one."""

    nodes: int = len(MACHINES)
    pods: int = len(SHAPES)
    api_port: int = 0
    keep: bool = False


@dataclass(slots=True, kw_only=True)
class _Node:
    name: str
    machine: MachineDescription
    kubelet: KubeletStandIn
    daemon: ChildProcess


@dataclass(slots=True, kw_only=True)
class _Run:
    """What one run has built so far; everything in it is stopped by `stack`."""

    settings: DemoSettings
    directory: Path
    progress: Callable[[str], None]
    now: Callable[[], datetime]
    stack: AsyncExitStack
    library: Path = Path()
    kubeconfig: Path = Path()
    processes: list[ChildProcess] = field(default_factory=list)
    nodes: list[_Node] = field(default_factory=list)

    def check(self) -> None:
        for process in self.processes:
            process.check_running()

    async def spawn(self, name: str, module: str, arguments: list[str], extra: Mapping[str, str]) -> ChildProcess:
        process = await ChildProcess.start(
            name,
            [sys.executable, "-m", module, *arguments],
            {**os.environ, "PYTHONUNBUFFERED": "1", **extra},
            self.directory / f"{name}.log",
        )
        self.stack.push_async_callback(process.stop)
        self.processes.append(process)
        return process


async def run_demo(settings: DemoSettings, progress: Callable[[str], None], now: Callable[[], datetime]) -> DemoOutcome:
    """Stops and removes everything before it returns or raises. Raises DemoFailed."""
    started = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="topogpu-", dir=_parent()))
    try:
        async with AsyncExitStack() as stack:
            run = _Run(settings=settings, directory=directory, progress=progress, now=now, stack=stack)
            return await _run(run, started)
    except ProcessFailed as error:
        raise DemoFailed(str(error)) from error
    except OSError as error:
        raise DemoFailed(f"The demo could not be set up: {error}") from error
    finally:
        if settings.keep:
            progress(f"Logs, kubeconfig and checkpoints are kept in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


def _parent() -> str:
    folder = tempfile.gettempdir()
    return folder if len(folder) <= _LONGEST_PARENT else "/tmp"  # noqa: S108 - mkdtemp makes a private folder in it


def _library_folder(directory: Path) -> Path | None:
    """None is the user's cache; where that cannot be written, a folder that goes when the demo does."""
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(home) if home else Path.home() / ".cache") / "topogpu"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return directory / "library"
    return None if os.access(folder, os.W_OK) else directory / "library"


async def _start_api_server(run: _Run) -> EmbeddedApiServer:
    port = run.settings.api_port
    try:
        return await run.stack.enter_async_context(EmbeddedApiServer(port=port))
    except OSError as error:
        why = "is taken by another program" if error.errno == errno.EADDRINUSE else "cannot be opened by this user"
        raise DemoFailed(f"port {port} {why}; give another one with --api-port, or 0 for any free one") from error


async def _run(run: _Run, started: float) -> DemoOutcome:
    try:
        run.library = await asyncio.to_thread(build_library, _library_folder(run.directory))
    except NoCompiler as error:
        raise DemoFailed(str(error)) from error
    server = await _start_api_server(run)
    run.kubeconfig = run.directory / "kubeconfig"
    run.kubeconfig.write_text(server.kubeconfig())
    run.progress(f"API server at {server.url}")
    api = await ApiServer.connect(str(run.kubeconfig))
    run.stack.push_async_callback(api.close)
    view = ClusterView(api)
    view.start()
    run.stack.push_async_callback(view.stop)
    extender = await _start_programs(run, api, server.url)
    await _wait_for_nodes(run, view)
    await _wait_for_extender(run, extender)
    await run.stack.enter_async_context(KubeSchedulerStandIn(api, extender, SCHEDULER_NAME))
    pods = workload(run.settings.pods)
    run.progress(f"{len(pods)} pods for {len(run.nodes)} nodes")
    await _create_pods(server.url, pods)
    await _wait_for_pods(run, view, dict(pods))
    refusals = await _refusals(server.url, extender, view, run)
    return _outcome(run, view, dict(pods), refusals, time.monotonic() - started)


async def _start_programs(run: _Run, api: ApiServer, url: str) -> str:
    """The extender's address. When one fails, nothing is being started any more on return."""
    nodes = asyncio.create_task(_start_nodes(run, api, url))
    try:
        extender = await _start_extender(run)
        await nodes
    finally:
        nodes.cancel()
        await asyncio.gather(nodes, return_exceptions=True)
    return extender


async def _start_nodes(run: _Run, api: ApiServer, url: str) -> None:
    kinds = [MACHINES[position % len(MACHINES)] for position in range(run.settings.nodes)]
    for position, kind in enumerate(kinds):
        name = f"node-{position + 1}"
        run.progress(f"{name}: {kind}")
        run.nodes.append(await _start_node(run, api, url, name, kind))


async def _start_node(run: _Run, api: ApiServer, url: str, name: str, kind: str) -> _Node:
    """The kubelet first: the daemon registers on its socket."""
    root = run.directory / name
    description = machines.load(kind)
    machine_file, sysfs = root / "machine", root / "sys"
    root.mkdir()
    write_machine_file(description, machine_file, name)
    write_sysfs(description, sysfs)
    install_placeholder(root / "hook")
    kubelet = KubeletStandIn(
        name,
        root,
        api,
        api_url=url,
        now=run.now,
        labels={"topogpu.io/machine": kind},
        cdi_directories=[root / "cdi"],
        runtime_version=_OLD_RUNTIME if kind == MACHINES[-1] else _RUNTIME,
    )
    run.stack.push_async_callback(kubelet.stop)
    await kubelet.start()
    flags = ["run", "--node-name", name, "--kubeconfig", str(run.kubeconfig), "--kubelet-root", str(root)]
    flags += ["--sysfs-root", str(sysfs), "--hook-path", str(root / "hook"), "--metrics-bind-address", ""]
    flags += ["--cdi-directory", str(root / "cdi"), "--nvml-library", str(run.library)]
    environment = {"TOPOGPU_FAKE_NVML_MACHINE": str(machine_file)}
    daemon = await run.spawn(f"daemon-{name}", "deviceplugin", flags, environment)
    return _Node(name=name, machine=description, kubelet=kubelet, daemon=daemon)


async def _start_extender(run: _Run) -> str:
    """The address it listens at."""
    flags = ["serve", "--http_bind", "127.0.0.1:0", "--kubeconfig", str(run.kubeconfig)]
    flags += ["--scheduler-name", SCHEDULER_NAME, "--metrics-bind-address", ""]
    flags += ["--node-scheduler-policy", DEFAULT_NODE_POLICY, "--gpu-scheduler-policy", DEFAULT_GPU_POLICY]
    process = await run.spawn("extender", "scheduler_ext", flags, {})
    found = await process.wait_for_line(r"listening on (http://[\d.]+:\d+)", _READY_SECONDS)
    run.progress(f"extender at {found[1]}")
    return found[1]


async def _wait_for_nodes(run: _Run, view: ClusterView) -> None:
    def waiting() -> list[str]:
        return [node.name for node in run.nodes if not _is_published(view, node)]

    if not await view.wait_until(lambda: not waiting(), run.check, _READY_SECONDS):
        late = next(node for node in run.nodes if node.name in waiting())
        raise DemoFailed(
            f"{late.name} had not published its GPUs after {_READY_SECONDS:g} s: {late.daemon.last_lines()}"
        )
    run.progress("GPUs and link scores are on the node annotations")


def _is_published(view: ClusterView, node: _Node) -> bool:
    seen = view.nodes.get(node.name)
    if seen is None or not {NODE_REGISTER, NODE_SCORE} <= seen.metadata.annotations.keys():
        return False
    return integer_quantity(seen.status.allocatable.get(RESOURCE_COUNT, 0)) > 0


async def _wait_for_extender(run: _Run, url: str) -> None:
    try:
        async with asyncio.timeout(_READY_SECONDS), aiohttp.ClientSession() as session:
            while True:
                run.check()
                async with session.get(f"{url}/readyz") as answer:
                    if answer.status == 200:
                        return
                await asyncio.sleep(_POLL_SECONDS)
    except (TimeoutError, aiohttp.ClientError) as error:
        raise DemoFailed(f"the extender at {url} did not become ready: {error or 'no answer in time'}") from error


async def _create_pods(url: str, pods: tuple[tuple[str, Shape], ...]) -> None:
    async with aiohttp.ClientSession() as session:
        for name, shape in pods:
            async with session.post(url + PODS.path(NAMESPACE), json=pod_object(name, shape)) as answer:
                if answer.status >= 400:
                    raise DemoFailed(f"the API server refused pod {name}: {await answer.text()}")


async def _wait_for_pods(run: _Run, view: ClusterView, pods: Mapping[str, Shape]) -> None:
    """Until every pod runs, has failed or is unschedulable; those that should run get a little longer."""
    limit_seconds = 15.0 + _SECONDS_PER_POD * len(pods)

    def undecided() -> list[str]:
        seen = {name: view.pods.get(name) for name in pods}
        return [
            name
            for name, pod in seen.items()
            if pod is None or not (pod.status.phase in ("Running", "Failed") or is_unschedulable(pod))
        ]

    decided = await view.wait_until(lambda: not undecided(), run.check, limit_seconds)
    some_wait = decided and any(is_unschedulable(view.pods[name]) and pods[name].fits for name in pods)
    if some_wait and not await view.wait_for_quiet(_QUIET_SECONDS, limit_seconds):
        raise DemoFailed(
            f"pods and nodes were still changing after {limit_seconds:g} s; run it with --keep and read the logs"
        )
    running = sum(pod.is_running for pod in view.pods.values())
    run.progress(f"{running} pods running, {len(pods) - running} not")


async def _refusals(url: str, extender: str, view: ClusterView, run: _Run) -> dict[str, dict[str, str]]:
    """By pod and node, the extender's FailedNodes for the pods that wait, asked as kube-scheduler asks."""
    waiting = [name for name, pod in view.pods.items() if is_unschedulable(pod)][:_MOST_EXPLAINED]
    names = [node.name for node in run.nodes]
    refusals = {}
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_READY_SECONDS)) as session:
            for name in waiting:
                async with session.get(f"{url}{PODS.path(NAMESPACE)}/{name}") as answer:
                    asked = {"Pod": await answer.json(), "Nodes": None, "NodeNames": names}
                async with session.post(f"{extender}/filter", json=asked) as answer:
                    refusals[name] = passed_nodes(await answer.json(content_type=None), names)[1]
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise DemoFailed(f"the extender did not say why {name} waits: {error or 'no answer in time'}") from error
    return refusals


def _outcome(
    run: _Run, view: ClusterView, pods: Mapping[str, Shape], refusals: Mapping[str, Mapping[str, str]], seconds: float
) -> DemoOutcome:
    try:
        nodes = tuple(_node_outcome(view, node) for node in run.nodes)
    except AnnotationError as error:
        raise DemoFailed(f"a node's annotation cannot be read: {error}") from error
    devices = devices_by_uuid(nodes)
    created: dict[str, list[CreatedContainer]] = {}
    for node in run.nodes:
        created |= node.kubelet.created
    seen = [view.pods[name] for name in pods if name in view.pods]
    problems = [*view.overbooked, *violations(seen, created, devices, _must_run(run.settings, pods))]
    for node, outcome in zip(run.nodes, nodes, strict=True):
        problems += score_violations(node.name, outcome.scores, pair_scores(_topology(node)))
    return DemoOutcome(
        nodes=nodes,
        pods=tuple(_pod_outcome(pod, pods, created, nodes, refusals) for pod in seen),
        violations=tuple(dict.fromkeys(problems)),
        seconds=round(seconds, 1),
        kept_directory=str(run.directory) if run.settings.keep else "",
    )


def _node_outcome(view: ClusterView, node: _Node) -> NodeOutcome:
    return node_outcome(view.nodes[node.name], node.machine.id, node.machine.title, _topology(node).links)


def _topology(node: _Node) -> Topology:
    return build_topology(describe_reading(node.machine, node.name))


def _pod_outcome(
    pod: Pod,
    shapes: Mapping[str, Shape],
    created: Mapping[str, Sequence[CreatedContainer]],
    nodes: Sequence[NodeOutcome],
    refusals: Mapping[str, Mapping[str, str]],
) -> PodOutcome:
    name = pod.metadata.name
    return pod_outcome(pod, shapes[name].why, created.get(pod.metadata.uid, ()), nodes, refusals.get(name, {}))


def _must_run(settings: DemoSettings, pods: Mapping[str, Shape]) -> frozenset[str]:
    """With one round of pods or less for every four machines there is room for all that fit at all."""
    rounds = -(-settings.pods // len(SHAPES))
    if settings.nodes < rounds * len(MACHINES):
        return frozenset()
    return frozenset(name for name, shape in pods.items() if shape.fits)
