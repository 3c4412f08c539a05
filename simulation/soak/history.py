"""A random history of a simulated cluster: pods that come, go and end, and faults of everything beside them (edge)."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import aiohttp

from simulation.apiserver.errors import ApiRefusal
from simulation.apiserver.faults import Fault
from simulation.breaking import CannotBreak, broken, mended
from simulation.cluster import MACHINE_FILE, SimulatedCluster, SimulatedNode
from simulation.machines.description import gpu_uuid
from simulation.nvml.machine_file import replace_machine_file
from simulation.processes import ChildProcess
from simulation.recount import Amount, holds
from simulation.soak.leaders import Leaders
from simulation.soak.oracle import overbooked, wrongly_given
from simulation.soak.pod_steps import PodSteps

REPLICAS_A_GPU, CORES = 10, 100
GPU_FAULTS = ("lost", "xid79", "xid48", "xid13", "ecc", "reset", "link-down")
_API_FAULTS: tuple[Callable[[Random], Fault], ...] = (
    lambda _: Fault(subresource="binding", drop="after", times=1),
    lambda _: Fault(subresource="binding", drop="before", times=1),
    lambda rng: Fault(subresource="binding", status=rng.choice((409, 429, 500, 503, 504)), times=rng.choice((1, 3))),
    lambda rng: Fault(subresource="binding", latency_seconds=rng.choice((0.3, 2.0, 6.0)), times=1),
    lambda rng: Fault(verbs=frozenset({"list"}), status=rng.choice((429, 500)), times=2),
    lambda rng: Fault(verbs=frozenset({"watch"}), status=rng.choice((403, 410, 429, 500)), times=2),
    lambda _: Fault(verbs=frozenset({"watch"}), resources=frozenset({"pods"}), stall=True, times=1),
    lambda _: Fault(verbs=frozenset({"get"}), resources=frozenset({"pods"}), status=500, times=2),
    lambda rng: Fault(verbs=frozenset({"patch", "update"}), status=rng.choice((409, 500)), times=3),
    lambda _: Fault(
        verbs=frozenset({"patch", "update", "create"}), resources=frozenset({"leases"}), status=500, times=2
    ),
)


class History:
    """Does one random step after the other; `violations` holds each sentence of the oracle once."""

    def __init__(
        self, cluster: SimulatedCluster, rng: Random, http: aiohttp.ClientSession, leaders: Leaders | None = None
    ) -> None:
        self.cluster = cluster
        self.capacity: dict[str, Amount] = {}
        for node in cluster.nodes:
            for uuid, gpu in zip(gpus_of(node), node.machine.gpus, strict=True):
                self.capacity[uuid] = (REPLICAS_A_GPU, gpu.memory_mib, CORES)
        self.extenders = (cluster.extender, *([leaders.second] if leaders is not None else []))
        self.counts: Counter[str] = Counter()
        self.violations: dict[str, None] = {}
        self._rng = rng
        self.pod_steps = PodSteps(cluster, rng, http, self.counts)
        self._leaders = leaders
        self._checked: dict[str, int] = {}
        self._seen_version = 0

    @property
    def steps(self) -> Mapping[str, tuple[float, Callable[[], Awaitable[None]]]]:
        """Returns the weight of each kind of step, and the step, by what the report calls it."""
        return {
            "pods created": (40, self.pod_steps.create_pod),
            "pods deleted": (12, self.pod_steps.delete_pod),
            "pods deleted by force": (3, self.pod_steps.delete_by_force),
            "pods ended": (6, self.pod_steps.end_pod),
            "containers restarted": (10, self.pod_steps.restart_container),
            "API faults": (8, self.api_fault),
            "watches dropped": (2, self.drop_watches),
            "history compacted": (1, self.compact),
            "API server away": (0.7, self.api_server_away),
            "extender killed": (0.7, self.kill_extender),
            "daemons killed": (0.7, self.kill_daemon),
            "programs stopped for a while": (0.4, self.stop_program),
            "kubelets restarted": (0.7, self.restart_kubelet),
            "GPU faults": (2, self.break_gpu),
            "machines mended": (3, self.mend),
            "Nodes removed and back": (0.3, self.remove_node),
            "foreign CDI files": (0.5, self.foreign_cdi_file),
            **({"leaders changed": (0.7, self.change_leader)} if self._leaders is not None else {}),
        }

    async def step(self, without: frozenset[str] = frozenset()) -> None:
        """Takes one step, and judges what it led to."""
        kinds = {name: step for name, step in self.steps.items() if name not in without}
        (name,) = self._rng.choices(list(kinds), [weight for weight, _ in kinds.values()])
        try:
            await kinds[name][1]()
        except (ApiRefusal, aiohttp.ClientError, TimeoutError):
            name = f"{name}, refused"
        self.counts[name] += 1
        self.judge()

    def pods(self) -> list[dict[str, Any]]:
        return self.pod_steps.pods()

    def judge(self) -> None:
        """Judges this moment; nothing is done where no object was written since the last."""
        version = self.cluster.server.store.version
        if version != self._seen_version:
            self._seen_version = version
            self.counts["moments judged"] += 1
            for problem in overbooked(self.pods(), self.capacity):
                self.violations[problem] = None
        self._judge_containers()

    def _judge_containers(self) -> None:
        by_uid = {pod["metadata"]["uid"]: pod for pod in self.pods()}
        for node in self.cluster.nodes:
            for uid, created in node.kubelet.created.items():
                pod = by_uid.get(uid)
                for made in created[self._checked.get(uid, 0) :] if pod is not None and holds(pod) else ():
                    self.counts["containers judged"] += 1
                    for problem in wrongly_given(pod, made.name, made.env, self.capacity):  # type: ignore[arg-type]
                        self.violations[problem] = None
                self._checked[uid] = len(created)

    # The API server

    async def api_fault(self) -> None:
        self.cluster.server.inject(self._rng.choice(_API_FAULTS)(self._rng))

    async def drop_watches(self) -> None:
        self.cluster.server.drop_watches()

    async def compact(self) -> None:
        self.cluster.server.compact()

    async def api_server_away(self) -> None:
        await self.cluster.server.go_offline()
        await asyncio.sleep(self._rng.uniform(0.1, 3))
        await self.cluster.server.go_online()

    # The programs

    def _some_node(self) -> SimulatedNode:
        return self._rng.choice(self.cluster.nodes)

    async def kill_extender(self) -> None:
        await kill(self._rng.choice([each for each in self.cluster.processes if each.name.startswith("extender")]))

    async def kill_daemon(self) -> None:
        await kill(self._rng.choice([each for each in self.cluster.processes if each.name.startswith("daemon")]))

    async def stop_program(self) -> None:
        process = self._rng.choice(self.cluster.processes)
        os.kill(process.pid, signal.SIGSTOP)
        await asyncio.sleep(self._rng.uniform(0.5, 8))
        os.kill(process.pid, signal.SIGCONT)

    async def change_leader(self) -> None:
        if self._leaders is not None:
            self._leaders.change(self._rng)

    async def restart_kubelet(self) -> None:
        await self._some_node().kubelet.restart()

    # The nodes

    async def break_gpu(self) -> None:
        node = self._some_node()
        path = machine_file(self.cluster, node)
        gpu = self._rng.randrange(len(node.machine.gpus))
        try:
            text = broken(path.read_text(), gpu, [self._rng.choice(GPU_FAULTS)])
        except CannotBreak:
            return  # a GPU without links has none to break
        replace_machine_file(path, text)

    async def mend(self) -> None:
        mend(self.cluster, self._some_node())

    async def remove_node(self) -> None:
        """Somebody deletes the Node object; kubelet registers it again, without what others wrote."""
        name = self._some_node().name
        node = self.cluster.server.store.get("nodes", "", name)
        if node is not None:
            self.cluster.server.delete("nodes", name)
            fresh = json.loads(json.dumps(node))
            fresh["metadata"] = {"name": name, "labels": fresh["metadata"].get("labels", {})}
            self.cluster.server.create({"apiVersion": "v1", "kind": "Node", **fresh})

    async def foreign_cdi_file(self) -> None:
        path = self.cluster.directory / self._some_node().name / "cdi" / "foreign.json"
        if path.exists():
            path.unlink()
        else:
            path.write_text(self._rng.choice(('{"cdiVersion":"0.6.0","kind":"other.io/x","devices":[]}', "{}")))


def gpus_of(node: SimulatedNode) -> tuple[str, ...]:
    return tuple(gpu_uuid(node.machine.id, index, node.name) for index in range(len(node.machine.gpus)))


def machine_file(cluster: SimulatedCluster, node: SimulatedNode) -> Path:
    return cluster.directory / node.name / MACHINE_FILE


def mend(cluster: SimulatedCluster, node: SimulatedNode) -> None:
    path = machine_file(cluster, node)
    replace_machine_file(path, mended(path.read_text(), None))


async def kill(process: ChildProcess) -> None:
    """Ends the program at once, in the middle of what it does, and starts it again."""
    os.kill(process.pid, signal.SIGKILL)
    await process.ended()
    await process.start_again()
