"""What must be true when a fault is over, each as a sentence about what is not (edge)."""

import asyncio
import json
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psutil

from deviceplugin.machine.discovery import NodeSharing, discover_devices
from deviceplugin.machine.topology import build_topology, pair_scores
from deviceplugin.node.registration import Offer, registration
from deviceplugin.settings import HamiScheduler
from proto.annotations.keys import NODE_ALLOCATION
from proto.annotations.node_allocation import AllocationMode
from proto.annotations.node_limits import NodeLimits
from proto.kubernetes.objects import Node
from simulation.machines.described import describe_reading
from simulation.recount import Held
from simulation.soak.oracle import ledger_differences
from tests.deviceplugin.gpus import NODE
from tests.faults.steps import EXTENDER
from tests.faults.world import MACHINE, MOST, UUIDS, World

_TROUBLE = ("Traceback", "never retrieved", "never awaited", "was destroyed")
_RESERVATIONS = re.compile(rb"^topogpu_reservations (\S+)$", re.MULTILINE)


async def unsettled(it: World) -> list[str]:
    """While all pods run that fit, and both programs know it, there is none."""
    booked, given = dict(it.observer.booked()), dict(it.observer.given())
    found = [f"{pod['metadata']['name']} {_state(pod)}" for pod in it.pods() if _is_late(pod, booked)]
    if given != booked:
        found.append(f"containers have {given}, the pods' annotations say {booked}")
    found += await _differences(it)
    annotations, computed = it.node["metadata"].get("annotations", {}), {**COMPUTED, NODE_ALLOCATION: it.allocation}
    found += [f"{key} is {annotations.get(key)!r}" for key, value in computed.items() if annotations.get(key) != value]
    allocatable = it.node.get("status", {}).get("allocatable", {}).get("nvidia.com/gpu")
    if allocatable != str(len(UUIDS) * MOST[0]):
        found.append(f"kubelet has {allocatable} replicas")
    for program, url in it.urls.items():
        status, body = await it.get(f"{url}/readyz")
        found += [f"{program} is not ready: {body.decode()}"] if status != 200 else []
    return found


async def undrained(it: World) -> list[str]:
    """When there are no pods any more, nothing is held for any."""
    found = [f"{pod['metadata']['name']} is still there" for pod in it.pods()]
    found += [f"{uuid} is still held" for uuid in it.observer.given()]
    found += await _differences(it)
    counted = _RESERVATIONS.search((await it.get(f"{it.urls[EXTENDER]}/metrics"))[1])
    if counted is None or float(counted[1]):
        found.append(f"reservations: {counted and counted[1].decode()}")
    return found + [f"{file} is left" for file in (it.disk / "bindings").glob("*.json")]


async def leaked(it: World, usual: "Mapping[str, Usage]") -> list[str]:
    """What the programs hold beyond what they hold without a fault, while the pod runs that came last.

    A slot of a pod that has gone meanwhile, or of the daemon before, is kept for 150 s.
    """
    made = {name for all_ in it.kubelet.running().values() for one in all_.values() for name in one.cdi_devices}
    file = it.disk / "cdi/topogpu.io-slot.json"
    spec: Any = json.loads(file.read_text()) if file.exists() else {"devices": []}
    found = [f"slot {one['name']} is left" for one in spec["devices"] if f"topogpu.io/slot={one['name']}" in made]
    folders = (it.disk / "hook/vgpu/containers").glob("*")
    found += [f"{folder} is of no pod" for folder in folders if folder.name.partition("_")[0] not in it.uids]
    for program, expected in usual.items():
        now = await usage(it, program)
        if any(has > may for has, may in zip(now.counts, expected.most, strict=True)):
            found.append(f"{program} has {now}, usually {expected}")
    return found


def wrong(it: World) -> list[str]:
    """What must not have happened at any moment."""
    logs = [(name, it.folder / f"{name}.log") for name in it.commands]
    lines = [f"{name}: {line}" for name, log in logs if log.exists() for line in log.read_text().splitlines()]
    return [*it.observer.problems, *it.ends, *(line for line in lines if any(mark in line for mark in _TROUBLE))]


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has open."""

    descriptors: int
    threads: int
    tasks: int

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.descriptors, self.threads, self.tasks

    @property
    def most(self) -> tuple[int, int, int]:
        """Connections are kept for later use; so are threads, one for each GPU that has hung, in each of four pools."""
        return self.descriptors + 6, self.threads + 16, self.tasks + 6


async def usage(it: World, program: str) -> Usage:
    pid = it.programs[program].pid
    counted = it.folder / str(pid)
    counted.unlink(missing_ok=True)
    it.signal(program, signal.SIGUSR2)
    async with asyncio.timeout(30):
        while not (counted.exists() and counted.read_text()):  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)
    process = psutil.Process(pid)
    return Usage(process.num_fds(), process.num_threads(), int(counted.read_text()))


async def _differences(it: World) -> list[str]:
    """Where the extender's ledger is not the sum over the pods."""
    status, body = await it.get(f"{it.verbs}/debug/snapshot")
    return (
        list(ledger_differences(json.loads(body), it.pods())) if status == 200 else [f"the extender answers {status}"]
    )


def _is_late(pod: Mapping[str, Any], held: Held) -> bool:
    if pod["spec"].get("nodeName"):
        return bool(pod["status"].get("phase") != "Running" or "deletionTimestamp" in pod["metadata"])
    return len(held) < len(UUIDS)


def _state(pod: Mapping[str, Any]) -> str:
    containers = pod["status"].get("containerStatuses", [])
    waits = [one["state"].get("waiting", {}).get("message", "") for one in containers]
    conditions = [one.get("message", "") for one in pod["status"].get("conditions", [])]
    where = pod["spec"].get("nodeName", "without a node")
    return f"is {pod['status'].get('phase')} on {where}: {'; '.join(filter(None, [*waits, *conditions]))}"


def _computed() -> Mapping[str, Any]:
    """The annotations of a Node, from the description of its machine."""
    reading = describe_reading(MACHINE, NODE)
    offer = Offer(
        devices=discover_devices(reading, NodeSharing()),
        scores=pair_scores(build_topology(reading)),
        mode=AllocationMode.SLOTS,
        limits=NodeLimits.PARTLY_ENFORCED,
        simulated=True,
    )
    return registration(Node(), offer, HamiScheduler.NONE, now=datetime(2030, 1, 1, tzinfo=UTC)).annotations


COMPUTED = _computed()
