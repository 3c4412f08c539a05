"""The daemon as a process keeps the Node saying how much memory and how many cores its GPUs have."""

from pathlib import Path
from typing import Any

import pytest

from deviceplugin.node.totals import PRIORITY_TOTAL
from proto.annotations import keys
from proto.annotations.keys import NODE_REGISTER
from simulation.apiserver import EmbeddedApiServer
from simulation.apiserver.faults import Fault
from simulation.nvml.machine_file import lost_gpu
from tests.deviceplugin.daemon_rig import DaemonRig, daemon
from tests.deviceplugin.gpus import NODE
from tests.polling import until

pytestmark = pytest.mark.needs_compiler
QUICK = ("--read-seconds", "0.05")
WHOLE = {
    keys.RESOURCE_MEMORY: "327680",
    keys.RESOURCE_MEMORY_PERCENTAGE: "400",
    keys.RESOURCE_CORES: "400",
    keys.RESOURCE_PRIORITY: str(PRIORITY_TOTAL),
}


def totals(node: DaemonRig, part: str = "capacity") -> dict[str, str]:
    found: Any = node.server.store.get("nodes", "", NODE) or {"status": {}}
    amounts = found["status"].get(part) or {}
    return {name: amounts[name] for name in WHOLE if name in amounts}


def write(node: DaemonRig, **amounts: str | None) -> None:
    """As kubelet would."""
    named = {f"nvidia.com/{name}": amount for name, amount in amounts.items()}
    node.server.patch("nodes", NODE, {"status": {"capacity": named, "allocatable": named}}, subresource="status")


def status_writes(node: DaemonRig) -> int:
    return sum(
        (one.verb, one.resource, one.subresource, one.user_agent)
        == ("patch", "nodes", "status", "topogpu-device-plugin")
        for one in node.server.requests
    )


async def test_the_node_says_what_its_gpus_have_in_capacity_and_allocatable_with_one_write() -> None:
    async with daemon(*QUICK) as node:
        await until(lambda: totals(node) == WHOLE)
        assert totals(node, "allocatable") == WHOLE
        node.server.patch("nodes", NODE, {"metadata": {"labels": {"touched": "yes"}}})
        await until(lambda: totals(node) == WHOLE)
        assert (status_writes(node), node.problems()) == (1, [])


async def test_what_kubelet_sets_to_zero_or_forgets_is_written_again() -> None:
    async with daemon(*QUICK) as node:
        await until(lambda: totals(node) == WHOLE)
        write(node, gpumem="0", gpucores="0")
        await until(lambda: totals(node) == WHOLE)
        write(node, priority=None)
        await until(lambda: totals(node) == WHOLE)
        assert status_writes(node) == 3


async def test_a_node_that_is_made_again_is_told_again() -> None:
    async with daemon(*QUICK) as node:
        await until(lambda: totals(node) == WHOLE)
        node.server.delete("nodes", NODE)
        node.server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        await until(lambda: totals(node) == WHOLE and bool(node.annotation(NODE_REGISTER)))


async def test_a_lost_gpu_still_counts() -> None:
    async with daemon(*QUICK, "--remediation-seconds", "0.5") as node:
        await until(lambda: totals(node) == WHOLE)
        node.machine(lost_gpu(1))
        await until(lambda: node.ill() == {1})
        assert (totals(node), status_writes(node)) == (WHOLE, 1)


async def test_scaled_gpus_count_as_they_are_registered() -> None:
    scaled = ("--device-memory-scaling", "1.5", "--device-cores-scaling", "2")
    async with daemon(*QUICK, *scaled) as node:
        wanted = WHOLE | {keys.RESOURCE_MEMORY: "491520", keys.RESOURCE_CORES: "800"}
        await until(lambda: totals(node) == wanted)
        assert sum(gpu.memory_mib for gpu in node.gpus()) == 491520


async def test_a_daemon_that_may_not_write_them_serves_all_the_same_and_says_why() -> None:
    refused = Fault(verbs=frozenset({"patch"}), resources=frozenset({"nodes"}), subresource="status", status=403)

    def before(server: EmbeddedApiServer, _: Path) -> None:
        server.inject(refused)

    async with daemon(*QUICK, ready=False, before=before) as node:
        await until(lambda: node.said("cannot write the totals of node node-1: the API server answered 403"))
        await until(lambda: bool(node.annotation(NODE_REGISTER)))
        node.server.faults.clear()
        await node.ready()
        await until(lambda: totals(node) == WHOLE)


async def test_sums_are_written_where_they_are_wanted_and_taken_away_where_they_are_not() -> None:
    def sums(node: DaemonRig) -> dict[str, str]:
        found: Any = node.server.store.get("nodes", "", NODE) or {"status": {}}
        return {name: amount for name, amount in (found["status"].get("capacity") or {}).items() if name in keys.SUMS}

    async with daemon(*QUICK, "--features", "gpu-sums") as node:
        await until(lambda: sums(node) == {keys.RESOURCE_MEMORY_SUM: "327680", keys.RESOURCE_CORES_SUM: "400"})
    async with daemon(*QUICK) as node:
        node.server.patch("nodes", NODE, {"status": {"capacity": dict.fromkeys(keys.SUMS, "1")}}, subresource="status")
        await until(lambda: totals(node) == WHOLE and not sums(node))
