"""GPUs that stay unhealthy, seen through the daemon as a process."""

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from deviceplugin.cli import main
from proto.annotations.keys import LEASE_EVICTIONS, NODE_CONDITION, NODE_UNHEALTHY, RESOURCE_COUNT
from proto.annotations.unhealthy_since import stamp
from simulation.apiserver import EmbeddedApiServer
from simulation.apiserver.faults import Fault
from simulation.nvml.machine_file import lost_gpu
from tests.deviceplugin.daemon_rig import DaemonRig, daemon
from tests.deviceplugin.gpus import NODE, bound_annotations, share
from tests.polling import until

pytestmark = pytest.mark.needs_compiler

SOON = ("--remediation-seconds", "0.5", "--read-seconds", "0.2")
SLOTS = "containerd://2.4.2"
OWNED = {
    "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}]
}
OTHER_TAINT = {"key": "example.com/x", "effect": "NoSchedule"}


def node_of(rig: DaemonRig) -> dict[str, Any]:
    found: Any = rig.server.store.get("nodes", "", NODE) or {"metadata": {}}
    whole: dict[str, Any] = {"spec": {}, "status": {}} | found
    return whole


def condition(rig: DaemonRig) -> tuple[str, str]:
    """Status and message; empty without one."""
    told = [one for one in node_of(rig)["status"].get("conditions", ()) if one["type"] == NODE_CONDITION]
    return (told[0]["status"], told[0]["message"]) if told else ("", "")


def taints(rig: DaemonRig) -> list[str]:
    return [taint["key"] for taint in node_of(rig)["spec"].get("taints") or ()]


def times(rig: DaemonRig) -> set[str]:
    """Since when GPUs have been ill; a lost one may be named by its place."""
    return set(json.loads(rig.annotation(NODE_UNHEALTHY)).values())


def with_lease(server: EmbeddedApiServer, _: Path) -> None:
    metadata = {"name": "topogpu-remediation", "namespace": "topogpu-system"}
    server.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {}})


def counted(rig: DaemonRig) -> list[str]:
    """The nodes of the evictions on the Lease."""
    lease: Any = rig.server.store.get("leases", "topogpu-system", "topogpu-remediation")
    rows = json.loads((lease["metadata"].get("annotations") or {}).get(LEASE_EVICTIONS, "[]"))
    return [node for _, node in rows]


def bind_owned(rig: DaemonRig, name: str, gpu: int, metadata: Mapping[str, Any] = OWNED, **labels: str) -> None:
    container = {"name": "c0", "image": "i", "resources": {"limits": {RESOURCE_COUNT: "1"}}}
    annotations = bound_annotations(((share(rig.uuid(gpu)),),))
    rig.server.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": annotations, "labels": labels, **metadata},
            "spec": {"nodeName": NODE, "terminationGracePeriodSeconds": 0, "containers": [container]},
        }
    )


def is_there(rig: DaemonRig, name: str) -> bool:
    pod: Any = rig.server.store.get("pods", "default", name)
    return pod is not None and "deletionTimestamp" not in pod["metadata"]


def evictions(rig: DaemonRig) -> int:
    """That were asked for, trials included."""
    return sum(request.subresource == "eviction" for request in rig.server.requests)


async def test_the_node_tells_of_a_gpu_that_stays_ill_and_takes_it_back() -> None:
    def before(server: EmbeddedApiServer, _: Path) -> None:
        server.patch("nodes", NODE, {"spec": {"taints": [OTHER_TAINT]}})

    async with daemon(*SOON, "--remediation", "report,taint-any", before=before) as node:
        await until(lambda: condition(node)[0] == "True")
        bind_owned(node, "p", 2)
        await node.runs("p")
        node.machine(lost_gpu(2))
        await until(lambda: condition(node)[0] == "False" and len(taints(node)) == 2)
        name = f"GPU 2 ({node.uuid(2)})"
        assert condition(node)[1].startswith(f"{name} since 20")
        # Once polled, "it does not answer: " stands before it.
        assert condition(node)[1].endswith("GPU is lost")
        assert taints(node) == ["example.com/x", "topogpu.io/gpu-unhealthy"]
        assert set(json.loads(node.annotation(NODE_UNHEALTHY))) == {node.uuid(2)}
        await until(lambda: bool(node.events("GPUStaysUnhealthy")))
        [told] = node.events("GPUStaysUnhealthy")
        assert told.startswith(f"{name} has been unhealthy for 0.5 s: ")
        assert told.endswith("GPU is lost. Pods on it: default/p")
        series = await node.series()
        assert (series["topogpu_gpus_unhealthy_long"], series["topogpu_pods_on_unhealthy_gpus"]) == (1, 1)
        node.machine()
        await until(lambda: condition(node)[0] == "True" and len(taints(node)) == 1)
        await until(lambda: not node.annotation(NODE_UNHEALTHY))
        assert (evictions(node), is_there(node, "p"), node.problems()) == (0, True, [])


async def test_off_says_nothing_and_takes_away_what_a_life_before_said() -> None:
    flags = (*SOON, "--remediation", "report,taint-any")
    async with daemon(*flags, faults=[lost_gpu(2)], runtime_version=SLOTS) as node:
        await until(lambda: condition(node)[0] == "False" and bool(taints(node)))
        await node.kill()
        node.options = (*node.options, "--remediation", "off")
        await node.start()
        await until(lambda: condition(node) == ("", "") and not taints(node) and not node.annotation(NODE_UNHEALTHY))


async def test_what_it_said_is_uninstalled_and_what_others_said_stays() -> None:
    def before(server: EmbeddedApiServer, _: Path) -> None:
        server.patch("nodes", NODE, {"spec": {"taints": [OTHER_TAINT]}})

    flags = (*SOON, "--remediation", "report,taint-any")
    async with daemon(*flags, faults=[lost_gpu(2)], runtime_version=SLOTS, before=before) as node:
        await until(lambda: condition(node)[0] == "False" and len(taints(node)) == 2)
        await node.kill()
        words = ["uninstall-node", *node.options, "--host-root", str(node.kubelet.root), "--force"]
        told = (await asyncio.to_thread(CliRunner().invoke, main, words)).output
        for what in ("condition TopoGPUHealthy", "taint topogpu.io/gpu-unhealthy", f"annotation {NODE_UNHEALTHY}"):
            assert f"Removed {what} of node {NODE}." in told
        assert (condition(node), taints(node), node.annotation(NODE_UNHEALTHY)) == (("", ""), ["example.com/x"], "")


async def test_pods_on_a_dead_gpu_go_one_by_one_and_others_stay() -> None:
    flags = (*SOON, "--remediation", "evict")
    async with daemon(*flags, runtime_version=SLOTS, before=with_lease) as node:
        for name, gpu in (("p", 2), ("q", 2), ("well", 1)):
            bind_owned(node, name, gpu)
        bind_owned(node, "bare", 2, {})
        await node.runs("p", "q", "well", "bare")
        node.machine(lost_gpu(2))
        await until(lambda: not is_there(node, "p") and not is_there(node, "q"))
        await until(lambda: bool(node.events("NotEvicted")))
        assert "because it has no controller that would make it again" in node.events("NotEvicted")[0]
        assert (is_there(node, "bare"), is_there(node, "well")) == (True, True)
        await until(lambda: len(node.events("EvictedFromUnhealthyGPU")) == 2)
        assert counted(node) == [NODE, NODE]
        await until(lambda: node.counts('topogpu_evictions_total{outcome="evicted"}'))
        assert node.problems() == []


async def test_only_pods_that_wait_go_where_no_others_may() -> None:
    flags = (*SOON, "--remediation", "evict-waiting")
    async with daemon(*flags, runtime_version=SLOTS, before=with_lease) as node:
        bind_owned(node, "runs", 2)
        await node.runs("runs")
        node.machine(lost_gpu(2))
        await until(lambda: node.ill() == {2})
        bind_owned(node, "waits", 2)
        await until(lambda: not is_there(node, "waits"))
        assert is_there(node, "runs")


async def test_a_budget_holds_and_the_pod_is_told() -> None:
    def before(server: EmbeddedApiServer, root: Path) -> None:
        with_lease(server, root)
        server.create(
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": "b", "namespace": "default"},
                "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "held"}}},
                "status": {"disruptionsAllowed": 0, "desiredHealthy": 1, "currentHealthy": 1},
            }
        )

    async with daemon(*SOON, "--remediation", "evict", runtime_version=SLOTS, before=before) as node:
        bind_owned(node, "held", 2, app="held")
        bind_owned(node, "other", 2)
        await node.runs("held", "other")
        node.machine(lost_gpu(2))
        await until(lambda: not is_there(node, "other"))
        await until(lambda: bool(node.events("EvictionRefused")))
        [told] = node.events("EvictionRefused")
        assert told.endswith("as it would violate the pod's disruption budget. It is tried again in 1 min")
        assert (is_there(node, "held"), counted(node)) == (True, [NODE])


async def test_evictions_are_counted_with_those_of_other_nodes_before_they_happen() -> None:
    spent = [[stamp(datetime.now(UTC) - timedelta(minutes=1)), f"other-{number}"] for number in range(29)]  # noqa: TID251

    def before(server: EmbeddedApiServer, root: Path) -> None:
        with_lease(server, root)
        body = {"metadata": {"annotations": {LEASE_EVICTIONS: json.dumps(spent)}}}
        server.patch("leases", "topogpu-remediation", body, namespace="topogpu-system")
        # Another node's daemon writes it at the same moment.
        server.inject(Fault(verbs=frozenset({"patch"}), resources=frozenset({"leases"}), status=409, times=2))

    flags = (*SOON, "--remediation", "evict")
    async with daemon(*flags, runtime_version=SLOTS, before=before) as node:
        bind_owned(node, "p", 2)
        bind_owned(node, "q", 2)
        await node.runs("p", "q")
        node.machine(lost_gpu(2))
        await until(lambda: node.said("30 pods were evicted from unhealthy GPUs in the cluster within the hour"))
        assert (is_there(node, "p"), is_there(node, "q")) == (False, True)
        assert sorted(counted(node)) == sorted([NODE, *(whose for _, whose in spent)])
        await until(lambda: node.counts('topogpu_evictions_total{outcome="paused"}'))


async def test_without_the_lease_no_pod_is_evicted() -> None:
    async with daemon(*SOON, "--remediation", "evict", runtime_version=SLOTS) as node:
        bind_owned(node, "p", 2)
        await node.runs("p")
        node.machine(lost_gpu(2))
        await until(lambda: node.said("there is no lease topogpu-system/topogpu-remediation"))
        assert is_there(node, "p")


async def test_when_the_driver_fails_no_pod_is_evicted() -> None:
    async with daemon(*SOON, "--remediation", "evict", runtime_version=SLOTS, before=with_lease) as node:
        for gpu in range(4):
            bind_owned(node, f"p{gpu}", gpu)
        await node.runs("p0", "p1", "p2", "p3")
        node.machine(*(lost_gpu(gpu) for gpu in range(4)))
        await until(lambda: len(node.events("GPUStaysUnhealthy")) == 8 and condition(node)[0] == "False")
        assert evictions(node) == 0


async def test_a_daemon_that_cannot_ask_the_driver_evicts_no_pod_that_runs() -> None:
    async with daemon(*SOON, "--remediation", "evict", runtime_version=SLOTS, before=with_lease) as node:
        for name, gpu in (("runs", 2), ("waits", 3)):
            bind_owned(node, name, gpu)
        await node.runs("runs", "waits")
        await node.kill()
        body = {"status": {"containerStatuses": [{"name": "c0", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}}
        node.server.patch("pods", "waits", body, namespace="default", subresource="status")
        node.options = (*node.options, "--nvml-library", "/nowhere/libnvidia-ml.so.1")
        await node.start()
        await until(lambda: not is_there(node, "waits"))
        await until(lambda: bool(node.events("EvictedFromUnhealthyGPU")))
        assert (is_there(node, "runs"), evictions(node), counted(node)) == (True, 2, [NODE])


async def test_a_restart_remembers_since_when_and_evicts_no_pod_twice() -> None:
    flags = (*SOON, "--remediation", "evict")
    async with daemon(*flags, runtime_version=SLOTS, before=with_lease) as node:
        bind_owned(node, "p", 2)
        await node.runs("p")
        node.server.inject(
            Fault(verbs=frozenset({"create"}), resources=frozenset({"pods"}), subresource="eviction", status=500)
        )
        node.machine(lost_gpu(2))
        await until(lambda: bool(node.events("EvictionRefused")))
        since = times(node)
        await node.kill()
        node.server.faults.clear()
        await node.start()
        await until(lambda: not is_there(node, "p"))
        assert times(node) == since
        assert counted(node) == [NODE]
