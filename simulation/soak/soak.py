"""Runs a random history for some time, lets the cluster settle, and reports what an independent oracle found (edge)."""

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from random import Random

import aiohttp
import psutil

from simulation.cluster import ClusterSettings, SimulatedCluster, simulated_cluster
from simulation.soak.history import History, gpus_of, mend
from simulation.soak.leaders import LEASE_OPTIONS, Leaders
from simulation.soak.oracle import ledger_differences, register_differences

MACHINES = ("dgxa100-8x-a100-40g", "4x-a100-pcie-80g-bridged")
_SETTLE_SECONDS = 240.0
"""Longer than 120 s, for which a pod deleted by force keeps its GPUs, and 60 s of a reservation, after a restart."""
_POLL_SECONDS = 1.0
_PAUSES_SECONDS = (0.0, 0.0, 0.01, 0.05, 0.2)
_TRACEBACK = re.compile(r"^Traceback .*?(?=^\S*\d{4}-|\Z)", re.MULTILINE | re.DOTALL)
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakSettings:
    """`without` names kinds of steps that are left out, by the words of the report."""

    seconds: float
    seed: int
    machines: tuple[str, ...] = MACHINES
    without: frozenset[str] = frozenset()
    two_leaders: bool = False
    """True if two extenders are called all the time, as by two kube-schedulers that each believe to lead."""
    sees_slots_go: bool = True
    """True if the end is awaited at which the daemon has removed all slots: two to three minutes after the pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakReport:
    """`violations` are sentences; a soak without any has shown no defect."""

    seed: int
    seconds: float
    counts: Mapping[str, int]
    violations: tuple[str, ...]
    settled_seconds: float
    """The time from the last fault until ledger, Nodes and files agreed with the pods."""
    memory_mib: Mapping[str, tuple[int, int]]
    """Resident memory of each program when it was ready, and at the end."""


async def run_soak(settings: SoakSettings, progress: Callable[[str], None], now: Callable[[], datetime]) -> SoakReport:
    """Raises SimulationFailed where the cluster could not be started."""
    clock, rng = asyncio.get_running_loop().time, Random(settings.seed)  # noqa: S311 - a history, not a secret
    two = settings.two_leaders
    simulated = ClusterSettings(
        machines=settings.machines,
        checks=False,
        daemon_options=("--remediation-seconds", "10", "--read-seconds", "2"),
        extender_options=LEASE_OPTIONS if two else (),
    )
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(simulated_cluster(simulated, progress, now))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        leaders = await stack.enter_async_context(Leaders(cluster, now)) if two else None
        history = History(cluster, rng, http, leaders)
        before = _memory(cluster)
        begun = clock()
        while clock() - begun < settings.seconds:
            await history.step(settings.without)
            await asyncio.sleep(rng.choice(_PAUSES_SECONDS))
        settling = clock()
        differences = await _settled(history, http, clock, sees_slots_go=settings.sees_slots_go)
        settled = clock() - settling
        after = _memory(cluster)
        cluster.check()
        violations = [*history.violations, *differences, *_tracebacks(cluster)]
    return SoakReport(
        seed=settings.seed,
        seconds=settling - begun,
        counts=dict(history.counts),
        violations=tuple(violations),
        settled_seconds=settled,
        memory_mib={name: (before[name], after[name]) for name in before},
    )


async def _settled(
    history: History, http: aiohttp.ClientSession, clock: Callable[[], float], *, sees_slots_go: bool
) -> list[str]:
    """Ends all faults and all pods that ran. Returns what still differs when the time is over."""
    cluster = history.cluster
    cluster.server.faults.clear()
    for node in cluster.nodes:
        mend(cluster, node)
        (cluster.directory / node.name / "cdi" / "foreign.json").unlink(missing_ok=True)
    until, shown = clock() + _SETTLE_SECONDS, ""
    while (found := await _differences(history, http)) and clock() < until:
        if found[0] != shown:
            cluster.progress(f"settling: {len(found)} differences; {found[0]}")
        shown = found[0]
        await asyncio.sleep(_POLL_SECONDS)
        history.judge()
    if not sees_slots_go:
        return found
    for pod in history.pods():
        await history.pod_steps.delete(pod)
    while (left := _left(cluster)) and clock() < until:  # noqa: ASYNC110 - files have no event
        await asyncio.sleep(_POLL_SECONDS)
    return [*found, *left]


async def _differences(history: History, http: aiohttp.ClientSession) -> list[str]:
    """Returns the differences of the two programs from the pods."""
    cluster = history.cluster
    found: list[str] = []
    for node in cluster.nodes:
        seen = cluster.server.store.get("nodes", "", node.name) or {"metadata": {"name": node.name}}
        found += register_differences(seen, gpus_of(node), history.capacity)
    for url in history.extenders:
        try:
            async with http.get(f"{url}/debug/snapshot") as answer:
                found += ledger_differences(json.loads(await answer.read()), history.pods())
        except (aiohttp.ClientError, ValueError) as error:
            found.append(f"the extender at {url} does not answer: {error!r}")
    return found


def _left(cluster: SimulatedCluster) -> list[str]:
    """Returns a sentence for each node whose CDI folder still has slots. The folders of containers are not looked at:
    the daemon keeps them for ten minutes.
    """
    found: list[str] = []
    for node in cluster.nodes:
        for path in sorted((cluster.directory / node.name / "cdi").glob("*slot*")):
            devices = json.loads(path.read_bytes()).get("devices", [])
            found += [f"{node.name}: the CDI folder still has {len(devices)} slots"] if devices else []
    return found


def _memory(cluster: SimulatedCluster) -> Mapping[str, int]:
    return {process.name: psutil.Process(process.pid).memory_info().rss // _MIB for process in cluster.processes}


def _tracebacks(cluster: SimulatedCluster) -> list[str]:
    logs = [process.log for process in cluster.processes]
    return [f"{log.name}: {found}" for log in logs for found in _TRACEBACK.findall(log.read_text())]
