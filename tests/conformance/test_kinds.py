"""Nodes, events, leases, secrets, webhook registrations and quotas, as our two halves write and read them."""

import base64
from typing import Any

import pytest

from tests.cluster.peers import Peer
from tests.conformance.objects import JSON_PATCH, LEASES, MERGE, STRATEGIC, WEBHOOKS, JsonObject, a_pod, names, refused


@pytest.fixture
async def node(peer: Peer, namespace: str) -> str:
    """The path of a node with two resources."""
    amounts = {"cpu": 8, "nvidia.com/gpu": "80"}
    ready: JsonObject = {"type": "Ready", "status": "True"}
    status: JsonObject = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    await peer.create("/api/v1/nodes", {"metadata": {"name": f"n-{namespace}"}, "status": status})
    return f"/api/v1/nodes/n-{namespace}"


async def patched(peer: Peer, path: str, document: object, media_type: str = MERGE) -> JsonObject:
    status, answer = await peer.send("PATCH", path, document, media_type)
    assert status == 200, answer
    return answer


async def test_a_nodes_devices_come_and_go_with_its_status(peer: Peer, node: str) -> None:
    _, found = await peer.send("GET", node)
    assert found["status"]["capacity"] == {"cpu": "8", "nvidia.com/gpu": "80"}
    [condition] = found["status"]["conditions"]
    assert condition == {"type": "Ready", "status": "True", "lastHeartbeatTime": None, "lastTransitionTime": None}
    change: JsonObject = {"status": {"allocatable": {"nvidia.com/gpu": None, "example.com/x": "3"}}}
    after = await patched(peer, f"{node}/status", change)
    assert after["status"]["allocatable"] == {"cpu": "8", "example.com/x": "3"}
    change = {"status": {"conditions": [{"type": "DiskPressure", "status": "False"}]}}
    after = await patched(peer, f"{node}/status", change, STRATEGIC)
    assert [one["type"] for one in after["status"]["conditions"]] == ["DiskPressure", "Ready"]


async def test_a_nodes_taints_are_one_list_in_every_kind_of_patch(peer: Peer, node: str) -> None:
    for media_type, key in ((MERGE, "a"), (STRATEGIC, "b"), (MERGE, "c")):
        taint = {"key": key, "effect": "NoSchedule"}
        assert (await patched(peer, node, {"spec": {"taints": [taint]}}, media_type))["spec"]["taints"] == [taint]
    code, reason, details = await refused(
        peer, "PATCH", node, {"spec": {"taints": [{"key": "a", "effect": "No"}]}}, MERGE
    )
    assert (code, reason, details["fields"]) == (
        422,
        "Invalid",
        [("metadata.taints[0].effect", "FieldValueNotSupported")],
    )


async def test_a_cordoned_node_is_found_by_its_field(peer: Peer, node: str) -> None:
    name = node.rpartition("/")[2]
    selector = f"fieldSelector=metadata.name%3D{name},spec.unschedulable%3D"
    assert names((await peer.send("GET", f"/api/v1/nodes?{selector}false"))[1]) == [name]
    await patched(peer, node, {"spec": {"unschedulable": True}}, STRATEGIC)
    assert names((await peer.send("GET", f"/api/v1/nodes?{selector}true"))[1]) == [name]
    status, answer = await peer.send("DELETE", node)
    assert (status, answer["status"], answer["details"]["kind"]) == (200, "Success", "nodes")


def an_event(namespace: str, about: JsonObject, **fields: Any) -> JsonObject:
    at = "2030-01-01T00:00:00Z"
    return {
        "metadata": {"name": "e", "namespace": namespace},
        "involvedObject": about,
        "reason": "Tested",
        "message": "it was",
        "type": "Warning",
        "source": {"component": "topogpu"},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
        **fields,
    }


async def test_an_event_is_counted_up_and_found_by_what_it_is_about(peer: Peer, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/events"
    pod = await peer.create(f"/api/v1/namespaces/{namespace}/pods", a_pod("p"))
    about = {"kind": "Pod", "name": "p", "namespace": namespace, "uid": pod["metadata"]["uid"]}
    event = await peer.create(path, an_event(namespace, about))
    assert (event["eventTime"], event["reportingComponent"]) == (None, "")
    counted = await patched(peer, f"{path}/e", {"count": 2, "lastTimestamp": "2030-01-01T00:01:00Z"})
    assert (counted["count"], counted["firstTimestamp"]) == (2, "2030-01-01T00:00:00Z")
    for selector in (f"involvedObject.uid={about['uid']}", "involvedObject.name=p", "reason=Tested", "source=topogpu"):
        query = selector.replace("=", "%3D")
        assert names((await peer.send("GET", f"{path}?fieldSelector={query},type%3DWarning"))[1]) == ["e"], selector


async def test_an_event_lies_where_its_object_lies_and_that_of_a_node_in_default(peer: Peer, namespace: str) -> None:
    fields = {"kind": "Event", "name": "e", "fields": [("involvedObject.namespace", "FieldValueInvalid")]}
    for where, about in (
        ("default", {"kind": "Pod", "name": "p", "namespace": namespace}),
        (namespace, {"kind": "Node", "name": "n"}),
    ):
        answer = await refused(peer, "POST", f"/api/v1/namespaces/{where}/events", an_event(where, about))
        assert answer == (422, "Invalid", fields)
    event = an_event("default", {"kind": "Node", "name": "n"}, metadata={"name": f"e-{namespace}"})
    await peer.create("/api/v1/namespaces/default/events", event)
    wrong = an_event(namespace, {"kind": "Pod", "name": "p", "namespace": namespace}, firstTimestamp="yesterday")
    assert (await refused(peer, "POST", f"/api/v1/namespaces/{namespace}/events", wrong))[:2] == (400, "BadRequest")


async def test_a_lease_is_renewed_only_by_who_knows_its_version(peer: Peer, namespace: str) -> None:
    path, about = LEASES.format(namespace=namespace), {"kind": "leases", "group": "coordination.k8s.io", "name": "l"}
    assert await refused(peer, "GET", f"{path}/l") == (404, "NotFound", about)
    spec = {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2030-01-01T00:00:00.000000Z"}
    lease = await peer.create(path, {"metadata": {"name": "l"}, "spec": spec})
    lease["spec"]["holderIdentity"] = "b"
    status, renewed = await peer.send("PUT", f"{path}/l", lease)
    assert (status, renewed["spec"]) == (200, spec | {"holderIdentity": "b"})
    assert await refused(peer, "PUT", f"{path}/l", lease) == (409, "Conflict", about)
    del lease["metadata"]["resourceVersion"]
    fields = {"fields": [("metadata.resourceVersion", "FieldValueInvalid")]}
    assert await refused(peer, "PUT", f"{path}/l", lease) == (422, "Invalid", about | fields)
    status, gone = await peer.send("DELETE", f"{path}/l")
    assert (status, gone["details"]) == (200, about | {"uid": lease["metadata"]["uid"]})


async def test_a_lease_with_impossible_times_is_refused(peer: Peer, namespace: str) -> None:
    path = LEASES.format(namespace=namespace)
    without_fraction = {"metadata": {"name": "l"}, "spec": {"renewTime": "2030-01-01T00:00:00Z"}}
    assert await refused(peer, "POST", path, without_fraction) == (400, "BadRequest", {})
    about = {"kind": "Lease", "group": "coordination.k8s.io", "name": "l"}
    fields = {"fields": [("spec.leaseDurationSeconds", "FieldValueInvalid")]}
    no_time = {"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 0}}
    assert await refused(peer, "POST", path, no_time) == (422, "Invalid", about | fields)


async def test_a_tls_secret_holds_both_halves_and_never_changes_its_type(peer: Peer, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/secrets"
    half = {"metadata": {"name": "s"}, "type": "kubernetes.io/tls", "data": {"tls.crt": "YQ=="}}
    about = {"kind": "Secret", "name": "s"}
    missing = {"fields": [("data[tls.key]", "FieldValueRequired")]}
    assert await refused(peer, "POST", path, half) == (422, "Invalid", about | missing)
    assert await refused(peer, "POST", path, half | {"data": {"tls.crt": "!"}}) == (400, "BadRequest", {})
    await peer.create(path, half | {"data": {"tls.crt": "YQ==", "tls.key": "Yg=="}})
    assert (await patched(peer, f"{path}/s", {"data": {"tls.crt": "Yw=="}}))["data"] == {
        "tls.crt": "Yw==",
        "tls.key": "Yg==",
    }
    changed = {"fields": [("type", "FieldValueInvalid")]}
    assert await refused(peer, "PATCH", f"{path}/s", {"type": "Opaque"}, MERGE) == (422, "Invalid", about | changed)


async def test_a_secret_in_plain_text_is_kept_encoded(peer: Peer, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/secrets"
    secret = await peer.create(path, {"metadata": {"name": "s"}, "stringData": {"a": "hello"}})
    assert (secret["type"], secret["data"], "stringData" in secret) == (
        "Opaque",
        {"a": base64.b64encode(b"hello").decode()},
        False,
    )


async def test_a_webhook_registration_gets_its_bundle_in_every_kind_of_patch(peer: Peer, namespace: str) -> None:
    path = f"{WEBHOOKS}/{namespace}"
    webhook = {
        "name": "a.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/mutate"},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nothings"]}],
    }
    made = await peer.create(WEBHOOKS, {"metadata": {"name": namespace}, "webhooks": [webhook]})
    defaults = {
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "reinvocationPolicy": "Never",
        "timeoutSeconds": 10,
        "namespaceSelector": {},
        "objectSelector": {},
        "rules": [webhook["rules"][0] | {"scope": "*"}],  # type: ignore[index]
    }
    assert made["webhooks"] == [webhook | defaults]

    async def bundle(document: object, media_type: str) -> tuple[str, str]:
        [only] = (await patched(peer, path, document, media_type))["webhooks"]
        return only["clientConfig"]["caBundle"], only["clientConfig"]["url"]

    by_name = {"webhooks": [{"name": "a.example.com", "clientConfig": {"caBundle": "YQ=="}}]}
    assert await bundle(by_name, STRATEGIC) == ("YQ==", "https://127.0.0.1:1/mutate")
    by_place = [{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": "Yg=="}]
    assert await bundle(by_place, JSON_PATCH) == ("Yg==", "https://127.0.0.1:1/mutate")
    whole = made["webhooks"][0] | {"clientConfig": webhook["clientConfig"] | {"caBundle": "Yw=="}}  # type: ignore[operator]
    assert await bundle({"webhooks": [whole]}, MERGE) == ("Yw==", "https://127.0.0.1:1/mutate")
    del made["metadata"]["resourceVersion"]
    assert (await refused(peer, "PUT", path, made))[:2] == (422, "Invalid")
    assert (await peer.send("DELETE", path))[0] == 200


async def test_a_quota_keeps_its_quantities_short_and_its_status_apart(peer: Peer, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    hard = {"limits.nvidia.com/gpumem": 5000, "requests.nvidia.com/gpu": "4"}
    quota = await peer.create(path, {"metadata": {"name": "q"}, "spec": {"hard": hard}})
    kept = {"limits.nvidia.com/gpumem": "5k", "requests.nvidia.com/gpu": "4"}
    assert (quota["spec"]["hard"], quota["status"]) == (kept, {})
    change = {"status": {"hard": kept, "used": {"requests.nvidia.com/gpu": "1"}}, "spec": {"hard": {}}}
    after = await patched(peer, f"{path}/q/status", change)
    assert (after["spec"]["hard"], after["status"]["used"]) == (kept, {"requests.nvidia.com/gpu": "1"})


async def test_a_new_namespace_carries_its_name_as_a_label(peer: Peer, namespace: str) -> None:
    _, found = await peer.send("GET", f"/api/v1/namespaces/{namespace}")
    assert found["metadata"]["labels"] == {"kubernetes.io/metadata.name": namespace}
    assert (found["spec"], found["status"]) == ({"finalizers": ["kubernetes"]}, {"phase": "Active"})
    fields = {"kind": "Namespace", "name": "a.b", "fields": [("metadata.name", "FieldValueInvalid")]}
    assert await refused(peer, "POST", "/api/v1/namespaces", {"metadata": {"name": "a.b"}}) == (422, "Invalid", fields)
