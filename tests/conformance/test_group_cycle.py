"""kube-scheduler's cycle of a pod, and of a group with domains: the stand-in's is like the real one's."""

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from proto.kubernetes.client import ApiServer
from simulation.kube_scheduler import KubeSchedulerStandIn
from tests.builders import as_json, node, pod_json
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane
from tests.cluster.groups import CLIQUE, add_group, plane_with_groups
from tests.cluster.peers import Peer, embedded, real
from tests.cluster.scheduling import Cluster, Recorder, clear, scheduler_configuration
from tests.polling import until

MEMBERS = ("g0", "g1", "g2")
NODES = tuple(f"{domain}{number}" for domain in "ab" for number in range(3))
Answer = Callable[[str, list[str]], list[str]]
"""The nodes for a pod among those of the question."""


@dataclass
class Extender:
    """It answers as the test wants, and writes down what it was sent."""

    peer: Peer
    answer: Answer = lambda _, names: names[:1]
    filtered: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    bound: dict[str, str] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    """Names of pods whose next bind fails."""
    failed: int = 0

    async def filter(self, request: web.Request) -> web.Response:
        question = await request.json()
        name, names = question["Pod"]["metadata"]["name"], sorted(question["NodeNames"])
        taken = {place for pod, place in self.placed.items() if pod != name}
        self.filtered.append((name, frozenset(names)))
        passed = self.answer(name, [each for each in names if each not in taken])
        if passed:
            self.placed[name] = passed[0]
        return web.json_response({"NodeNames": passed, "FailedNodes": dict.fromkeys(set(names) - set(passed), "full")})

    placed: dict[str, str] = field(default_factory=dict)
    """The node of each pod by the last answer about it."""

    async def bind(self, request: web.Request) -> web.Response:
        asked = await request.json()
        name, place = asked["PodName"], asked["Node"]
        if name in self.failing:
            self.failing.remove(name)
            self.failed += 1
            return web.json_response({"Error": "not now"})
        self.bound[name] = place
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"name": place}}
        status, answer = await self.peer.send(
            "POST", f"/api/v1/namespaces/{asked['PodNamespace']}/pods/{name}/binding", binding
        )
        return web.json_response({"Error": "" if status == 201 else str(answer)})

    @property
    def questions(self) -> list[tuple[str, str]]:
        """The member and the domain of each question."""
        return [(name, "".join(sorted({each[0] for each in names}))) for name, names in self.filtered]


@asynccontextmanager
async def serving(extender: Extender) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_post("/filter", extender.filter)
    application.router.add_post("/bind", extender.bind)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.fixture(scope="module")
def group_plane(kubernetes: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    gates = "GenericWorkload=true,TopologyAwareWorkloadScheduling=true"
    with plane_with_groups(kubernetes, tmp_path_factory.mktemp("plane-of-the-group-cycle"), gates) as running:
        yield running


@dataclass
class Scheduled:
    cluster: Cluster
    extender: Extender


@pytest.fixture(params=["stand-in", pytest.param("real", marks=pytest.mark.cluster)])
async def scheduled(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scheduled]:
    """Two domains of three nodes, and a scheduler with the extender of the test."""
    is_real = request.param == "real"
    plane: ControlPlane | None = request.getfixturevalue("group_plane") if is_real else None
    async with real(plane) if plane is not None else embedded(tmp_path) as peer, aiohttp.ClientSession() as http:
        namespace = await peer.namespace(f"test-{uuid.uuid4().hex[:8]}")
        for name in NODES:
            made = as_json(node(name, ready=True))
            made["metadata"]["labels"] = {CLIQUE: name[0]}
            made["status"] |= {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10"}}
            made["status"]["capacity"] = made["status"]["allocatable"]
            await peer.create("/api/v1/nodes", made)
        extender = Extender(peer)
        async with serving(extender) as url:
            cluster = Cluster(plane, peer, Recorder(http, url), url, namespace)  # type: ignore[arg-type] # no plane
            async with _scheduler(plane, peer, url, namespace):
                yield Scheduled(cluster, extender)
        await clear(peer, namespace)


@asynccontextmanager
async def _scheduler(plane: ControlPlane | None, peer: Peer, url: str, namespace: str) -> AsyncIterator[None]:
    if plane is None:
        client = await ApiServer.connect(peer.kubeconfig("admin"))
        async with KubeSchedulerStandIn(client, url):
            yield
        await client.close()
        return
    with plane.scheduler(scheduler_configuration(url, {}), f"scheduler-{namespace}") as program:
        program.check_running()
        yield


async def add(on: Scheduled) -> None:
    await add_group(on.cluster, "g", members=len(MEMBERS), gpus=1, domain=CLIQUE)


async def is_bound(on: Scheduled) -> bool:
    pods = await on.cluster.pods()
    return all(pods[name]["spec"].get("nodeName") for name in MEMBERS)


async def test_each_domain_is_simulated_and_one_is_bound_without_another_question(scheduled: Scheduled) -> None:
    await add(scheduled)
    await until(partial(is_bound, scheduled))
    asked = scheduled.extender.questions
    assert sorted(asked) == sorted((name, domain) for name in MEMBERS for domain in "ab")
    names = [name for name, _ in asked]
    assert names[: len(MEMBERS)] == names[len(MEMBERS) :]
    assert len({place[0] for place in scheduled.extender.bound.values()}) == 1


async def test_a_member_that_fits_nowhere_ends_the_simulation_of_its_domain(scheduled: Scheduled) -> None:
    scheduled.extender.answer = lambda name, names: [] if name == "g1" and names[0] < "b" else names[:1]
    await add(scheduled)
    await until(partial(is_bound, scheduled))
    assert [name for name, domain in scheduled.extender.questions if domain == "a"][-1] == "g1"
    assert {place[0] for place in scheduled.extender.bound.values()} == {"b"}


async def test_of_a_group_that_fits_in_no_domain_no_pod_is_bound(scheduled: Scheduled) -> None:
    scheduled.extender.answer = lambda name, names: [] if name == "g2" else names[:1]
    await add(scheduled)
    conditions = [await scheduled.cluster.refused(name) for name in MEMBERS]
    assert {each["reason"] for each in conditions} == {"Unschedulable"}
    assert scheduled.extender.bound == {}


async def test_a_member_whose_bind_failed_is_tried_again_in_the_domain_of_the_others(scheduled: Scheduled) -> None:
    scheduled.extender.failing = {"g1"}
    await add(scheduled)
    await until(partial(is_bound, scheduled))
    assert scheduled.extender.failed == 1
    name, domain = scheduled.extender.questions[-1]
    assert name == "g1"
    assert {place[0] for place in scheduled.extender.bound.values()} == {domain}


async def _alone(on: Scheduled, name: str, cpu: str = "1", **spec: Any) -> None:
    """Creates a pod outside of groups that asks for a GPU."""
    pod = pod_json(name, namespace=on.cluster.namespace)
    pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu}
    pod["spec"] |= spec
    await on.cluster.add(pod)


def _on(**rule: Any) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [rule]}}
    return {"affinity": {"nodeAffinity": required}}


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        ({"nodeSelector": {CLIQUE: "a"}}, {"a0", "a1", "a2"}),
        (_on(matchFields=[{"key": "metadata.name", "operator": "In", "values": ["b1"]}]), {"b1"}),
        (_on(matchExpressions=[{"key": CLIQUE, "operator": "NotIn", "values": ["a"]}]), {"b0", "b1", "b2"}),
        (_on(matchExpressions=[{"key": "none", "operator": "Exists"}]), None),
        ({}, set(NODES)),
    ],
)
async def test_nodes_that_selectors_and_affinity_exclude_are_not_asked_about(
    scheduled: Scheduled, spec: dict[str, Any], asked: set[str] | None
) -> None:
    await _alone(scheduled, "p", **spec)
    if asked is None:
        refused = await scheduled.cluster.refused("p")
        assert refused["message"].startswith(
            "0/6 nodes are available: 6 node(s) didn't match Pod's node affinity/selector."
        )
        assert scheduled.extender.filtered == []
        return
    await until(lambda: scheduled.extender.filtered)
    assert scheduled.extender.filtered[0] == ("p", frozenset(asked))


async def test_a_node_without_enough_cpu_is_not_asked_about(scheduled: Scheduled) -> None:
    only_a0 = _on(matchFields=[{"key": "metadata.name", "operator": "In", "values": ["a0"]}])
    await _alone(scheduled, "first", "5", **only_a0)
    await until(lambda: scheduled.extender.bound)
    await _alone(scheduled, "second", "5", **only_a0)
    message = (await scheduled.cluster.refused("second"))["message"]
    assert message.startswith(
        "0/6 nodes are available: 1 Insufficient cpu, 5 node(s) didn't satisfy plugin(s) [NodeAffinity]."
    )
    assert [name for name, _ in scheduled.extender.filtered] == ["first"]
