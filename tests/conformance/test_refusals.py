"""How an API server says no: code, reason, and the object and fields it is about."""

from typing import Any

import pytest

from tests.cluster.peers import Peer
from tests.conformance.objects import (
    ANOTHER_UID,
    JSON_PATCH,
    MERGE,
    JsonObject,
    a_binding,
    a_pod,
    names,
    refused,
)

P = {"kind": "pods", "name": "p"}


@pytest.fixture
async def pods(peer: Peer, namespace: str) -> str:
    """Where the pod `p` lies."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    await peer.create(path, a_pod("p", labels={"a": "b"}))
    return path


def changed(pod: JsonObject, **spec: Any) -> JsonObject:
    return pod | {"spec": pod["spec"] | spec}


def asking(limits: JsonObject, requests: JsonObject) -> JsonObject:
    pod = a_pod("q", limits=limits)
    pod["spec"]["containers"][0]["resources"]["requests"] = requests
    return pod


LIMITS, REQUESTS = "spec.containers[0].resources.limits", "spec.containers[0].resources.requests"
CREATIONS: list[tuple[JsonObject, tuple[int, str, JsonObject]]] = [
    (a_pod("p"), (409, "AlreadyExists", P)),
    (
        {"spec": a_pod("")["spec"]},
        (422, "Invalid", {"kind": "Pod", "fields": [("metadata.name", "FieldValueRequired")]}),
    ),
    (a_pod("P_"), (422, "Invalid", {"kind": "Pod", "name": "P_", "fields": [("metadata.name", "FieldValueInvalid")]})),
    (a_pod("q", namespace="default"), (400, "BadRequest", {})),
    (a_pod("q") | {"kind": "Node", "apiVersion": "v1"}, (400, "BadRequest", {})),
    (a_pod("q") | {"kind": "Pod", "apiVersion": "v2"}, (400, "BadRequest", {})),
    (a_pod("q", resourceVersion="5"), (500, "", {})),
    (a_pod("q", labels={"a": 1}), (400, "BadRequest", {})),
    (changed(a_pod("q"), containers="none"), (400, "BadRequest", {})),
    (a_pod("q", limits={"nvidia.com/gpu": "many"}), (400, "BadRequest", {})),
    (changed(a_pod("q"), priorityClassName="nope"), (403, "Forbidden", {"kind": "pods", "name": "q"})),
    (changed(a_pod("q"), priority=7), (403, "Forbidden", {"kind": "pods", "name": "q"})),
    *(
        (document, (422, "Invalid", {"kind": "Pod", "name": "q", "fields": fields}))
        for document, fields in [
            (a_pod("q", labels={"a": "!"}), [("metadata.labels", "FieldValueInvalid")]),
            (a_pod("q", labels={"a b": "c"}), [("metadata.labels", "FieldValueInvalid")]),
            (a_pod("q", annotations={"a b": "!"}), [("metadata.annotations", "FieldValueInvalid")]),
            (a_pod("q", annotations={"a/b/c": "!"}), [("metadata.annotations", "FieldValueInvalid")]),
            (a_pod("q", finalizers=["plain"]), [("metadata.finalizers[0]", "FieldValueInvalid")]),
            (changed(a_pod("q"), containers=[]), [("spec.containers", "FieldValueRequired")]),
            (changed(a_pod("q"), containers=[{"image": "i"}]), [("spec.containers[0].name", "FieldValueRequired")]),
            (changed(a_pod("q"), containers=[{"name": "c"}]), [("spec.containers[0].image", "FieldValueRequired")]),
            (
                changed(a_pod("q"), containers=[{"name": "c", "image": "i"}] * 2),
                [("spec.containers[1].name", "FieldValueDuplicate")],
            ),
            (
                a_pod("q", limits={"nvidia.com/gpu": "1500m"}),
                [(f"{where}[nvidia.com/gpu]", "FieldValueInvalid") for where in (LIMITS, REQUESTS)],
            ),
            (asking({"nvidia.com/gpu": 2}, {"nvidia.com/gpu": 1}), [(REQUESTS, "FieldValueInvalid")]),
            (asking({}, {"nvidia.com/gpu": 1}), [(LIMITS, "FieldValueRequired")]),
        ]
    ),
]


@pytest.mark.parametrize(("document", "expected"), CREATIONS)
async def test_a_pod_that_is_wrong_is_not_created(
    peer: Peer, pods: str, document: JsonObject, expected: tuple[int, str, JsonObject]
) -> None:
    assert await refused(peer, "POST", pods, document) == expected
    _, listed = await peer.send("GET", pods)
    assert names(listed) == ["p"]


PATCHES: list[tuple[object, str, tuple[int, str, JsonObject]]] = [
    ({}, "application/json", (415, "UnsupportedMediaType", {})),
    ([], MERGE, (400, "BadRequest", {})),
    ({}, JSON_PATCH, (400, "BadRequest", {})),
    ([{"op": "test", "path": "/metadata/labels/a", "value": "z"}], JSON_PATCH, (422, "Invalid", {})),
    ([{"op": "replace", "path": "/metadata/nope/a", "value": "z"}], JSON_PATCH, (422, "Invalid", {})),
    ([{"op": "remove", "path": "/metadata/annotations"}], JSON_PATCH, (422, "Invalid", {})),
    ({"metadata": {"name": "q"}}, MERGE, (400, "BadRequest", {})),
    ({"metadata": {"namespace": "default"}}, MERGE, (400, "BadRequest", {})),
    ({"metadata": {"resourceVersion": "1"}}, MERGE, (409, "Conflict", P)),
    ({"metadata": {"annotations": {"a": 1}}}, MERGE, (422, "Invalid", {"fields": [("patch", "FieldValueInvalid")]})),
    ({"kind": "Node"}, MERGE, (422, "Invalid", {"fields": [("patch", "FieldValueInvalid")]})),
    *(
        (document, MERGE, (422, "Invalid", {"kind": "Pod", "name": "p", "fields": [(field, reason)]}))
        for document, field, reason in [
            ({"metadata": {"uid": ANOTHER_UID}}, "metadata.uid", "FieldValueInvalid"),
            ({"metadata": {"labels": {"a": "!"}}}, "metadata.labels", "FieldValueInvalid"),
            ({"spec": {"nodeName": "n"}}, "spec", "FieldValueForbidden"),
        ]
    ),
]


@pytest.mark.parametrize(("document", "media_type", "expected"), PATCHES)
async def test_a_patch_that_is_wrong_changes_nothing(
    peer: Peer, pods: str, document: object, media_type: str, expected: tuple[int, str, JsonObject]
) -> None:
    _, before = await peer.send("GET", f"{pods}/p")
    assert await refused(peer, "PATCH", f"{pods}/p", document, media_type) == expected
    assert await peer.send("GET", f"{pods}/p") == (200, before)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"resourceVersion": "1"}, (409, "Conflict", P)),
        ({"uid": ANOTHER_UID}, (409, "Conflict", P)),
        ({"name": "q"}, (400, "BadRequest", {})),
        ({"name": ""}, (400, "BadRequest", {})),
        ({"namespace": "default"}, (400, "BadRequest", {})),
    ],
)
async def test_a_replacement_of_another_object_is_refused(
    peer: Peer, pods: str, metadata: JsonObject, expected: tuple[int, str, JsonObject]
) -> None:
    _, found = await peer.send("GET", f"{pods}/p")
    found["metadata"] |= metadata
    assert await refused(peer, "PUT", f"{pods}/p", found) == expected


@pytest.mark.parametrize("preconditions", [{"uid": ANOTHER_UID}, {"resourceVersion": "1"}])
async def test_a_deletion_of_another_object_is_refused(peer: Peer, pods: str, preconditions: JsonObject) -> None:
    answer = await refused(peer, "DELETE", f"{pods}/p", {"preconditions": preconditions})
    assert answer == (409, "Conflict", {"kind": "Pod", "name": "p"})


@pytest.mark.parametrize("method", ["GET", "DELETE", "PATCH", "PUT"])
async def test_what_is_not_there_is_not_found(peer: Peer, pods: str, method: str) -> None:
    document = {"PATCH": {"spec": {}}, "PUT": a_pod("nobody")}.get(method)
    media_type = MERGE if method == "PATCH" else "application/json"
    answer = await refused(peer, method, f"{pods}/nobody", document, media_type)
    assert answer == (404, "NotFound", {"kind": "pods", "name": "nobody"})


async def test_nothing_is_created_in_a_namespace_that_is_not_there(peer: Peer) -> None:
    answer = await refused(peer, "POST", "/api/v1/namespaces/nowhere/pods", a_pod("p"))
    assert answer == (404, "NotFound", {"kind": "namespaces", "name": "nowhere"})
    _, listed = await peer.send("GET", "/api/v1/namespaces/nowhere/pods")
    assert listed["items"] == []


NOT_FOUND: tuple[int, str, JsonObject] = (404, "NotFound", {})
NOT_ALLOWED: tuple[int, str, JsonObject] = (405, "MethodNotAllowed", {})


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("GET /api/v1/nothings", NOT_FOUND),
        ("GET /api/v1/namespaces/default/nodes", NOT_FOUND),
        ("GET {pods}/p/nothing", NOT_FOUND),
        ("GET {pods}/p/binding", NOT_ALLOWED),
        ("PUT {pods}", NOT_ALLOWED),
        ("PATCH {pods}", NOT_ALLOWED),
        ("POST {pods}/p", NOT_ALLOWED),
        ("POST {pods}/p/status", NOT_ALLOWED),
        ("POST /api/v1/pods", NOT_ALLOWED),
        ("POST /api", NOT_ALLOWED),
    ],
)
async def test_what_is_not_served_is_told_apart_from_what_may_not_be_done(
    peer: Peer, pods: str, asked: str, expected: tuple[int, str, JsonObject]
) -> None:
    method, path = asked.format(pods=pods).split()
    document = None if method == "GET" else a_pod("p")
    media_type = MERGE if method == "PATCH" else "application/json"
    assert await refused(peer, method, path, document, media_type) == expected


@pytest.mark.parametrize("path", ["/nothing", "/apis/nothing.example.com/v1/things"])
async def test_outside_the_api_not_found_is_plain_text(peer: Peer, path: str) -> None:
    async with peer.http.get(peer.url + path) as response:
        assert (response.status, await response.text()) == (404, "404 page not found\n")


@pytest.mark.parametrize("body", ["", "{", "[]", '"text"'])
async def test_a_body_that_is_no_object_is_a_bad_request(peer: Peer, pods: str, body: str) -> None:
    headers = {"Content-Type": "application/json"}
    async with peer.http.post(peer.url + pods, data=body, headers=headers) as response:
        answer = await response.json()
        assert (response.status, answer["reason"]) == (400, "BadRequest")


async def test_a_body_of_another_kind_than_json_is_refused(peer: Peer, pods: str) -> None:
    assert await refused(peer, "POST", pods, a_pod("q"), "application/xml") == (415, "UnsupportedMediaType", {})


async def test_a_dry_run_changes_nothing_and_only_all_is_a_dry_run(peer: Peer, pods: str) -> None:
    status, _ = await peer.send("POST", f"{pods}?dryRun=All", a_pod("q"))
    assert status == 201
    fields = {"kind": "CreateOptions", "group": "meta.k8s.io", "fields": [("dryRun", "FieldValueNotSupported")]}
    assert await refused(peer, "POST", f"{pods}?dryRun=Some", a_pod("q")) == (422, "Invalid", fields)
    assert (await refused(peer, "GET", f"{pods}/q"))[0] == 404


EVERYWHERE, HERE = "at the cluster scope", 'in the namespace "{namespace}"'
PODS = "/api/v1/namespaces/{namespace}/pods"


@pytest.mark.parametrize(
    ("asked", "refused_to", "where"),
    [
        ("GET /api/v1/pods", "list pods: pods", EVERYWHERE),
        (f"GET {PODS}", "list pods: pods", HERE),
        (f"GET {PODS}?watch=true", "watch pods: pods", HERE),
        (f"GET {PODS}/p", "get pods: pods p", HERE),
        (f"PATCH {PODS}/p/status", "patch pods/status: pods p", HERE),
        (f"POST {PODS}/p/binding", "create pods/binding: pods p", HERE),
        ("GET /api/v1/nodes/n", "get nodes: nodes n", EVERYWHERE),
        ("GET /apis/coordination.k8s.io/v1/leases", "list leases: leases.coordination.k8s.io", EVERYWHERE),
    ],
)
async def test_who_may_not_do_something_is_told_what_and_where(
    peer: Peer, namespace: str, asked: str, refused_to: str, where: str
) -> None:
    method, path = asked.format(namespace=namespace).split()
    what, subject = refused_to.split(": ")
    verb, resource = what.split()
    peer.deny(verb, resource.partition("/")[0])
    media_type = MERGE if method == "PATCH" else "application/json"
    headers = {"Authorization": "Bearer stranger", "Content-Type": media_type}
    body = None if method == "GET" else b"{}"
    async with peer.http.request(method, peer.url + path, data=body, headers=headers) as response:
        answer = await response.json()
    plural, _, name = subject.partition(" ")
    kind, _, group = plural.partition(".")
    named = f'{plural} "{name}"' if name else plural
    who = f'User "stranger" cannot {verb} resource "{resource}" in API group "{group}"'
    assert (response.status, answer["reason"]) == (403, "Forbidden")
    assert answer["message"] == f"{named} is forbidden: {who} {where.format(namespace=namespace)}"
    about = {"kind": kind, "name": name, "group": group}
    assert answer["details"] == {key: value for key, value in about.items() if value}


@pytest.mark.parametrize("subresource", ["", "status"])
async def test_who_asks_beforehand_is_told_that_he_may_not(peer: Peer, subresource: str) -> None:
    peer.deny("patch", "nodes")
    attributes = {"verb": "patch", "resource": "nodes", "subresource": subresource}
    headers = {"Authorization": "Bearer stranger"}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    question = {"spec": {"resourceAttributes": attributes}}
    async with peer.http.post(peer.url + path, json=question, headers=headers) as response:
        answer = await response.json()
    assert (response.status, answer["kind"], answer["status"]["allowed"]) == (201, "SelfSubjectAccessReview", False)


async def test_a_binding_that_cannot_be_is_refused(peer: Peer, pods: str) -> None:
    await peer.create(
        pods, a_pod("gated") | {"spec": a_pod("")["spec"] | {"schedulingGates": [{"name": "example.com/g"}]}}
    )
    await peer.create(pods, a_pod("leaving", finalizers=["example.com/stay"]))
    await peer.send("DELETE", f"{pods}/leaving")
    cases: list[tuple[str, JsonObject, tuple[int, str, JsonObject]]] = [
        ("p", a_binding("q"), (400, "BadRequest", {})),
        ("p", {"metadata": {"name": "p"}}, (500, "", {})),
        ("p", a_binding("p", ""), (500, "", {})),
        ("p", {"metadata": {"name": "p"}, "target": {"kind": "Pod", "name": "n"}}, (500, "", {})),
        ("p", a_binding("p", uid=ANOTHER_UID), (409, "Conflict", P)),
        ("p", a_binding("p", resourceVersion="1"), (409, "Conflict", P)),
        ("nobody", a_binding("nobody"), (404, "NotFound", {"kind": "pods", "name": "nobody"})),
        ("gated", a_binding("gated"), (409, "Conflict", {"kind": "pods/binding", "name": "gated"})),
        ("leaving", a_binding("leaving"), (409, "Conflict", {"kind": "pods/binding", "name": "leaving"})),
    ]
    for name, binding, expected in cases:
        assert await refused(peer, "POST", f"{pods}/{name}/binding", binding) == expected, binding
    assert "nodeName" not in (await peer.send("GET", f"{pods}/p"))[1]["spec"]


@pytest.mark.parametrize("node", ["some-node", "another-node"])
async def test_a_bound_pod_is_not_bound_again_not_even_to_its_node(peer: Peer, pods: str, node: str) -> None:
    status, answer = await peer.send("POST", f"{pods}/p/binding", a_binding("p"))
    assert (status, answer["status"], answer.get("details")) == (201, "Success", None)
    again = await refused(peer, "POST", f"{pods}/p/binding", a_binding("p", node))
    assert again == (409, "Conflict", {"kind": "pods/binding", "name": "p"})
    _, answer = await peer.send("POST", f"{pods}/p/binding", a_binding("p", node))
    assert answer["message"].endswith('pod p is already assigned to node "some-node"')
