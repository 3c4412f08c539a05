"""What the Node says of ill GPUs after its clock was set, and of GPUs that it never had."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deviceplugin.allocation.sources import AllocationSources
from deviceplugin.apiserver import OwnNode
from deviceplugin.changes import Changes
from deviceplugin.configuration.table import Configuration
from deviceplugin.gpus import Gpus
from deviceplugin.inventory import Inventory
from deviceplugin.node.writer import Contributor, NodeWriter
from deviceplugin.own_threads import OwnThreads
from deviceplugin.records.holdings import Holding
from deviceplugin.remediation.remedy import NodeClocks, Remediation
from deviceplugin.settings import AgentSettings, RemediationSettings, Remedy
from proto.annotations.keys import NODE_REGISTER, NODE_UNHEALTHY, RESOURCE_COUNT
from proto.annotations.node_register import encode_register
from proto.devices import DeviceUUID
from proto.kubernetes.client import ApiServer
from proto.kubernetes.events import EventRecorder
from simulation.apiserver import EmbeddedApiServer
from tests.deviceplugin.gpus import NODE, PAIR, A, B, bound_pod, share
from tests.polling import until

WRONG = datetime(1970, 1, 2, tzinfo=UTC)
RIGHT = datetime(2030, 1, 1, tzinfo=UTC)
LOST = DeviceUUID("GPU-cccccccc-0000-0000-0000-000000000000")
WELL = Inventory(devices=PAIR, physical=frozenset({A, B}))
ILL = replace(WELL, devices=(PAIR[0], replace(PAIR[1], healthy=False)), problems={B: "GPU is lost"})


@dataclass
class Clocks:
    wall: datetime
    monotonic: float = 0.0
    uptime: float = 3600.0
    booked: set[DeviceUUID] = field(default_factory=set)

    async def checkpoint(self) -> tuple[Holding, ...]:
        return tuple(
            Holding(pod_uid="u", container_name="c", resource_name=RESOURCE_COUNT, device_ids={"-1": [f"{gpu}-0"]})
            for gpu in self.booked
        )

    def passes(self, seconds: float) -> None:
        self.wall += timedelta(seconds=seconds)
        self.monotonic += seconds
        self.uptime += seconds


@asynccontextmanager
async def node(tmp_path: Path, **annotations: str) -> AsyncIterator[tuple[EmbeddedApiServer, ApiServer]]:
    async with EmbeddedApiServer() as server:
        server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "annotations": annotations}})
        (tmp_path / "kubeconfig").write_text(server.kubeconfig())
        api = await ApiServer.connect(str(tmp_path / "kubeconfig"))
        yield server, api
        await api.close()


@asynccontextmanager
async def remediation(
    api: ApiServer, clocks: Clocks, inventory: Inventory, *remedies: Remedy
) -> AsyncIterator[tuple[Remediation, Changes]]:
    changes = Changes()
    configuration = Configuration(
        agent=AgentSettings(node_name=NODE),
        remediation=RemediationSettings(remedies=remedies or (Remedy.REPORT,), after=timedelta(hours=2)),
    )
    own = OwnNode(api, NODE, changes)
    gpus = Gpus(lambda: inventory, OwnThreads("nvml"), changes, configuration.agent)
    sources = AllocationSources(
        own=own, gpus=gpus, changes=changes, read_checkpoint=clocks.checkpoint, configuration=configuration
    )
    events = EventRecorder(api=api, component="test", now=lambda: clocks.wall, monotonic=lambda: clocks.monotonic)
    daemon = Remediation(
        *(api, sources, events),
        NodeClocks(now=lambda: clocks.wall, monotonic=lambda: clocks.monotonic, uptime=lambda: clocks.uptime),
        count=lambda _: None,
    )
    marks = Contributor(name="the marks", desired=daemon.marks)
    writer = NodeWriter(own, changes, [marks], now=lambda: clocks.wall)
    loops = (own.follow_node(), own.follow_pods(), gpus.run(), daemon.run(), writer.run())
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(loop) for loop in loops]
        yield daemon, changes
        for task in tasks:
            task.cancel()


def holding(name: str, more: dict[str, str]) -> dict[str, Any]:
    """A running pod of a ReplicaSet on the GPU that is unhealthy."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}
    pod = msgspec.to_builtins(bound_pod(name, ((share(B),),), phase="Running"))
    pod["metadata"] |= {"ownerReferences": [owner], **more}
    pod["spec"]["terminationGracePeriodSeconds"] = 0
    return {"apiVersion": "v1", "kind": "Pod", **pod}


def since(server: EmbeddedApiServer) -> dict[str, str]:
    found: Any = server.store.get("nodes", "", NODE)
    times: dict[str, str] = json.loads(found["metadata"].get("annotations", {}).get(NODE_UNHEALTHY, "{}"))
    return times


async def test_a_clock_that_is_set_changes_what_the_node_says_and_not_how_long_it_has_been(tmp_path: Path) -> None:
    clocks = Clocks(WRONG)
    async with node(tmp_path) as (server, api), remediation(api, clocks, ILL) as (remedy, changes):
        await until(lambda: since(server) == {B: "1970-01-02T00:00:00Z"})
        clocks.passes(60)
        clocks.wall = RIGHT
        changes.announce()
        await until(lambda: since(server) == {B: "2029-12-31T23:59:00Z"})
        assert remedy.lasting() == 0


async def test_a_pod_that_does_not_leave_keeps_its_room_for_minutes_and_not_until_a_wrong_clock_comes_by(
    tmp_path: Path,
) -> None:
    clocks = Clocks(WRONG)
    async with node(tmp_path) as (server, api), remediation(api, clocks, ILL, Remedy.EVICT) as (_, changes):
        lease = {"name": "topogpu-remediation", "namespace": "topogpu-system"}
        server.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": lease, "spec": {}})
        await until(lambda: bool(since(server)))
        clocks.wall = RIGHT
        for name, leaves in (("hangs", {"deletionTimestamp": "2030-01-01T00:00:00Z"}), ("owned", {})):
            server.create(holding(name, leaves))
        for _ in range(13):
            clocks.passes(600)
            changes.announce()
            await asyncio.sleep(0)
        await until(lambda: server.store.get("pods", "default", "owned") is None)


async def test_a_time_before_the_boot_counts_from_the_boot(tmp_path: Path) -> None:
    clocks, written = Clocks(RIGHT), {NODE_UNHEALTHY: json.dumps({B: "1970-01-02T00:00:00Z"})}
    async with node(tmp_path, **written) as (server, api), remediation(api, clocks, ILL) as (remedy, _):
        await until(lambda: since(server) == {B: "2029-12-31T23:00:00Z"})
        assert remedy.lasting() == 0
        clocks.passes(3600)
        assert remedy.lasting() == 1


async def test_only_gpus_that_the_node_has_had_are_ill_because_a_pod_names_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forged, given = DeviceUUID("GPU-forged"), DeviceUUID("GPU-dddddddd-0000-0000-0000-000000000000")
    registered = {NODE_REGISTER: encode_register([*PAIR, replace(PAIR[0], uuid=LOST)])}
    async with node(tmp_path, **registered) as (server, api):
        for name, gpu in (("p", LOST), ("q", forged), ("r", given)):
            pod = msgspec.to_builtins(bound_pod(name, ((share(gpu),),)))
            server.create({"apiVersion": "v1", "kind": "Pod", **pod})
        async with remediation(api, Clocks(RIGHT, booked={given}), WELL):
            await until(lambda: since(server).keys() == {LOST, given})
    assert [each.getMessage() for each in caplog.records if "never had" in each.getMessage()] == [
        "pods name GPUs that this node never had, which is ignored: GPU-forged"
    ]
