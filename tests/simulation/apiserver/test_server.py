import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from simulation.apiserver import EmbeddedApiServer, Fault
from tests.builders import as_json, node, pod_json
from tests.simulation.controlled import deployment

PODS = "/api/v1/namespaces/default/pods"
JSON = {"Content-Type": "application/json"}
MERGE = {"Content-Type": "application/merge-patch+json"}


class Client:
    def __init__(self, server: EmbeddedApiServer, session: aiohttp.ClientSession) -> None:
        self.server, self.session = server, session

    async def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body)
        sent = {"Content-Type": "application/json"} | headers
        async with self.session.request(method, self.server.url + path, data=data, headers=sent) as response:
            return response.status, await response.json()

    async def watched(self, path: str) -> list[tuple[str, Any]]:
        """All events of a watch that ends by itself."""
        async with self.session.get(self.server.url + path) as response:
            lines = (await response.read()).splitlines()
        return [(event["type"], event["object"]) for event in map(json.loads, lines)]


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with EmbeddedApiServer(longest_grace_seconds=0) as server, aiohttp.ClientSession() as session:
        yield Client(server, session)


async def test_a_created_pod_has_identity_defaults_and_requests(client: Client) -> None:
    status, made = await client("POST", PODS, pod_json("a", gpus=2, memory_mib=0))
    assert status == 201
    assert made["metadata"]["uid"]
    assert made["metadata"]["creationTimestamp"].endswith("Z")
    assert made["status"]["phase"] == "Pending"
    assert made["spec"]["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "2"}
    assert (await client("POST", PODS, pod_json("a")))[0] == 409
    assert (await client("POST", "/api/v1/namespaces/nowhere/pods", pod_json("a", namespace="nowhere")))[0] == 404


async def test_pages_of_a_list_show_one_moment(client: Client) -> None:
    for name in "abcde":
        client.server.create(pod_json(name))
    _, first = await client("GET", "/api/v1/pods?limit=2")
    client.server.create(pod_json("bb"))
    client.server.delete("pods", "d", namespace="default")
    token = first["metadata"]["continue"]
    _, second = await client("GET", f"/api/v1/pods?limit=2&continue={token}")
    _, third = await client("GET", f"/api/v1/pods?limit=2&continue={second['metadata']['continue']}")
    names = [one["metadata"]["name"] for page in (first, second, third) for one in page["items"]]
    assert names == list("abcde")
    assert first["metadata"]["remainingItemCount"] == 3
    client.server.compact()
    client.server.create(pod_json("z"))
    assert (await client("GET", f"/api/v1/pods?limit=2&continue={token}"))[0] == 410


async def test_selectors_choose_by_label_and_field(client: Client) -> None:
    client.server.create(pod_json("a", labels={"app": "x"}, node_name="n1"))
    client.server.create(pod_json("b", labels={"app": "y"}))

    async def names(query: str) -> list[str]:
        return [one["metadata"]["name"] for one in (await client("GET", f"/api/v1/pods?{query}"))[1]["items"]]

    assert await names("fieldSelector=spec.nodeName%3Dn1") == ["a"]
    assert await names("fieldSelector=status.phase!%3DFailed,spec.nodeName%3D") == ["b"]
    assert await names("labelSelector=app+in+(y,z)") == ["b"]
    assert await names("labelSelector=!app") == []
    assert (await client("GET", "/api/v1/pods?fieldSelector=spec.color%3Dred"))[0] == 400


async def test_a_watch_resumes_and_sees_objects_enter_and_leave_its_selector(client: Client) -> None:
    version = client.server.store.version
    client.server.create(pod_json("a"))
    client.server.patch("pods", "a", {"metadata": {"labels": {"app": "x"}}}, namespace="default")
    client.server.patch("pods", "a", {"metadata": {"labels": {"app": "y"}}}, namespace="default")
    query = f"watch=1&timeoutSeconds=1&resourceVersion={version}"
    everything, chosen = await asyncio.gather(
        client.watched(f"/api/v1/pods?{query}"),
        client.watched(f"/api/v1/pods?{query}&labelSelector=app%3Dx&allowWatchBookmarks=true"),
    )
    assert [kind for kind, _ in everything] == ["ADDED", "MODIFIED", "MODIFIED"]
    assert [kind for kind, _ in chosen] == ["ADDED", "DELETED", "BOOKMARK"]
    assert chosen[-1][1]["metadata"]["resourceVersion"] == str(client.server.store.version)


async def test_a_watch_in_place_of_a_list_says_where_what_is_there_ends(client: Client) -> None:
    """Clients of Kubernetes 1.35 and later wait for it, kubectl delete without end."""
    client.server.create(pod_json("a"))
    query = "watch=1&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    first, second, *_ = await client.watched(f"/api/v1/pods?{query}")
    assert (first[0], first[1]["metadata"]["name"], second[0]) == ("ADDED", "a", "BOOKMARK")
    assert second[1]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_a_watch_from_before_a_compaction_ends_with_410(client: Client) -> None:
    client.server.create(pod_json("a"))
    client.server.compact()
    [(kind, status)] = await client.watched("/api/v1/pods?watch=1&resourceVersion=1")
    assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")


async def test_a_stale_resource_version_is_a_conflict(client: Client) -> None:
    made = client.server.create(as_json(node("n", ready=True)))
    body = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"], "annotations": {"lock": "1"}}}
    assert (await client("PATCH", "/api/v1/nodes/n", body, **MERGE))[0] == 200
    status, answer = await client("PATCH", "/api/v1/nodes/n", body, **MERGE)
    assert (status, answer["reason"]) == (409, "Conflict")


async def test_a_write_that_changes_nothing_makes_no_version(client: Client) -> None:
    client.server.create(as_json(node("n", ready=True)))
    version = client.server.store.version
    assert (await client("PATCH", "/api/v1/nodes/n", {"metadata": {"labels": {}}}, **MERGE))[0] == 200
    assert client.server.store.version == version


async def test_status_and_spec_are_written_apart(client: Client) -> None:
    client.server.create(as_json(node("n", ready=True)))
    both = {"spec": {"unschedulable": True}, "status": {"capacity": {"cpu": "8"}}}
    _, after = await client("PATCH", "/api/v1/nodes/n", both, **MERGE)
    assert (after["spec"], after["status"].get("capacity")) == ({"unschedulable": True}, None)
    _, after = await client("PATCH", "/api/v1/nodes/n/status", both | {"spec": {"taints": []}}, **MERGE)
    assert (after["spec"], after["status"]["capacity"]) == ({"unschedulable": True}, {"cpu": "8"})


async def test_a_binding_sets_node_and_annotations_in_one_write(client: Client) -> None:
    made = client.server.create(pod_json("a"))
    version = client.server.store.version
    metadata = {"name": "a", "uid": made["metadata"]["uid"], "annotations": {"k": "v"}, "labels": {"l": "w"}}
    binding = {"metadata": metadata, "target": {"kind": "Node", "name": "n1"}}
    assert (await client("POST", f"{PODS}/a/binding", binding))[0] == 201
    after = client.server.store.get("pods", "default", "a")
    assert after is not None
    assert after["spec"]["nodeName"] == "n1"
    assert (after["metadata"]["annotations"], after["metadata"]["labels"]) == ({"k": "v"}, {"l": "w"})
    assert client.server.store.version == version + 1
    status, answer = await client("POST", f"{PODS}/a/binding", binding)
    assert status == 409
    assert 'already assigned to node "n1"' in answer["message"]


async def test_a_binding_of_another_uid_is_a_conflict(client: Client) -> None:
    client.server.create(pod_json("a"))
    binding = {"metadata": {"name": "a", "uid": "other"}, "target": {"kind": "Node", "name": "n1"}}
    assert (await client("POST", f"{PODS}/a/binding", binding))[0] == 409


async def test_a_pods_node_cannot_be_patched(client: Client) -> None:
    client.server.create(pod_json("a"))
    assert (await client("PATCH", f"{PODS}/a", {"spec": {"nodeName": "n"}}, **MERGE))[0] == 422


async def test_a_bound_pod_gets_its_grace_and_then_goes() -> None:
    async with EmbeddedApiServer(longest_grace_seconds=30) as server, aiohttp.ClientSession() as session:
        client = Client(server, session)
        server.create(pod_json("a", node_name="n1"))
        _, marked = await client("DELETE", f"{PODS}/a")
        assert marked["metadata"]["deletionGracePeriodSeconds"] == 30
        assert server.store.get("pods", "default", "a") is not None
        await client("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 0})
        assert server.store.get("pods", "default", "a") is None


async def test_faults_are_switched_on_and_off_while_it_runs(client: Client) -> None:
    client.server.inject(Fault(verbs=frozenset({"list"}), status=429, times=1))
    assert (await client("GET", "/api/v1/pods"))[0] == 429
    assert (await client("GET", "/api/v1/pods"))[0] == 200
    lost = client.server.inject(Fault(verbs=frozenset({"create"}), drop="after"))
    with pytest.raises(aiohttp.ClientError):
        await client("POST", PODS, pod_json("a"))
    assert client.server.store.get("pods", "default", "a") is not None
    client.server.faults.remove(lost)
    assert (await client("POST", PODS, pod_json("b")))[0] == 201


async def test_it_goes_away_and_comes_back_with_its_objects(client: Client) -> None:
    client.server.create(as_json(node("n", ready=True)))
    await client.server.go_offline()
    with pytest.raises(aiohttp.ClientConnectionError):
        await client("GET", "/api/v1/nodes/n")
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", int(client.server.url.rpartition(":")[2])))
    await client.server.go_online()
    assert (await client("GET", "/api/v1/nodes/n"))[0] == 200


async def test_the_log_names_requests_as_access_control_does(client: Client) -> None:
    await client("POST", PODS, pod_json("a"))
    await client("POST", f"{PODS}/a/binding", {"metadata": {"name": "a"}, "target": {"name": "n"}})
    await client.watched("/apis/coordination.k8s.io/v1/leases?watch=1&timeoutSeconds=1")
    seen = [(r.verb, r.group, r.resource, r.subresource, r.namespace, r.name) for r in client.server.requests]
    assert seen == [
        ("create", "", "pods", "", "default", ""),
        ("create", "", "pods", "binding", "default", "a"),
        ("watch", "coordination.k8s.io", "leases", "", "", ""),
    ]


@pytest.mark.parametrize("body", ["[]", "{", '{"metadata": 3}', '{"metadata": {"name": "UPPER"}}'])
async def test_bad_bodies_are_refused_with_a_status(client: Client, body: str) -> None:
    async with client.session.post(client.server.url + PODS, data=body, headers=JSON) as response:
        assert response.status in {400, 422}
        assert (await response.json())["kind"] == "Status"


async def test_what_a_deployment_owns_is_deleted_by_the_policy_of_the_query(client: Client) -> None:
    client.server.create(deployment(1))
    await client("DELETE", "/apis/apps/v1/namespaces/default/deployments?propagationPolicy=Orphan")
    (left,) = client.server.store.objects("deployments")
    assert left["metadata"]["finalizers"] == ["orphan"]
    await client("DELETE", "/apis/apps/v1/namespaces/default/deployments/web?propagationPolicy=Foreground")
    (left,) = client.server.store.objects("deployments")
    assert left["metadata"]["finalizers"] == ["foregroundDeletion"]
