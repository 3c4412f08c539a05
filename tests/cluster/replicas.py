"""Replicas of the scheduler's pod as the manifests have it, without a kubelet: what kubelet would do is played here.

Each replica has a host name of its own (a UTS namespace), by which its two containers know each other in the lease.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.cluster.control_plane import ControlPlane, Program, free_port
from tests.cluster.scheduling import EXTENDER_USER, scheduler_configuration
from tests.daemonset import shipped

JsonObject = dict[str, Any]
NOTICED_SECONDS = 1.0
"""Kubelet looks for containers that ended once a second."""
LEAST_GRACE_SECONDS = 2.0
"""What kubelet gives a container after its hook."""
FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS = 10.0, 300.0
_FLAGS_OF_A_CLUSTER = (
    "--webhook-",
    "--leader-elect-resource-",
    "--http_bind",
    "--kube-scheduler-healthz",
)
"""Of the extender's flags, those that name what is not there or elsewhere here."""


def can_be_named() -> bool:
    """Whether this machine lets us give a process a host name of its own."""
    return subprocess.run(["unshare", "--uts", "hostname", "tried"], capture_output=True, check=False).returncode == 0


@dataclass
class PlayedContainer:
    """One container: started, probed and restarted by the manifest's own numbers, as kubelet does."""

    name: str
    spec: JsonObject
    grace_seconds: float
    command: Sequence[str]
    ports: Mapping[int | str, int]
    """From the manifest's to ours."""
    log: Path
    fails: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: it ends with an error as soon as it is started."""
    started: int = 0
    program: Program | None = None

    @property
    def pid(self) -> int:
        assert self.program is not None
        return self.program.pid

    async def run(self) -> None:
        """Until cancelled. The first restart comes at once, the others after 10 s, 20 s and so on to 5 minutes."""
        for pause_seconds in self._pauses():
            await asyncio.sleep(pause_seconds)
            self.started += 1
            command = ["false"] if self.fails.is_set() else self.command
            self.program = await asyncio.to_thread(Program, command, self.log)
            grace_seconds = self.grace_seconds
            try:
                grace_seconds = await self._until_it_ends_or_fails(self.program)
            finally:
                await asyncio.shield(asyncio.to_thread(self.program.stop, signal.SIGTERM, grace_seconds))

    def _pauses(self) -> Iterator[float]:
        yield 0.0
        yield NOTICED_SECONDS
        backoff_seconds = FIRST_BACKOFF_SECONDS
        while True:
            yield NOTICED_SECONDS + backoff_seconds
            backoff_seconds = min(2 * backoff_seconds, LONGEST_BACKOFF_SECONDS)

    async def _until_it_ends_or_fails(self, program: Program) -> float:
        """The seconds that it has left to end by itself."""
        probing = asyncio.create_task(self._failed_probe())
        try:
            while program.is_running and not probing.done():  # noqa: ASYNC110 - a program ends without telling us
                await asyncio.sleep(0.05)
        finally:
            probing.cancel()
            failed = (await asyncio.gather(probing, return_exceptions=True))[0]
        if not program.is_running or isinstance(failed, BaseException):
            return self.grace_seconds
        return await self._before_stop(failed.get("terminationGracePeriodSeconds", self.grace_seconds))

    async def _before_stop(self, grace_seconds: float) -> float:
        """What the hook leaves of the time, and kubelet's least."""
        hami_core = self.spec.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
        began = asyncio.get_running_loop().time()
        if hami_core:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_seconds):
                    await (await asyncio.create_subprocess_exec(*hami_core)).wait()
        return max(grace_seconds - (asyncio.get_running_loop().time() - began), LEAST_GRACE_SECONDS)

    async def _failed_probe(self) -> JsonObject:
        startup, liveness = self.spec["startupProbe"], self.spec["livenessProbe"]
        if not await self._probed(startup, until_it_succeeds=True):
            return dict(startup)
        await self._probed(liveness, until_it_succeeds=False)
        return dict(liveness)

    async def _probed(self, probe: JsonObject, *, until_it_succeeds: bool) -> bool:
        """False when it failed as often in a row as is allowed."""
        loop = asyncio.get_running_loop()
        failures, due = 0, loop.time()
        while True:
            await asyncio.sleep(max(due - loop.time(), 0))
            due = max(due, loop.time() - probe["periodSeconds"]) + probe["periodSeconds"]
            if await self._succeeds(probe):
                failures = 0
                if until_it_succeeds:
                    return True
            else:
                failures += 1
                if failures >= probe["failureThreshold"]:
                    return False

    async def _succeeds(self, probe: JsonObject) -> bool:
        get = probe["httpGet"]
        url = f"{get.get('scheme', 'HTTP').lower()}://127.0.0.1:{self.ports[get['port']]}{get['path']}"
        timeout = aiohttp.ClientTimeout(total=probe.get("timeoutSeconds", 1))
        try:
            async with aiohttp.ClientSession(timeout=timeout) as http, http.get(url, ssl=False) as answer:
                return 200 <= answer.status < 400
        except (aiohttp.ClientError, OSError):
            return False


@dataclass(frozen=True)
class Replica:
    name: str
    extender: PlayedContainer
    kube_scheduler: PlayedContainer


@asynccontextmanager
async def replicas(plane: ControlPlane, folder: Path, *names: str) -> AsyncIterator[tuple[Replica, ...]]:
    made = tuple(_replica(plane, folder, name) for name in names)
    # A container's start is not awaited before the next one's, as in a pod.
    running = [
        asyncio.create_task(each.run()) for replica in made for each in (replica.extender, replica.kube_scheduler)
    ]
    try:
        yield made
    finally:
        for each in (one for replica in made for one in (replica.extender, replica.kube_scheduler)):
            if each.program is not None and each.program.is_running:
                os.kill(each.pid, signal.SIGCONT)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _replica(plane: ControlPlane, folder: Path, name: str) -> Replica:
    verbs, metrics, scheduler = free_port(), free_port(), free_port()
    ports: dict[int | str, int] = {9395: metrics, "metrics": metrics, 10259: scheduler, "scheduler": scheduler}

    def container(which: str, *command: str) -> PlayedContainer:
        found = shipped.container(shipped.base(), f"topogpu-scheduler/{which}")
        return PlayedContainer(
            name=f"{name}/{which}",
            spec=found.spec,
            grace_seconds=found.pod["terminationGracePeriodSeconds"],
            command=["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', name, *command],
            ports=ports,
            log=folder / f"{name}-{which}.log",
        )

    given = [
        flag
        for flag in shipped.container(shipped.base(), "topogpu-scheduler/extender").spec["args"]
        if not flag.startswith(_FLAGS_OF_A_CLUSTER)
    ]
    extender = container(
        "extender",
        *("env", f"RUNTIME_DIRECTORY={folder / name}", sys.executable, "-m", "scheduler_ext", *given),
        f"--http_bind=127.0.0.1:{verbs}",
        *(f"--metrics-bind-address=127.0.0.1:{metrics}", "--webhook-bind-address=127.0.0.1:0"),
        f"--kube-scheduler-healthz=https://127.0.0.1:{scheduler}/healthz",
        *("--leader-elect-resource-name=kube-scheduler", "--leader-elect-resource-namespace=kube-system"),
        f"--kubeconfig={plane.kubeconfig(EXTENDER_USER)}",
    )
    return Replica(name, extender, container("kube-scheduler", *_kube_scheduler(plane, folder, name, verbs, scheduler)))


def _kube_scheduler(plane: ControlPlane, folder: Path, name: str, verbs: int, port: int) -> list[str]:
    """As shipped, but for the lease's name: the user of that name may write no other."""
    named = {"resourceName": "kube-scheduler", "resourceNamespace": "kube-system"}
    election = shipped.scheduler_configuration(shipped.base())["leaderElection"] | named
    document = scheduler_configuration(f"http://127.0.0.1:{verbs}", {}, leaderElection=election)
    document["clientConnection"] = {"kubeconfig": plane.kubeconfig("system:kube-scheduler"), "qps": 1000, "burst": 1000}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document))
    flags = shipped.container(shipped.base(), "topogpu-scheduler/kube-scheduler").spec["args"]
    kept = [flag for flag in flags if not flag.startswith(("--config=", "--secure-port="))]
    return [
        plane.binary("kube-scheduler"),
        *kept,
        f"--config={path}",
        f"--secure-port={port}",
        "--bind-address=127.0.0.1",
    ]
