"""The real Kueue before us: quotas and topology by the sums of GPUs, as the manifests of `examples/kueue` set it up."""

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from deviceplugin.node.totals import node_sums
from proto.annotations import keys
from proto.annotations.node_register import decode_register
from scheduler_ext.admission.containers import WEBHOOK_PATH, AdmissionSettings
from scheduler_ext.certificates.issue import issue
from tests.cluster import kueue
from tests.cluster.binaries import Binaries, NoBinaries
from tests.cluster.control_plane import ControlPlane, free_port
from tests.cluster.peers import Peer, real
from tests.cluster.scheduling import Cluster, JsonObject, gpu_node, gpu_pod, running
from tests.cluster.test_node_totals import with_totals
from tests.cluster.test_plan_job import running_controllers
from tests.examples import FOLDER
from tests.polling import until
from tests.scheduler_ext.admission.webhook_configuration import webhook_configuration

pytestmark = pytest.mark.cluster

MANIFESTS = FOLDER / "kueue"
RACK = "cloud.provider.com/topology-rack"
QUEUES = "/apis/kueue.x-k8s.io/v1beta2"
WHOLE, MIB = 8, 40960
NODES = ("a0", "a1", "b0", "b1")
"""The first letter is the rack."""


@pytest.fixture(scope="module")
def queued(kubernetes: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with _kueue(kubernetes, tmp_path_factory.mktemp("queues")) as plane:
        yield plane


@contextmanager
def _kueue(kubernetes: Binaries, folder: Path, **changes: Any) -> Iterator[ControlPlane]:
    """A control plane of its own, for Kueue's webhooks judge every Job, and Kueue with the examples' configuration."""
    if os.environ.get("KUBERNETES_RELEASE", kueue.RELEASE) not in ("", kueue.RELEASE):
        pytest.skip(f"Kueue {kueue.VERSION} is tried with Kubernetes {kueue.RELEASE}")
    configuration = yaml.safe_load((MANIFESTS / "configuration.yaml").read_text())
    try:
        kueue.find()
    except NoBinaries as reason:
        pytest.skip(str(reason))
    with (
        ControlPlane(kubernetes, folder / "plane") as plane,
        running_controllers(plane, folder),
        kueue.running(plane, folder / "kueue", configuration | changes),
    ):
        yield plane


@dataclass(frozen=True)
class Queue:
    """The queue of the examples in one namespace, and the cluster behind it."""

    cluster: Cluster

    @property
    def _peer(self) -> Peer:
        return self.cluster.peer

    async def submit(self, name: str, *containers: Mapping[str, int], pods: int = 1, required: str = RACK) -> None:
        """Creates the Job of the examples with these containers."""
        job = yaml.safe_load((MANIFESTS / "job.yaml").read_text())
        job["metadata"]["name"] = name
        job["spec"] |= {"parallelism": pods, "completions": pods}
        template = job["spec"]["template"]
        if not required:
            del template["metadata"]["annotations"]
        [main] = template["spec"]["containers"]
        template["spec"]["containers"] = [
            {**main, "name": f"c{number}", "resources": {"limits": _limits(each)}}
            for number, each in enumerate(containers)
        ]
        await self._peer.create(f"/apis/batch/v1/namespaces/{self.cluster.namespace}/jobs", job)

    async def workloads(self) -> dict[str, JsonObject]:
        """Kueue's records of the Jobs, by their names."""
        _, found = await self._peer.send("GET", f"{QUEUES}/namespaces/{self.cluster.namespace}/workloads")
        return {each["metadata"]["ownerReferences"][0]["name"]: each for each in found["items"]}

    async def admitted(self, *names: str) -> None:
        async def all_admitted() -> bool:
            found = await self.workloads()
            return all(_condition(found.get(name, {}), "Admitted").get("status") == "True" for name in names)

        await until(all_admitted)

    async def waits(self, name: str) -> str:
        """Returns Kueue's reason once it has tried the Job."""

        async def reason() -> str:
            found = _condition((await self.workloads()).get(name, {}), "QuotaReserved")
            return str(found["message"]) if found.get("status") == "False" else ""

        async def is_there() -> bool:
            return bool(await reason())

        await until(is_there)
        return await reason()

    async def charged(self, name: str) -> dict[str, int]:
        [assigned] = (await self.workloads())[name]["status"]["admission"]["podSetAssignments"]
        return {resource: _amount(amount) for resource, amount in assigned["resourceUsage"].items()}

    async def pods_of(self, job: str) -> list[JsonObject]:
        found = await self.cluster.pods()
        return [each for name, each in sorted(found.items()) if name.startswith(f"{job}-")]

    async def placed(self, job: str, pods: int = 1) -> list[str]:
        """Returns the nodes of the Job's pods once all have one."""

        async def nodes() -> list[str]:
            return [each["spec"].get("nodeName", "") for each in await self.pods_of(job)]

        async def all_have() -> bool:
            found = await nodes()
            return len(found) == pods and all(found)

        await until(all_have)
        return sorted(await nodes())

    async def end(self, job: str) -> None:
        """Ends the pods of the Job well, as kubelet reports it."""
        for pod in await self.pods_of(job):
            path = f"/api/v1/namespaces/{self.cluster.namespace}/pods/{pod['metadata']['name']}/status"
            status = {"status": {"phase": "Succeeded"}}
            answered, found = await self._peer.send("PATCH", path, status, "application/merge-patch+json")
            assert answered == 200, found


@pytest.fixture
async def queue(queued: ControlPlane, tmp_path: Path) -> AsyncIterator[Queue]:
    """Four nodes of eight GPUs, two in each of two racks, and the queue of the examples for 16 of the GPUs."""
    async with real(queued) as peer, _queue(queued, peer, tmp_path) as made:
        yield made


@asynccontextmanager
async def _queue(plane: ControlPlane, peer: Peer, folder: Path) -> AsyncIterator[Queue]:
    nodes = [_node(name, name[0]) for name in NODES]
    issued, port = issue(frozenset({"127.0.0.1"}), datetime.now(UTC)), free_port()  # noqa: TID251 - real handshakes
    (folder / "tls.crt").write_bytes(issued.certificate)
    (folder / "tls.key").write_bytes(issued.key)
    files = ("--cert_file", str(folder / "tls.crt"), "--key_file", str(folder / "tls.key"))
    options = (*files, "--webhook-bind-address", f"127.0.0.1:{port}", "--features", "gpu-sums")
    async with running(plane, peer, folder, *nodes, options=options) as cluster:
        authorities = base64.b64encode(issued.authorities).decode()
        client = {"url": f"https://127.0.0.1:{port}{WEBHOOK_PATH}", "caBundle": authorities}
        hooks = webhook_configuration("topogpu-webhook", client, AdmissionSettings(gpu_sums=True))
        await peer.create("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", hooks)
        applied = ("apply", "-n", cluster.namespace, "-f", str(MANIFESTS / "queues.yaml"))
        await asyncio.to_thread(plane.kubectl, *applied)
        made = Queue(cluster)
        try:
            yield made
        finally:
            await _clear(plane, peer, cluster.namespace)


async def _clear(plane: ControlPlane, peer: Peer, namespace: str) -> None:
    kubectl = asyncio.to_thread
    await kubectl(plane.kubectl, "delete", "jobs", "--all", "-n", namespace, "--cascade=foreground", "--wait=false")
    await peer.send("DELETE", f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")
    hooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/topogpu-webhook"
    await peer.send("DELETE", hooks)


def _node(name: str, rack: str) -> JsonObject:
    """A node as kubelet and the daemon write it."""
    made = with_totals(gpu_node(name))
    made["metadata"]["labels"] |= {RACK: rack, "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}
    sums = node_sums(decode_register(made["metadata"]["annotations"][keys.NODE_REGISTER]), (), ())
    amounts = made["status"]["capacity"] | {resource: str(amount) for resource, amount in sums.items()}
    return made | {"status": made["status"] | {"capacity": amounts, "allocatable": amounts}}


def _pinned(pod: JsonObject, node: str) -> JsonObject:
    return pod | {"spec": pod["spec"] | {"nodeSelector": {"kubernetes.io/hostname": node}}}


def _limits(amounts: Mapping[str, int]) -> dict[str, str]:
    return {f"nvidia.com/{name.replace('_', '-')}": str(amount) for name, amount in amounts.items()}


def _condition(found: JsonObject, kind: str) -> JsonObject:
    conditions: Sequence[JsonObject] = found.get("status", {}).get("conditions", ())
    return next((each for each in conditions if each["type"] == kind), {})


def _amount(text: str) -> int:
    """Reads an amount as the API server writes it."""
    return int(text.removesuffix("k")) * (1000 if text.endswith("k") else 1)


async def test_a_quota_of_gpus_holds_and_what_a_job_leaves_is_given_to_the_next(queue: Queue) -> None:
    for name in ("first", "second", "third"):
        await queue.submit(name, {"gpu": WHOLE}, required="")
    await queue.admitted("first", "second")
    assert "insufficient unused quota" in await queue.waits("third")
    nodes = [await queue.placed(name) for name in ("first", "second")]
    assert nodes[0] != nodes[1]
    await queue.end("first")
    await queue.admitted("third")
    await queue.placed("third")


async def test_a_job_is_charged_for_all_gpus_of_all_its_containers(queue: Queue) -> None:
    jobs: dict[str, tuple[list[dict[str, int]], dict[str, int]]] = {
        "several": ([{"gpu": 2, "gpumem": 1000}, {"gpu": 1, "gpumem": 4000}], {keys.RESOURCE_MEMORY_SUM: 6000}),
        "whole": ([{"gpu": 2}], {keys.RESOURCE_MEMORY_SUM: 2 * MIB, keys.RESOURCE_CORES_SUM: 200}),
        "half": ([{"gpu": 1, "gpumem_percentage": 50}], {keys.RESOURCE_MEMORY_SUM: MIB // 2}),
        "part": ([{"gpumem": 3000, "gpucores": 30}], {keys.RESOURCE_MEMORY_SUM: 3000, keys.RESOURCE_CORES_SUM: 30}),
    }
    for name, (containers, _) in jobs.items():
        await queue.submit(name, *containers)
    await queue.admitted(*jobs)
    assert {name: await queue.charged(name) for name in jobs} == {name: charged for name, (_, charged) in jobs.items()}
    for name in jobs:
        await queue.placed(name)


async def test_topology_is_judged_by_gpus_and_not_by_their_replicas(queue: Queue) -> None:
    """A node has 80 replicas. A pod past the queue holds a part of one GPU in each rack."""
    for name in ("a0", "b0"):
        await queue.cluster.add(_pinned(gpu_pod(f"small-{name}", 1, gpumem=100), name))
    await queue.cluster.bound("small-a0", "small-b0")
    await queue.submit("pair", {"gpu": WHOLE}, pods=2)
    assert "allows to fit only 1 out of 2 pod(s)" in await queue.waits("pair")
    await queue.cluster.remove("small-b0")
    await queue.admitted("pair")
    assert await queue.placed("pair", 2) == ["b0", "b1"]


async def test_parts_of_gpus_fill_a_node_and_no_more(queue: Queue) -> None:
    """Four GPUs with 30 000 MiB of each: a node has the memory of two such pods, not of three."""
    await queue.submit("parts", {"gpu": 4, "gpumem": 30_000}, pods=3)
    await queue.admitted("parts")
    nodes = await queue.placed("parts", 3)
    assert sorted(nodes.count(name) for name in set(nodes)) == [1, 2]


async def _half_taken(queue: Queue) -> None:
    """Takes half of each GPU: there is memory enough for 30 000 MiB on each node, and on no GPU."""
    for name in NODES:
        await queue.cluster.add(_pinned(gpu_pod(f"half-{name}", WHOLE, gpumem=20_000), name))
    await queue.cluster.bound(*(f"half-{name}" for name in NODES))


async def test_a_job_that_is_admitted_and_fits_no_gpu_waits_with_our_reason_until_one_has_room(queue: Queue) -> None:
    await _half_taken(queue)
    await queue.submit("large", {"gpu": 1, "gpumem": 30_000})
    await queue.admitted("large")

    async def reason() -> str:
        conditions = [_condition(pod, "PodScheduled") for pod in await queue.pods_of("large")]
        return str(conditions[0].get("message", "")) if conditions else ""

    async def is_there() -> bool:
        return "CardInsufficientMemory" in await reason()

    await until(is_there)
    [pod] = await queue.pods_of("large")
    chosen = pod["spec"]["nodeSelector"]["kubernetes.io/hostname"]
    await queue.cluster.remove(f"half-{chosen}")
    assert await queue.placed("large") == [chosen]


async def test_a_job_that_fits_no_gpu_goes_back_into_the_queue_where_kueue_waits_for_pods(
    kubernetes: Binaries, tmp_path: Path
) -> None:
    waits = {"timeout": "3s", "blockAdmission": False, "requeuingStrategy": {"backoffBaseSeconds": 1}}
    with _kueue(kubernetes, tmp_path, waitForPodsReady=waits) as plane:
        async with real(plane) as peer, _queue(plane, peer, tmp_path) as queue:
            await _half_taken(queue)
            await queue.submit("large", {"gpu": 1, "gpumem": 30_000})

            async def went_back() -> bool:
                return "requeueState" in (await queue.workloads()).get("large", {}).get("status", {})

            await until(went_back)
            for name in NODES:
                await queue.cluster.remove(f"half-{name}")
            await queue.placed("large")


async def test_a_quota_of_the_api_server_s_own_counts_all_gpus_of_a_pod(queue: Queue) -> None:
    root = f"/api/v1/namespaces/{queue.cluster.namespace}"
    hard = {f"requests.{keys.RESOURCE_MEMORY_SUM}": "6000"}
    await queue.cluster.peer.create(f"{root}/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": hard}})
    counted = {"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}}  # as the controller of quotas writes it
    path = f"{root}/resourcequotas/q/status"
    assert (await queue.cluster.peer.send("PATCH", path, counted, "application/merge-patch+json"))[0] == 200
    status, answer = await queue.cluster.peer.send("POST", f"{root}/pods", gpu_pod("large", 2, gpumem=3001))
    assert (status, "exceeded quota" in answer["message"]) == (403, True)
    await queue.cluster.add(gpu_pod("fits", 2, gpumem=3000))
