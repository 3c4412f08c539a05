"""The daemon as a process over the fake NVML library, between the kubelet stand-in and the embedded API server."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import grpc

from deviceplugin.plugin_sockets import plugin_socket
from deviceplugin.replicas import split_replica
from proto.annotations.keys import NODE_ALLOCATION, NODE_LOCK, NODE_REGISTER, NODE_SCORE
from proto.annotations.node_lock import NodeLock, encode_lock
from proto.annotations.node_register import decode_register, decode_scores
from proto.devices import Device, DeviceUUID, PairScores, PodShares
from proto.kubelet import deviceplugin_v1beta1_pb2 as pb
from proto.kubelet import deviceplugin_v1beta1_pb2_grpc as rpc
from proto.kubernetes.client import ApiServer
from simulation import machines
from simulation.apiserver import EmbeddedApiServer
from simulation.hami_core import install_placeholder
from simulation.kubelet.container import CdiOrder
from simulation.kubelet.runtime import StandInSettings
from simulation.kubelet.standin import KubeletStandIn
from simulation.machines.description import MachineDescription, gpu_uuid
from simulation.nvml.build import build_library
from simulation.nvml.machine_file import MACHINE_FILE_VARIABLE, Fault, Usage, write_machine_file, write_sysfs
from tests.deviceplugin.gpus import NODE, bound_annotations, share
from tests.deviceplugin.registration import kubelet_root
from tests.polling import until

RESOURCE = "nvidia.com/gpu"
BRIDGED = machines.load("4x-a100-pcie-80g-bridged")
_SERIES = re.compile(r"([^\s#][^\s{]*(?:\{.*\})?) (\S+)")
_PORT = re.compile(r"metrics are served on port (\d+)")
_WATCHES = 3
"""Nodes and pods by the daemon, pods by kubelet."""
_TROUBLE = ("Traceback", "Fatal Python error", " ERROR ", " CRITICAL ", "Warning:", "never retrieved", "never awaited")
_STACK_SECONDS = 2.0
T0 = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass
class DaemonRig:
    """`options` are the daemon's, `under` the words before its command; `log` is what it has written so far."""

    server: EmbeddedApiServer
    kubelet: KubeletStandIn
    description: MachineDescription
    options: tuple[str, ...]
    under: tuple[str, ...]
    log: list[str] = field(default_factory=list)
    process: asyncio.subprocess.Process = field(init=False)
    _reading: asyncio.Task[None] = field(init=False)
    _before: int = field(init=False)
    """Lines of the log that are not of this process."""

    async def start(self) -> None:
        self._before = len(self.log)
        self.process = await asyncio.create_subprocess_exec(
            *(*self.under, sys.executable, "-m", "deviceplugin", "run", *self.options),
            env={**os.environ, MACHINE_FILE_VARIABLE: str(self.kubelet.root / "machine")},
            stderr=asyncio.subprocess.PIPE,
        )
        self._reading = asyncio.create_task(_read(self.process, self.log))

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.ended()

    async def ended(self) -> int:
        """The status with which the daemon ends; then `log` is whole."""
        status = await self.process.wait()
        await self._reading
        return status

    @property
    def cdi(self) -> Path:
        return self.kubelet.root / "cdi"

    def machine(self, *faults: Fault, usage: Sequence[Usage] = ()) -> None:
        """What the driver shows from now on."""
        write_machine_file(self.description, self.kubelet.root / "machine", NODE, faults, usage)

    def uuid(self, gpu: int) -> DeviceUUID:
        return DeviceUUID(gpu_uuid(self.description.id, gpu, NODE))

    def annotations(self) -> dict[str, str]:
        node: Any = self.server.store.get("nodes", "", NODE) or {"metadata": {}}
        found: dict[str, str] = node["metadata"].get("annotations", {})
        return found

    def annotation(self, key: str = NODE_REGISTER) -> str:
        return self.annotations().get(key, "")

    def is_by_slots(self) -> bool:
        return self.annotation(NODE_ALLOCATION) == "slots"

    def gpus(self) -> tuple[Device, ...]:
        return tuple(decode_register(self.annotation())) if self.annotation() else ()

    def ill(self) -> set[int]:
        """Indices of the GPUs that the node's annotation does not call healthy."""
        return {gpu.index for gpu in self.gpus() if not gpu.healthy}

    def scores(self) -> PairScores:
        return decode_scores(self.annotation(NODE_SCORE))

    def capacity(self, resource: str = RESOURCE) -> tuple[int, int]:
        """All replicas and the healthy ones, as kubelet counts them."""
        return self.kubelet.devices.capacity().get(resource, (0, 0))

    def registrations(self) -> int:
        return self.kubelet.devices.calls.count(f"Register {RESOURCE}")

    def writes(self, resource: str = "nodes") -> int:
        """Of the object itself; statuses are kubelet's."""
        return sum(
            request.verb == "patch" and request.resource == resource and not request.subresource
            for request in self.server.requests
        )

    def events(self, reason: str) -> list[str]:
        return [event["message"] for event in self.server.store.objects("events") if event["reason"] == reason]

    def said(self, text: str) -> bool:
        return any(text in line for line in self.log)

    def problems(self) -> list[str]:
        """What no daemon should ever log."""
        return [line for line in self.log if any(mark in line for mark in _TROUBLE)]

    async def ready(self) -> None:
        """Reported, registered, and told whatever changes from now on."""
        await self.becomes(lambda: bool(self.annotation()) and self.capacity()[1] > 0)
        await self.becomes(self.is_ready)
        await self.becomes(lambda: self.server.open_watches == _WATCHES)

    async def becomes(self, fact: Callable[[], object]) -> None:
        """Until the fact is true. Fails at once when the daemon has ended; after the deadline its log has what its
        threads and tasks wait for.
        """
        try:
            await until(lambda: self._lives() and fact())
        except TimeoutError:
            self.process.send_signal(signal.SIGUSR1)
            await asyncio.sleep(_STACK_SECONDS)
            raise

    def _lives(self) -> bool:
        status = self.process.returncode
        assert status is None, f"the daemon has ended with status {status}"
        return True

    def lock(self, pod: str) -> None:
        lock = encode_lock(NodeLock(taken_at=T0, namespace="default", pod=pod))
        self.server.patch("nodes", NODE, {"metadata": {"annotations": {NODE_LOCK: lock}}})

    def bind(
        self,
        name: str,
        *gpus: int,
        resource: str = RESOURCE,
        lent: PodShares | None = None,
        env: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """A pod whose one container was decided for these GPUs, or for what `lent` says; its UID."""
        shares = (tuple(share(self.uuid(gpu)) for gpu in gpus),) if lent is None else lent
        return self._create(name, shares, [{resource: str(max(1, len(gpus)))}], env=env)

    def bind_shares(self, name: str, shares: PodShares, *, init: int = 0) -> str:
        """One container for each entry, the first `init` of them init containers."""
        return self._create(name, shares, [{RESOURCE: str(len(held))} if held else {} for held in shares], init)

    def _create(
        self,
        name: str,
        shares: PodShares,
        limits: Sequence[Mapping[str, str]],
        init: int = 0,
        env: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        containers = [
            {"name": f"c{number}", "image": "i", "resources": {"limits": asked}, "env": list(env)}
            for number, asked in enumerate(limits)
        ]
        metadata = {"name": name, "annotations": bound_annotations(shares) if shares else {}}
        spec = {"nodeName": NODE, "initContainers": containers[:init], "containers": containers[init:]}
        made = self.server.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        return str(made["metadata"]["uid"])

    def status(self, name: str) -> dict[str, Any]:
        pod: Any = self.server.store.get("pods", "default", name)
        found: dict[str, Any] = pod["status"]
        return found

    def waiting(self, name: str) -> str:
        """What kubelet says of the first container, empty unless it waits."""
        statuses = self.status(name).get("containerStatuses", [])
        return str(statuses[0]["state"].get("waiting", {}).get("message", "")) if statuses else ""

    async def runs(self, *names: str) -> None:
        for name in names:
            await self.becomes(lambda name=name: self.status(name).get("phase") in ("Running", "Failed"))  # type: ignore[misc]
            assert self.status(name)["phase"] == "Running", self.status(name)

    def env(self, uid: str, position: int = 0) -> Mapping[str, str]:
        """What one of the pod's containers was created with, in the order of their creation."""
        return self.kubelet.created[uid][position].env

    def visible(self, uid: str, position: int = 0) -> str:
        return self.env(uid, position)["NVIDIA_VISIBLE_DEVICES"]

    @asynccontextmanager
    async def plugin(self) -> AsyncIterator["rpc.DevicePluginAsyncStub"]:
        target = f"unix:{plugin_socket(f'{self.kubelet.root}/device-plugins', 'nvidia.com/gpu')}"
        async with grpc.aio.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            yield rpc.DevicePluginStub(channel)

    async def allocate(self, *ids: str, seconds: float) -> dict[str, str]:
        """As kubelet calls it. Raises grpc.aio.AioRpcError, also when it takes longer."""
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        async with self.plugin() as plugin:
            answer = await plugin.Allocate(request, timeout=seconds)
        return dict(answer.container_responses[0].envs)

    async def unhealthy(self) -> set[int]:
        """Indices of the GPUs of which kubelet is told that every replica is unhealthy; of others none may be."""
        async with self.plugin() as plugin:
            stream = plugin.ListAndWatch(pb.Empty())
            told = (await anext(aiter(stream))).devices
            stream.cancel()
        words: dict[str, set[str]] = {}
        for replica in told:
            words.setdefault(split_replica(replica.ID)[0], set()).add(replica.health)
        assert all(len(word) == 1 for word in words.values()), words
        return {gpu for gpu in range(len(self.description.gpus)) if words.get(self.uuid(gpu)) == {"Unhealthy"}}

    async def url(self) -> str:
        """Of the daemon's own HTTP server, without a path."""
        await self.becomes(lambda: any(map(_PORT.search, self.log[self._before :])))
        port = next(found[1] for found in map(_PORT.search, self.log[self._before :]) if found)
        return f"http://127.0.0.1:{port}"

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text of the daemon's own HTTP server."""
        url = await self.url()
        async with aiohttp.ClientSession() as session, session.get(url + path) as answer:
            return answer.status, await answer.text()

    async def is_ready(self) -> bool:
        return (await self.get("/readyz"))[0] == 200

    async def counts(self, series: str, path: str = "/metrics") -> bool:
        """Is it there, and more than 0?"""
        return bool((await self.series(path)).get(series))

    async def series(self, path: str = "/metrics") -> dict[str, float]:
        """The metrics by name and labels."""
        _, text = await self.get(path)
        found = (_SERIES.fullmatch(line) for line in text.splitlines())
        return {match[1]: float(match[2]) for match in found if match}


@asynccontextmanager
async def daemon(
    *flags: str,
    description: MachineDescription = BRIDGED,
    faults: Sequence[Fault] = (),
    library: Path | None = None,
    ready: bool = True,
    hami_core: bool = True,
    runtime_version: str = "simulated://1",
    cdi_order: CdiOrder = CdiOrder.LAST,
    cdi_lags: bool = False,
    image_env: Mapping[str, str] | None = None,
    before: Callable[[EmbeddedApiServer, Path], None] = lambda *_: None,
    under: Callable[[Path], Sequence[str]] = lambda root: (),
    host: Path | None = None,
    control_groups: bool = False,
) -> AsyncIterator[DaemonRig]:
    """With `hami_core` HAMi-core seems to be installed. With `ready` it has registered and reported when the block
    begins.

    The daemon chooses by the runtime's version whether it serves by slots. `before` is called with the API server and
    the node's root once kubelet runs. `under`: the words before the daemon's command, for the folder that it may
    write to. `host`: where the daemon sees the host's folders, if not in the node's root. With `control_groups` there
    are folders that look like those of version 2, and containers run their hooks.
    """
    library = library or build_library()
    async with AsyncExitStack() as stack:
        root = Path(await stack.enter_async_context(kubelet_root()))
        server = await stack.enter_async_context(EmbeddedApiServer())
        config = root / "kubeconfig"
        config.write_text(server.kubeconfig())
        api = await ApiServer.connect(str(config))
        stack.push_async_callback(api.close)
        cdi = root / "cdi"
        kubelet = KubeletStandIn(
            *(NODE, root, api),
            StandInSettings(
                api_url=server.url,
                cdi_directories=[cdi],
                runtime_version=runtime_version,
                cdi_order=cdi_order,
                cdi_lags=cdi_lags,
                image_env=image_env or {},
                cgroups=root / "cgroup" if control_groups else None,
            ),
            now=lambda: T0,
        )
        stack.push_async_callback(kubelet.stop)
        await kubelet.start()
        write_machine_file(description, root / "machine", NODE, faults)
        write_sysfs(description, (host or root) / "sys")
        if hami_core:
            install_placeholder(root / "hook")
        own = ["--node-name", NODE, "--kubeconfig", str(config), "--kubelet-root", str(root)]
        own += ["--host-root", str(host or root), "--hook-path", str(root / "hook"), "--nvml-library", str(library)]
        own += ["--cdi-directory", str(cdi), "--metrics-bind-address", "127.0.0.1:0"]
        # Where the daemon looks for the control groups of pods.
        (root / "cgroup").mkdir()
        (root / "sys/fs").mkdir(parents=True)
        (root / "sys/fs/cgroup").symlink_to(root / "cgroup")
        if control_groups:
            (root / "cgroup/kubepods").mkdir()
            (root / "cgroup/cgroup.controllers").touch()
            (root / "cgroup/kubepods/cgroup.procs").touch()
        before(server, root)
        rig = DaemonRig(server, kubelet, description, (*own, *flags), tuple(under(root)))
        await rig.start()
        try:
            if ready:
                await rig.ready()
            yield rig
        finally:
            await rig.kill()
            print(*rig.log, sep="\n")  # shown when the test fails


async def _read(process: asyncio.subprocess.Process, log: list[str]) -> None:
    assert process.stderr is not None
    async for line in process.stderr:
        log.append(line.decode().rstrip("\n"))  # noqa: PERF401 - read while it grows
