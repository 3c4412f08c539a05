"""Groups with a topology constraint on the real kube-scheduler, which simulates each domain and binds the best one."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane
from tests.cluster.groups import CLIQUE, add_group, plane_with_groups
from tests.cluster.peers import real
from tests.cluster.scheduling import Cluster, JsonObject, extender_of, gpu_node, gpu_pod, running
from tests.polling import until

pytestmark = pytest.mark.cluster
MEMBERS = 4
NODES = [f"{domain}{number}" for domain in "ab" for number in range(MEMBERS)]


@pytest.fixture(scope="module")
def plane(kubernetes: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    gates = "GenericWorkload=true,TopologyAwareWorkloadScheduling=true"
    with plane_with_groups(kubernetes, tmp_path_factory.mktemp("control-plane-with-domains"), gates) as running:
        yield running


@pytest.fixture
async def cluster(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Cluster]:
    """Two domains of four nodes, each with eight GPUs."""
    nodes = [domain_node(name, name[0]) for name in NODES]
    async with real(plane) as peer, running(plane, peer, tmp_path, *nodes) as found:
        yield found


def domain_node(name: str, domain: str) -> JsonObject:
    made = gpu_node(name)
    made["metadata"]["labels"][CLIQUE] = domain
    return made


def names(group: str) -> list[str]:
    return [f"{group}{number}" for number in range(MEMBERS)]


async def add(cluster: Cluster, group: str) -> None:
    await add_group(cluster, group, members=MEMBERS, gpus=8, domain=CLIQUE)


async def domains_of(cluster: Cluster, group: str) -> set[str]:
    return {(await cluster.node_of(name))[:1] for name in names(group)}


async def fill(cluster: Cluster, name: str, node: str) -> None:
    pod = gpu_pod(name, 8, gpucores=100)
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    await cluster.add(pod)
    await cluster.bound(name)


async def are_free(cluster: Cluster, *nodes: str) -> bool:
    """Whether the extender has seen that the pods of these nodes are gone."""
    async with cluster.recorder.http.get(f"{cluster.extender}/debug/snapshot") as answer:
        usages = (await answer.json(content_type=None))["nodes"]
    return not any(gpu.get("slots") for node in nodes for gpu in usages[node]["gpus"])


def asked_domains(cluster: Cluster, member: str) -> str:
    """The domains of the questions about the member, in their order."""
    asked = [asked for asked, _ in cluster.recorder.of("filter") if asked["Pod"]["metadata"]["name"] == member]
    return "".join(question["NodeNames"][0][0] for question in asked)


async def test_two_groups_that_fit_side_by_side_are_both_bound_whole(cluster: Cluster) -> None:
    for number in range(10):
        pair = (f"g{number}m", f"h{number}m")
        await asyncio.gather(*(add(cluster, group) for group in pair))
        await cluster.bound(*names(pair[0]), *names(pair[1]))
        assert {frozenset(await domains_of(cluster, group)) for group in pair} == {frozenset("a"), frozenset("b")}
        await asyncio.gather(*(cluster.remove(name) for group in pair for name in names(group)))
    failed = [answered["Error"] for _, answered in cluster.recorder.of("bind") if answered.get("Error")]
    assert failed == []


async def test_pods_that_come_before_the_binds_do_not_get_the_groups_gpus(cluster: Cluster) -> None:
    """The danger is a winning domain that was simulated first. kube-scheduler tries domains in random order."""
    await fill(cluster, "busy", "b0")
    for attempt in range(8):
        group = f"g{attempt}m"
        cluster.recorder.binds.clear()
        await add(cluster, group)
        await until(partial(asked_domains, cluster, f"{group}{MEMBERS - 1}"))
        others = [f"s{attempt}m{number}" for number in range(MEMBERS + 1)]
        for name in others:
            await cluster.add(gpu_pod(name, 8, gpucores=100))
        await until(partial(asked_domains, cluster, others[-1]))
        cluster.recorder.binds.set()
        await cluster.bound(*names(group))
        assert await domains_of(cluster, group) == {"a"}
        await asyncio.gather(*(cluster.remove(name) for name in [*names(group), *others]))
        await until(partial(are_free, cluster, *(name for name in NODES if name != "b0")))
        if asked_domains(cluster, f"{group}0") == "ab":
            return


async def test_a_member_whose_bind_fails_keeps_its_gpus_until_it_is_bound(cluster: Cluster) -> None:
    async with no_binding(cluster, "gm2"):
        await add(cluster, "gm")
        await cluster.bound("gm0", "gm1", "gm3")
        others = [f"s{number}" for number in range(MEMBERS + 1)]
        for name in others:
            await cluster.add(gpu_pod(name, 8, gpucores=100))
        await cluster.refused(others[-1])
        assert await cluster.node_of("gm2") == ""
    await cluster.bound("gm2")
    assert len(await domains_of(cluster, "gm")) == 1
    failed = [answered["Error"] for _, answered in cluster.recorder.of("bind") if answered.get("Error")]
    assert len(failed) < 30


async def test_a_group_is_bound_whole_by_an_extender_that_starts_between_its_questions_and_its_binds(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.recorder.binds.clear()
    await add(cluster, "gm")
    await until(lambda: len(asked_domains(cluster, names("gm")[-1])) > 1)
    (tmp_path / "next").mkdir()
    async with extender_of(cluster.plane, tmp_path / "next") as url:
        cluster.recorder.extender = url
        cluster.recorder.binds.set()
        await cluster.bound(*names("gm"))
        assert len({await cluster.node_of(name) for name in names("gm")}) == MEMBERS
        assert len(await domains_of(cluster, "gm")) == 1
        await add(cluster, "hm")
        await cluster.bound(*names("hm"))
        pods = await cluster.pods()
        assert len({pod["spec"]["nodeName"] for pod in pods.values()}) == 2 * MEMBERS


@asynccontextmanager
async def no_binding(cluster: Cluster, pod: str) -> AsyncIterator[None]:
    """The API server refuses Bindings of pods with this name."""
    admission, name = "/apis/admissionregistration.k8s.io/v1", {"name": f"no-binding-{pod}"}
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}]
    expression = f"object.metadata.name != '{pod}'"
    policy = {"matchConstraints": {"resourceRules": rules}, "validations": [{"expression": expression}]}
    binding = {"policyName": name["name"], "validationActions": ["Deny"]}
    made = {"validatingadmissionpolicies": policy, "validatingadmissionpolicybindings": binding}
    for resource, spec in made.items():
        await cluster.peer.create(f"{admission}/{resource}", {"metadata": name, "spec": spec})
    probe = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": {"name": NODES[0]}}

    async def refuses() -> bool:
        path = f"/api/v1/namespaces/{cluster.namespace}/pods/{pod}/binding?dryRun=All"
        _, answer = await cluster.peer.send("POST", path, probe)
        return "denied request" in str(answer["message"])

    await until(refuses)
    try:
        yield
    finally:
        for resource in reversed(made):
            status, answer = await cluster.peer.send("DELETE", f"{admission}/{resource}/{name['name']}")
            assert status == 200, answer


async def test_pods_are_evicted_for_a_whole_group_and_it_gets_their_room(plane: ControlPlane, tmp_path: Path) -> None:
    async with real(plane) as peer:
        urgent = {"metadata": {"name": "urgent"}, "value": 1000}
        await peer.send("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", urgent)
        nodes = [domain_node(name, name[0]) for name in NODES]
        async with running(plane, peer, tmp_path, *nodes, options=("--features", "gpu-preemption")) as cluster:
            low = [f"low{number}" for number in range(len(NODES))]
            for name in low:
                await cluster.add(gpu_pod(name, 8, gpucores=100))
            await cluster.bound(*low)
            await add_group(cluster, "gm", members=MEMBERS, gpus=8, domain=CLIQUE, priority_class="urgent")
            gone: list[str] = []

            async def evicted() -> bool:
                gone[:] = [
                    name for name, pod in (await cluster.pods()).items() if "deletionTimestamp" in pod["metadata"]
                ]
                return len(gone) == MEMBERS

            await until(evicted)
            domain = {(await cluster.node_of(name))[0] for name in gone}
            assert len(domain) == 1
            await asyncio.gather(*(cluster.remove(name) for name in gone))
            await cluster.bound(*names("gm"))
            assert await domains_of(cluster, "gm") == domain
