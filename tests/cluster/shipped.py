"""What is shipped, put on a real API server, and the halves' own identities there."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.control_plane import ControlPlane
from tests.cluster.peers import Peer

JsonObject = dict[str, Any]
BASE = Path(__file__).parents[2] / "daemonset" / "base"
NAMESPACE = "topogpu-system"
DAEMON, SCHEDULER = "topogpu-device-plugin", "topogpu-scheduler"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
RBAC = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


def documents(*kinds: str) -> list[JsonObject]:
    """Those of these kinds among the rendered manifests."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(BASE.glob("*.yaml"))]
    found = [document for text in texts for document in yaml.load_all(text, yaml.CSafeLoader) if document]
    return [document for kind in kinds for document in found if document["kind"] == kind]


def rules(account: str) -> list[JsonObject]:
    """What our own roles grant to a service account: rules, each with its role and its namespace (`*`: all)."""
    roles = {(role["kind"], role["metadata"]["name"]): role["rules"] for role in documents("ClusterRole", "Role")}
    granted = []
    for binding in documents("ClusterRoleBinding", "RoleBinding"):
        name, metadata = binding["roleRef"]["name"], binding["metadata"]
        where = {"role": name, "namespace": metadata.get("namespace", "*")}
        if account in (subject["name"] for subject in binding["subjects"]):
            granted += [{**rule, **where} for rule in roles.get((binding["roleRef"]["kind"], name), ())]
    return granted


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who talks to the API server: by `token`, or as whom the administrator pretends to be."""

    peer: Peer
    token: str = ""
    user: str = ""
    groups: tuple[str, ...] = ()

    async def send(
        self, method: str, path: str, document: object = None, media_type: str = "application/json"
    ) -> tuple[int, JsonObject]:
        headers = [("Content-Type", media_type), ("Accept", "application/json")]
        if self.token:
            headers.append(("Authorization", f"Bearer {self.token}"))
        if self.user:
            headers += [("Impersonate-User", self.user), *(("Impersonate-Group", group) for group in self.groups)]
        body = None if document is None else json.dumps(document)
        async with self.peer.http.request(method, self.peer.url + path, data=body, headers=headers) as response:
            return response.status, json.loads(await response.read())

    async def annotate(self, path: str, annotations: Mapping[str, str | None]) -> tuple[int, str]:
        """Status and words of the answer to a patch; None removes."""
        return told(await self.send("PATCH", path, {"metadata": {"annotations": annotations}}, MERGE_PATCH))


def told(answer: tuple[int, JsonObject]) -> tuple[int, str]:
    return answer[0], str(answer[1].get("message", ""))


async def apply(peer: Peer, shipped: Sequence[JsonObject]) -> None:
    """Server-side apply by the administrator, below the namespace and the service accounts as shipped."""
    for document in (*documents("Namespace", "ServiceAccount"), *shipped):
        status, answer = await peer.send(
            "PATCH", f"{object_path(document)}?fieldManager=test&force=true", document, "application/apply-patch+yaml"
        )
        assert status in (200, 201), answer


async def remove(peer: Peer, shipped: Sequence[JsonObject]) -> None:
    for document in shipped:
        await peer.send("DELETE", object_path(document))


def object_path(document: JsonObject) -> str:
    metadata = document["metadata"]
    version = document["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    where = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
    name = document["kind"].lower()
    plural = name[:-1] + "ies" if name.endswith("policy") else name + "s"
    return f"{root}{where}/{plural}/{metadata['name']}"


async def identity(peer: Peer, account: str, node: str) -> Caller:
    """A service account's projected token, as kubelet gets it for a pod on the node."""
    accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    await _ensure(peer, "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    await _ensure(peer, accounts, {"metadata": {"name": account}})
    await _ensure(peer, "/api/v1/nodes", {"metadata": {"name": node}})
    name = f"{account}-{node}"
    container = {"name": "main", "image": "example.com/topogpu:1"}
    spec = {"serviceAccountName": account, "nodeName": node, "containers": [container]}
    await _ensure(peer, f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": {"name": name}, "spec": spec})
    _, pod = await peer.send("GET", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")
    bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": pod["metadata"]["uid"]}
    request = {"spec": {"boundObjectRef": bound, "expirationSeconds": 3600}}
    answer = await peer.create(f"{accounts}/{account}/token", request)
    return Caller(peer, token=answer["status"]["token"])


def kubeconfig(plane: ControlPlane, caller: Caller, path: Path) -> str:
    """For a program that logs in as the caller."""
    document = yaml.safe_load(Path(plane.kubeconfig()).read_text(encoding="utf-8"))
    document["users"][0]["user"] = {"token": caller.token}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return str(path)


async def _ensure(peer: Peer, collection: str, document: JsonObject) -> None:
    status, answer = await peer.send("POST", collection, document)
    assert status in (201, 409), answer
