"""What kubectl asks before and beside its own work: discovery, and rows to print."""

from typing import Any

import pytest

from tests.cluster.peers import Peer
from tests.conformance.objects import MERGE, WEBHOOKS, JsonObject, a_pod

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


async def table(peer: Peer, path: str) -> JsonObject:
    async with peer.http.get(peer.url + path, headers={"Accept": TABLE}) as response:
        answer: JsonObject = await response.json()
    assert (answer["kind"], answer["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert int(answer["metadata"]["resourceVersion"]) > 0
    return answer


def printed(answer: JsonObject) -> list[dict[str, Any]]:
    """Rows by heading, of the columns that are always shown; ages differ by the clock."""
    columns = [(place, one["name"]) for place, one in enumerate(answer["columnDefinitions"]) if one["priority"] == 0]
    rows = [{name: row["cells"][place] for place, name in columns} for row in answer["rows"]]
    return [{name: cell for name, cell in row.items() if name not in {"Age", "Last Seen"}} for row in rows]


def headings(answer: JsonObject) -> list[str]:
    return [one["name"] for one in answer["columnDefinitions"] if one["priority"] == 0]


async def test_pods_are_printed_with_what_keeps_them(peer: Peer, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    await peer.create(path, a_pod("p", node="some-node"))
    state = {"waiting": {"reason": "CreateContainerConfigError"}}
    one = {"name": "main", "ready": False, "restartCount": 3, "image": "i", "imageID": "", "state": state}
    await peer.send("PATCH", f"{path}/p/status", {"status": {"containerStatuses": [one]}}, MERGE)
    await peer.create(path, a_pod("q"))
    found = await table(peer, path)
    assert headings(found) == ["Name", "Ready", "Status", "Restarts", "Age"]
    assert printed(found) == [
        {"Name": "p", "Ready": "0/1", "Status": "CreateContainerConfigError", "Restarts": "3"},
        {"Name": "q", "Ready": "0/1", "Status": "Pending", "Restarts": "0"},
    ]
    assert [row["object"]["kind"] for row in found["rows"]] == ["PartialObjectMetadata"] * 2
    wide = {one["name"]: one["priority"] for one in found["columnDefinitions"]}
    assert (wide["Node"], wide["IP"]) == (1, 1)


async def test_nodes_are_printed_with_their_condition(peer: Peer, namespace: str) -> None:
    name = f"n-{namespace}"
    labels = {"node-role.kubernetes.io/worker": ""}
    status = {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.36.0"}}
    document = {"metadata": {"name": name, "labels": labels}, "spec": {"unschedulable": True}, "status": status}
    await peer.create("/api/v1/nodes", document)
    found = await table(peer, f"/api/v1/nodes/{name}")
    assert headings(found) == ["Name", "Status", "Roles", "Age", "Version"]
    row = {"Name": name, "Status": "Ready,SchedulingDisabled", "Roles": "worker", "Version": "v1.36.0"}
    assert printed(found) == [row]


async def test_events_are_printed_without_their_names(peer: Peer, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/events"
    about = {"kind": "Pod", "name": "p", "namespace": namespace}
    event = {"metadata": {"name": "e"}, "involvedObject": about, "reason": "R", "message": "m", "type": "Normal"}
    await peer.create(path, event)
    found = await table(peer, path)
    assert headings(found) == ["Last Seen", "Type", "Reason", "Object", "Message"]
    assert printed(found) == [{"Type": "Normal", "Reason": "R", "Object": "pod/p", "Message": "m"}]


@pytest.mark.parametrize(
    ("plural", "document", "row"),
    [
        ("secrets", {"data": {"a": "YQ=="}}, {"Name": "o", "Type": "Opaque", "Data": 1}),
        ("configmaps", {"data": {"a": "b"}}, {"Name": "o", "Data": 1}),
    ],
)
async def test_what_holds_data_is_printed_with_how_much(
    peer: Peer, namespace: str, plural: str, document: JsonObject, row: JsonObject
) -> None:
    path = f"/api/v1/namespaces/{namespace}/{plural}"
    await peer.create(path, {"metadata": {"name": "o"}, **document})
    assert printed(await table(peer, path)) == [row]


async def test_an_empty_table_has_its_headings(peer: Peer, namespace: str) -> None:
    found = await table(peer, f"/api/v1/namespaces/{namespace}/pods")
    assert (headings(found)[0], found["rows"]) == ("Name", [])


async def test_the_groups_and_versions_are_told(peer: Peer) -> None:
    _, core = await peer.send("GET", "/api")
    assert (core["kind"], core["versions"]) == ("APIVersions", ["v1"])
    _, groups = await peer.send("GET", "/apis")
    assert groups["kind"] == "APIGroupList"
    found = {group["name"]: group["preferredVersion"]["groupVersion"] for group in groups["groups"]}
    for group in ("admissionregistration.k8s.io", "coordination.k8s.io", "scheduling.k8s.io"):
        assert found[group] == f"{group}/v1"
    _, leases = await peer.send("GET", "/apis/coordination.k8s.io")
    entry = {"groupVersion": "coordination.k8s.io/v1", "version": "v1"}
    assert (leases["kind"], leases["name"], leases["preferredVersion"]) == ("APIGroup", "coordination.k8s.io", entry)
    assert entry in leases["versions"]


@pytest.mark.parametrize(
    ("path", "name", "told"),
    [
        ("/api/v1", "pods", ("Pod", ["po"], True)),
        ("/api/v1", "nodes", ("Node", ["no"], False)),
        ("/api/v1", "namespaces", ("Namespace", ["ns"], False)),
        ("/api/v1", "events", ("Event", ["ev"], True)),
        ("/api/v1", "resourcequotas", ("ResourceQuota", ["quota"], True)),
        ("/api/v1", "configmaps", ("ConfigMap", ["cm"], True)),
        ("/api/v1", "secrets", ("Secret", None, True)),
        ("/api/v1", "serviceaccounts", ("ServiceAccount", ["sa"], True)),
        ("/apis/coordination.k8s.io/v1", "leases", ("Lease", None, True)),
        ("/apis/scheduling.k8s.io/v1", "priorityclasses", ("PriorityClass", ["pc"], False)),
        (WEBHOOKS.rpartition("/")[0], "mutatingwebhookconfigurations", ("MutatingWebhookConfiguration", None, False)),
    ],
)
async def test_a_kind_is_found_by_its_names(
    peer: Peer, path: str, name: str, told: tuple[str, list[str] | None, bool]
) -> None:
    kind, short_names, namespaced = told
    _, listed = await peer.send("GET", path)
    assert (listed["kind"], listed["groupVersion"]) == (
        "APIResourceList",
        path.removeprefix("/api/").removeprefix("/apis/"),
    )
    [found] = [one for one in listed["resources"] if one["name"] == name]
    assert (found["kind"], found["singularName"]) == (kind, kind.lower())
    assert (found.get("shortNames"), found["namespaced"]) == (short_names, namespaced)
    assert {"create", "delete", "get", "list", "patch", "update", "watch"} <= set(found["verbs"])


async def test_the_subresources_of_pods_are_told(peer: Peer) -> None:
    _, listed = await peer.send("GET", "/api/v1")
    found = {one["name"]: one["kind"] for one in listed["resources"]}
    expected = {"pods/binding": "Binding", "pods/status": "Pod", "nodes/status": "Node", "pods/eviction": "Eviction"}
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
async def test_a_healthy_server_says_ok(peer: Peer, path: str) -> None:
    async with peer.http.get(peer.url + path) as response:
        assert (response.status, await response.text()) == (200, "ok")
