"""Objects for the facts about an API server, and the parts of a refusal that its clients may rely on."""

from typing import Any

from tests.cluster.peers import Peer

JsonObject = dict[str, Any]
MERGE, STRATEGIC, JSON_PATCH = (
    f"application/{kind}+json" for kind in ("merge-patch", "strategic-merge-patch", "json-patch")
)
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
ANOTHER_UID = "11111111-2222-4333-8444-555555555555"


def a_pod(name: str, *, limits: JsonObject | None = None, node: str = "", **metadata: Any) -> JsonObject:
    """That no scheduler looks at."""
    container = {"name": "main", "image": "example.com/work:1", "resources": {"limits": limits} if limits else {}}
    spec: JsonObject = {"schedulerName": "nobody", "containers": [container]}
    return {"metadata": {"name": name, **metadata}, "spec": spec | ({"nodeName": node} if node else {})}


def a_binding(name: str, node: str = "some-node", **metadata: Any) -> JsonObject:
    return {"metadata": {"name": name, **metadata}, "target": {"kind": "Node", "name": node}}


async def refused(
    peer: Peer, method: str, path: str, document: object = None, media_type: str = "application/json"
) -> tuple[int, str, JsonObject]:
    """Code, reason, and the details: whose object, and which fields for what reason."""
    code, answer = await peer.send(method, path, document, media_type)
    assert (answer["kind"], answer["apiVersion"], answer["status"], answer["code"]) == ("Status", "v1", "Failure", code)
    details: JsonObject = dict(answer.get("details") or {})
    causes = details.pop("causes", [])
    if causes:
        # Older releases name a field twice.
        details["fields"] = list(dict.fromkeys((cause.get("field", ""), cause["reason"]) for cause in causes))
    return code, answer.get("reason", ""), details


def names(answer: JsonObject) -> list[str]:
    return [item["metadata"]["name"] for item in answer["items"]]
