"""The real kube-scheduler calls our extender with the configuration of docs/install.md."""

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from deviceplugin.apiserver import OwnNode
from deviceplugin.changes import Changes
from deviceplugin.immediate.proof import settlement
from proto.annotations import keys
from proto.annotations.node_lock import BindPhase
from proto.annotations.pod_devices import encode_pod_devices
from proto.kubernetes.client import ApiServer
from proto.kubernetes.objects import PODS, Node, ObjectMeta, Pod, PodSpec
from scheduler_ext.cli import main
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.decide.decision import decide
from scheduler_ext.requests import RequestSettings, read_request
from tests.cluster.control_plane import ControlPlane, free_port
from tests.cluster.peers import Peer, real
from tests.cluster.scheduling import Cluster, gpu_node, gpu_pod, running
from tests.polling import until

pytestmark = pytest.mark.cluster

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
MACHINES = ("dgxa100-8x-a100-40g", "hgxh100-8x-h100-80g", "4x-a100-pcie-80g-bridged", "8x-rtx4090-dual-epyc")


@pytest.fixture
async def api_server(plane: ControlPlane) -> AsyncIterator[Peer]:
    async with real(plane) as peer:
        yield peer


async def test_200_pods_on_50_nodes_go_where_decide_says(plane: ControlPlane, api_server: Peer, tmp_path: Path) -> None:
    nodes = [gpu_node(f"n{number:02d}", MACHINES[number % len(MACHINES)]) for number in range(50)]
    async with running(plane, api_server, tmp_path, *nodes) as cluster:
        names = [f"p{number:03d}" for number in range(200)]
        await asyncio.gather(*(cluster.add(_pod(number, name)) for number, name in enumerate(names)))
        await cluster.bound(*names)
        pods = await cluster.pods()
        questions = cluster.recorder.of("filter")
    placed = {name: _placed(pod) for name, pod in pods.items()}
    assert placed == _predicted(nodes, [asked for asked, _ in questions])
    assert len(questions) == 200


def _pod(number: int, name: str) -> dict[str, Any]:
    """Every fourth one wants its GPUs well connected, the rest parts of GPUs."""
    if number % 4 == 0:
        policies = {keys.GPU_POLICY: "topology-aware", keys.NODE_POLICY: ("binpack", "spread")[number // 4 % 2]}
        return gpu_pod(name, 2, annotations=policies)
    return gpu_pod(name, 1, gpumem=3000 * (number % 4), gpucores=10)


def _placed(pod: dict[str, Any]) -> tuple[str, str]:
    return pod["spec"]["nodeName"], pod["metadata"]["annotations"][keys.DEVICES_ALLOCATED]


def _predicted(nodes: list[dict[str, Any]], questions: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """Each pod in the order kube-scheduler asked, on what the ones before it left."""
    ledger, settings = Ledger(), RequestSettings()
    ledger.replace_nodes(msgspec.convert(nodes, list[Node]))
    predicted = {}
    for question in questions:
        pod = msgspec.convert(question["Pod"], Pod)
        request = read_request(pod, settings)
        assert request is not None
        decision = decide(request, ledger.snapshot(), question["NodeNames"])
        assert decision.node is not None
        devices = encode_pod_devices(decision.shares)
        predicted[pod.metadata.name] = (decision.node, devices)
        ledger.apply_pod(
            Pod(
                metadata=ObjectMeta(
                    name=pod.metadata.name, uid=pod.metadata.uid, annotations={keys.DEVICES_ALLOCATED: devices}
                ),
                spec=PodSpec(node_name=decision.node, containers=pod.spec.containers),
            )
        )
    return predicted


async def test_a_pod_that_fits_nowhere_is_told_why_in_its_condition_and_its_events(
    plane: ControlPlane, api_server: Peer, tmp_path: Path
) -> None:
    async with running(plane, api_server, tmp_path, gpu_node("a"), gpu_node("b", MACHINES[2])) as cluster:
        await cluster.add(gpu_pod("large", 6, gpumem=70000))
        condition = await cluster.refused("large")
        assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
        reasons = "0/2 nodes are available: 1 CardInsufficientMemory, 1 NodeInsufficientDevice."
        assert condition["message"].startswith(reasons)

        async def described() -> bool:
            told = await asyncio.to_thread(plane.kubectl, "describe", "pod", "large", "-n", cluster.namespace)
            return "FailedScheduling" in told and "FilteringFailed" in told and "no available node, 2 nodes" in told

        await until(described)


async def test_a_pod_is_bound_with_one_write_that_carries_the_decision(
    plane: ControlPlane, api_server: Peer, tmp_path: Path
) -> None:
    async with running(plane, api_server, tmp_path, gpu_node("a")) as cluster:
        created = await cluster.add(gpu_pod("p", 2))
        await cluster.bound("p")
        pod = await cluster.pod("p")
    annotations = pod["metadata"]["annotations"]
    assert annotations[keys.POD_NODE] == pod["spec"]["nodeName"] == "a"
    assert annotations[keys.DEVICES_ALLOCATED] == annotations[keys.DEVICES_TO_ALLOCATE]
    assert annotations[keys.BIND_PHASE] == "success"
    assert pod["metadata"]["uid"] == created["metadata"]["uid"]


async def test_decide_on_what_kubectl_prints_says_where_the_next_pod_goes(
    plane: ControlPlane, api_server: Peer, tmp_path: Path
) -> None:
    nodes = [gpu_node(f"n{number}", machine) for number, machine in enumerate(MACHINES)]
    async with running(plane, api_server, tmp_path, *nodes) as cluster:
        for number in range(4):
            await cluster.add(_pod(number, f"p{number}"))
        await cluster.bound(*(f"p{number}" for number in range(4)))
        printed = await asyncio.to_thread(plane.kubectl, "get", "nodes,pods,resourcequotas", "-A", "-o", "json")
        (tmp_path / "state.json").write_text(printed)
        pod = gpu_pod("next", 2, annotations={keys.GPU_POLICY: "topology-aware"})
        (tmp_path / "pod.json").write_text(json.dumps({"kind": "Pod", **pod}))
        files = ["--state", str(tmp_path / "state.json"), "-f", str(tmp_path / "pod.json")]
        said = CliRunner().invoke(main, ["decide", *files, "--output", "json"])
        await cluster.add(pod)
        await cluster.bound("next")
        assert json.loads(said.stdout)["node"] == await cluster.node_of("next")


async def test_a_node_whose_registration_cannot_be_read_shows_it_in_its_events(
    plane: ControlPlane, api_server: Peer, tmp_path: Path
) -> None:
    broken = gpu_node("broken")
    broken["metadata"]["annotations"][keys.NODE_REGISTER] = "[{"
    async with running(plane, api_server, tmp_path, broken, gpu_node("sound")) as cluster:
        await cluster.add(gpu_pod("p", 1))
        await cluster.bound("p")
        assert await cluster.node_of("p") == "sound"

        async def described() -> bool:
            return "UnreadableRegistration" in await asyncio.to_thread(plane.kubectl, "describe", "node", "broken")

        await until(described)


async def test_on_an_immediate_node_pods_are_bound_one_after_the_other_under_the_lock(
    plane: ControlPlane, api_server: Peer, tmp_path: Path
) -> None:
    node = gpu_node("a")
    node["metadata"]["annotations"][keys.NODE_ALLOCATION] = "immediate"
    names = {"first", "second"}
    async with running(plane, api_server, tmp_path, node) as cluster:
        daemon = await ApiServer.connect(plane.kubeconfig())
        for name in names:
            await cluster.add(gpu_pod(name, 1))
        while names:
            await until(partial(_any_bound, cluster, tuple(names)))
            bound = [name for name in names if await cluster.node_of(name)]
            assert len(bound) == 1
            pod = await daemon.get(PODS, bound[0], cluster.namespace)
            assert pod.metadata.annotations[keys.BIND_PHASE] == "allocating"
            body = settlement(pod, frozenset({0}), BindPhase.SUCCESS, keys.RESOURCE_COUNT)
            await OwnNode(daemon, "a", Changes()).settle(pod, body, release=True)
            names -= set(bound)
        await daemon.close()


async def _any_bound(cluster: Cluster, names: Iterable[str]) -> bool:
    pods = await cluster.pods()
    return any(pods[name]["spec"].get("nodeName") for name in names)


async def test_with_all_nodes_returned_kube_scheduler_asks_for_scores(
    plane: ControlPlane, api_server: Peer, tmp_path: Path
) -> None:
    nodes, verbs = [gpu_node(name) for name in ("a", "b", "c")], {"prioritizeVerb": "prioritize"}
    async with running(
        plane, api_server, tmp_path, *nodes, verbs=verbs, options=("--filter-returns", "all")
    ) as cluster:
        for number in range(6):
            await cluster.add(gpu_pod(f"p{number}", 4, annotations={keys.NODE_POLICY: "binpack"}))
            await cluster.bound(f"p{number}")
        assert len(cluster.recorder.of("prioritize")) >= 1
        pods = await cluster.pods()
    used = [gpu for pod in pods.values() for gpu in pod["metadata"]["annotations"][keys.DEVICES_ALLOCATED].split(":")]
    uuids = [row.split(",")[0] for row in used if "," in row]
    assert len(uuids) == len(set(uuids)) == 24


async def test_a_pod_that_a_quota_held_back_is_bound_when_the_quota_is_raised(
    plane: ControlPlane, api_server: Peer, tmp_path: Path
) -> None:
    """kube-scheduler knows nothing of quotas on GPU memory: only the annotation makes it try again in time."""
    async with running(plane, api_server, tmp_path, gpu_node("a")) as cluster:
        path = f"/api/v1/namespaces/{cluster.namespace}/resourcequotas"
        hard = {"limits.nvidia.com/gpumem": "5000"}
        await api_server.create(path, {"metadata": {"name": "gpus"}, "spec": {"hard": hard}})

        async def known() -> bool:
            async with api_server.http.get(f"{cluster.extender}/debug/snapshot") as response:
                return cluster.namespace in (await response.json())["quotas"]

        await until(known)
        await cluster.add(gpu_pod("p", 1, gpumem=8000))
        condition = await cluster.refused("p")
        assert "ResourceQuota" in condition["message"]
        raised = {"spec": {"hard": {"limits.nvidia.com/gpumem": "9000"}}}
        status, _ = await api_server.send("PATCH", f"{path}/gpus", raised, "application/merge-patch+json")
        assert status == 200
        await cluster.bound("p")
        assert keys.REQUEUE in (await cluster.pod("p"))["metadata"]["annotations"]


async def test_a_pod_takes_the_gpus_of_one_that_ended(plane: ControlPlane, api_server: Peer, tmp_path: Path) -> None:
    async with running(plane, api_server, tmp_path, gpu_node("a")) as cluster:
        await cluster.add(gpu_pod("first", 8))
        await cluster.bound("first")
        await cluster.add(gpu_pod("second", 8))
        assert "CardInsufficient" in (await cluster.refused("second"))["message"]
        await cluster.remove("first")
        await cluster.bound("second")


async def test_scheduling_goes_on_after_a_crash_of_the_api_server(
    plane: ControlPlane, api_server: Peer, tmp_path: Path
) -> None:
    async with running(plane, api_server, tmp_path, gpu_node("a")) as cluster:
        await cluster.add(gpu_pod("before", 4))
        await cluster.bound("before")
        await asyncio.to_thread(plane.stop_api_server, signal.SIGKILL)
        await asyncio.to_thread(plane.start_api_server)
        await cluster.add(gpu_pod("after", 4))
        await cluster.bound("after")
        await cluster.add(gpu_pod("too-many", 1))
        assert "CardInsufficient" in (await cluster.refused("too-many"))["message"]
        pods = await cluster.pods()
        assert _gpus(pods["before"]) & _gpus(pods["after"]) == set()


def _gpus(pod: dict[str, Any]) -> set[str]:
    rows = pod["metadata"]["annotations"][keys.DEVICES_ALLOCATED].split(":")
    return {row.split(",")[0] for row in rows if "," in row}


async def test_the_extender_leads_once_the_kube_scheduler_on_its_host_holds_the_lease(
    plane: ControlPlane, api_server: Peer, tmp_path: Path
) -> None:
    lease = {"resourceName": "kube-scheduler", "resourceNamespace": "kube-system"}
    times = {"leaseDuration": "6s", "renewDeadline": "5s", "retryPeriod": "500ms"}
    metrics = f"127.0.0.1:{free_port()}"
    flags = [f"--leader-elect-resource-{key}={lease[f'resource{key.title()}']}" for key in ("name", "namespace")]
    async with AsyncExitStack() as stack:
        stack.push_async_callback(api_server.send, "DELETE", f"{LEASES}/kube-scheduler")
        await _hold(api_server, "another-host_1", "POST")
        cluster = await stack.enter_async_context(
            running(
                plane,
                api_server,
                tmp_path,
                gpu_node("a"),
                options=("--leader-elect", "--metrics-bind-address", metrics, *flags),
                leaderElection={"leaderElect": True, **lease, **times},
            )
        )
        await cluster.add(gpu_pod("p", 1))
        for _ in range(14):
            await _hold(api_server, "another-host_1", "PATCH")
            await asyncio.sleep(0.5)
        assert not await _leads(cluster, metrics)
        assert await cluster.node_of("p") == ""
        await cluster.bound("p")
        _, found = await api_server.send("GET", f"{LEASES}/kube-scheduler")
        assert found["spec"]["holderIdentity"].startswith(f"{socket.gethostname()}_")


async def test_the_extender_steps_down_while_another_host_holds_the_lease(
    plane: ControlPlane, api_server: Peer, tmp_path: Path
) -> None:
    ours = f"{socket.gethostname()}_1"
    named = ("--leader-elect-resource-name", "kube-scheduler", "--leader-elect-resource-namespace", "kube-system")
    metrics = f"127.0.0.1:{free_port()}"
    options = ("--leader-elect", "--metrics-bind-address", metrics, *named)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(api_server.send, "DELETE", f"{LEASES}/kube-scheduler")
        await _hold(api_server, ours, "POST", seconds=600)
        cluster = await stack.enter_async_context(running(plane, api_server, tmp_path, gpu_node("a"), options=options))
        await cluster.add(gpu_pod("first", 1))
        await cluster.bound("first")
        await _hold(api_server, "another-host_1", "PATCH", seconds=600)
        await until(partial(_follows, cluster, metrics))
        await cluster.add(gpu_pod("second", 1))
        why = "this replica does not lead: lease kube-system/kube-scheduler was last renewed by another-host_1"
        assert (await cluster.refused("second"))["message"] == why
        assert await cluster.node_of("second") == ""
        await _hold(api_server, ours, "PATCH", seconds=600)
        await cluster.bound("second")
        assert await _leads(cluster, metrics)


async def _leads(cluster: Cluster, metrics: str) -> bool:
    async with cluster.peer.http.get(f"http://{metrics}/metrics") as response:
        return "\ntopogpu_leader 1" in await response.text()


async def _follows(cluster: Cluster, metrics: str) -> bool:
    return not await _leads(cluster, metrics)


async def _hold(peer: Peer, holder: str, method: str, seconds: int = 6) -> None:
    renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # noqa: TID251 - compared with the scheduler's clock
    spec = {"holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": renewed, "acquireTime": renewed}
    path = LEASES if method == "POST" else f"{LEASES}/kube-scheduler"
    media_type = "application/json" if method == "POST" else "application/merge-patch+json"
    status, answer = await peer.send(method, path, {"metadata": {"name": "kube-scheduler"}, "spec": spec}, media_type)
    assert status in (200, 201), answer
