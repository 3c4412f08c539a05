"""Each manifest of `examples/` gets what its comment says: real webhook, extender and daemon, on a simulated node."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from proto.admission import Json
from proto.environment import VISIBLE_DEVICES
from proto.kubernetes.client import ApiServer
from scheduler_ext.cli.state import read_snapshot
from simulation.apiserver.kinds import BY_NAME
from simulation.apiserver.patches import json_patch
from simulation.kube_scheduler import KubeSchedulerStandIn
from simulation.kubelet.container import CreatedContainer
from simulation.machines.description import MachineDescription, MigDevice, mig_uuid
from simulation.verification import granted_shares
from tests.deviceplugin.daemon_rig import BRIDGED, DaemonRig, daemon
from tests.deviceplugin.gpus import NODE
from tests.examples import FOLDER, NAMES, objects, pods
from tests.polling import until
from tests.scheduler_ext.admission.pods import envelope, opened
from tests.scheduler_ext.extender_process import Extender, extender, prepare

pytestmark = pytest.mark.needs_compiler
Grant = tuple[int, int, int]
"""GPU, MiB, percent of its cores."""
Granted = dict[str, list[Grant]]
"""By container, of one pod."""

ALL_MIB = 81920
INSTANCE = MigDevice("1g.10gb", 9728, 7, 0)
CUT = 3
"""The GPU that is a MIG instance. The others are whole, and NVLink bridges join 0 to 1 and 2 to 3."""
NAMED = 0
"""The GPU whose UUID stands in `gpu-uuid.yaml`."""
WHOLE: Granted = {"main": [(2, ALL_MIB, 100)]}
EXPECTED: dict[str, list[Granted]] = {
    "binpack": [{"notebook": [(2, 4000, 10)]}] * 4,
    "deployment": [{"serve": [(gpu, 8000, 30)]} for gpu in (2, 1, 0)],
    "fraction": [{"notebook": [(2, 8000, 30)]}],
    "gke-critical-pods": [],
    "gpu-type": [WHOLE],
    "gpu-uuid": [{"main": [(NAMED, ALL_MIB, 100)]}],
    "init-container": [{"convert": [(2, 12000, 0)], "serve": [(2, 6000, 0)]}],
    "job": [{"task": [(gpu, ALL_MIB, 100)]} for gpu in (2, 1)],
    "mig": [{"main": [(CUT, INSTANCE.memory_mib, 100)]}],
    "percentage": [{"main": [(2, ALL_MIB // 2, 50)]}],
    "priority-class": [{"main": [(1, ALL_MIB, 100), (2, ALL_MIB, 100)]}],
    "quota": [],
    "several-containers": [{"model": [(2, 10000, 40)], "embeddings": [(1, 2000, 10)], "proxy": []}],
    "sidecar": [{"tokenizer": [(2, 1000, 5)], "serve": [(1, 6000, 40)]}],
    "task-priority": [{"main": [(2, 8000, 0)]}, {"main": [(2, 8000, 60)]}],
    "topology-aware": [{"main": [(0, ALL_MIB, 100), (1, ALL_MIB, 100)]}],
    "whole-gpu": [WHOLE],
}
"""By example, one entry for each pod."""


def machine() -> MachineDescription:
    gpus = list(BRIDGED.gpus)
    gpus[CUT] = replace(gpus[CUT], mig="enabled", mig_devices=(INSTANCE,))
    return replace(BRIDGED, gpus=tuple(gpus), topo_m=())


@dataclass(frozen=True)
class OneNode:
    """A cluster of one node."""

    node: DaemonRig
    extender: Extender

    async def verdict(self, pod: Json) -> Json:
        """What the webhook answers about a pod."""
        pod["spec"].setdefault("schedulerName", "default-scheduler")
        question, kind = envelope(pod, namespace="default"), {"Content-Type": "application/json"}
        url = f"{self.extender.webhook}/webhook"
        async with self.extender.http.post(url, data=question, headers=kind) as answer:
            verdict: Json = opened(await answer.read())["response"]
        return verdict

    async def create(self, pod: Json) -> str:
        """As the API server does, with the webhook's patch. Returns the UID."""
        verdict = await self.verdict(pod)
        assert verdict["allowed"], verdict
        made = self.node.server.create(json_patch(pod, verdict.get("patch", [])))
        return str(made["metadata"]["uid"])

    async def applied(self, name: str) -> list[Granted]:
        """What each pod of the example got. Its objects are gone again on return."""
        items = objects(name, uuid=self.node.uuid(NAMED))
        others = [item for item in items if item["kind"] in BY_NAME and item["kind"] != "Pod"]
        for item in others:
            self.node.server.create(item)
        own = [pod for item in items for pod in pods(item)]
        uids = [await self.create(pod) for pod in own]
        await self.node.runs(*(pod["metadata"]["name"] for pod in own))
        granted = [self.granted(uid) for uid in uids]
        for pod in own:
            ended = {"status": {"phase": "Succeeded", "containerStatuses": [], "initContainerStatuses": []}}
            self.node.server.patch("pods", pod["metadata"]["name"], ended, namespace="default", subresource="status")
        await until(self.is_idle)
        for item in [*others, *own]:
            kind, metadata = BY_NAME[item["kind"]], item["metadata"]
            namespace = metadata.get("namespace", "default") if kind.namespaced else ""
            self.node.server.delete(kind.plural, metadata["name"], namespace=namespace)
        return granted

    def granted(self, uid: str) -> Granted:
        return {made.name: list(_grants(self.node, made)) for made in self.node.kubelet.created[uid]}

    async def is_idle(self) -> bool:
        """Has the extender seen that every GPU is free?"""
        async with self.extender.http.get(f"{self.extender.verbs}/debug/snapshot") as answer:
            snapshot = read_snapshot(json.loads(await answer.read()), "the extender")
        return not any(gpu.replicas for gpu in snapshot.nodes[NODE].gpus)


def _grants(node: DaemonRig, container: CreatedContainer) -> Iterator[Grant]:
    numbers = {node.uuid(gpu): gpu for gpu in range(len(node.description.gpus))}
    if container.env.get(VISIBLE_DEVICES) == mig_uuid(BRIDGED.id, CUT, INSTANCE, NODE):
        yield CUT, INSTANCE.memory_mib, 100
    elif VISIBLE_DEVICES in container.env:
        yield from ((numbers[share.uuid], share.memory_mib, share.cores) for share in granted_shares(container))


@asynccontextmanager
async def one_node() -> AsyncIterator[OneNode]:
    async with daemon("--mig-strategy", "mixed", description=machine(), runtime_version="containerd://2.4.2") as node:
        await until(lambda: node.capacity("nvidia.com/mig-1g.10gb") == (1, 1) and node.capacity() == (30, 30))
        prepare(node.server)
        api = await ApiServer.connect(str(node.kubelet.root / "kubeconfig"))
        try:
            async with (
                extender(node.server, node.kubelet.root) as ours,
                KubeSchedulerStandIn(api, ours.verbs),
                KubeSchedulerStandIn(api, ours.verbs, "default-scheduler"),
            ):
                yield OneNode(node, ours)
        finally:
            await api.close()


async def test_every_example_gets_what_its_comment_says() -> None:
    async with one_node() as cluster:
        assert {name: await cluster.applied(name) for name in NAMES} == EXPECTED
        assert cluster.node.problems() == []


async def test_the_quota_of_the_example_refuses_a_pod_beyond_it_with_the_numbers() -> None:
    async with one_node() as cluster:
        (quota,) = objects("quota")
        cluster.node.server.create(quota)
        (pod,) = (pod for item in objects("whole-gpu") for pod in pods(item))
        pod["spec"]["containers"][0]["resources"]["limits"] |= {"nvidia.com/gpu": 3, "nvidia.com/gpumem": 60000}

        async def refused() -> str:
            return str((await cluster.verdict(pod)).get("status", {}).get("message", ""))

        await until(refused)
        numbers = "the pod asks for 180000 MiB of GPU memory, and 0 of the namespace's 160000 are taken"
        assert await refused() == f"exceeding resource quota: {numbers}"


def test_the_page_of_examples_shows_each_of_them() -> None:
    page = (FOLDER.parent / "docs/pods.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\[examples/([a-z-]+)\.yaml\]\(\.\./examples/\1\.yaml\)$", page, re.MULTILINE)
    assert sorted(shown) == [*NAMES]
