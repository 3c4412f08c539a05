"""Which pods a real API server charges to a quota with scopes, and which this project does."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from proto.kubernetes.objects import Pod, ResourceQuota
from scheduler_ext.cluster.quotas import read_limits
from scheduler_ext.quota_class import are_in, quota_class
from scheduler_ext.requests import RequestSettings
from tests.cluster.control_plane import ControlPlane
from tests.cluster.peers import Peer, real

pytestmark = pytest.mark.cluster

GPUS = "requests.nvidia.com/gpu"
STATUS = "application/merge-patch+json"
ELSEWHERE = {"topologyKey": "zone", "namespaceSelector": {}}
SELECTORS: dict[str, list[tuple[str, str, list[str]]]] = {
    "everything": [],
    "in": [("PriorityClass", "In", ["quota-low", "missing"])],
    "not-in": [("PriorityClass", "NotIn", ["quota-low"])],
    "exists": [("PriorityClass", "Exists", [])],
    "not-exists": [("PriorityClass", "DoesNotExist", [])],
    "terminating": [("Terminating", "Exists", [])],
    "not-terminating": [("NotTerminating", "Exists", [])],
    "best-effort": [("BestEffort", "Exists", [])],
    "not-best-effort": [("NotBestEffort", "Exists", [])],
    "affinity": [("CrossNamespacePodAffinity", "Exists", [])],
    "two": [("PriorityClass", "In", ["quota-low"]), ("NotBestEffort", "Exists", [])],
}
PODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "low": {"priorityClassName": "quota-low"},
    "high": {"priorityClassName": "quota-high"},
    "deadline": {"activeDeadlineSeconds": 60},
    "cpu": {"requests": {"cpu": "10m"}},
    "memory": {"limits": {"memory": "1Mi"}, "priorityClassName": "quota-low"},
    "nothing": {"requests": {"cpu": "0", "memory": "0"}},
    "init": {"initContainers": [{"name": "i", "image": "a", "resources": {"requests": {"cpu": "1m"}}}]},
    "whole": {"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}},
    "anti": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [ELSEWHERE]}}},
    "near": {
        "affinity": {
            "podAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": ELSEWHERE}]
            }
        }
    },
    "same": {
        "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}}
    },
}


@pytest.fixture
async def peer(plane: ControlPlane) -> AsyncIterator[Peer]:
    async with real(plane) as server:
        for name in ("quota-low", "quota-high"):
            path = "/apis/scheduling.k8s.io/v1/priorityclasses"
            await server.create(path, {"metadata": {"name": name}, "value": 5})
        yield server
        for name in ("quota-low", "quota-high"):
            await server.send("DELETE", f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}")


async def test_quotas_count_the_pods_that_a_real_api_server_charges_to_them(peer: Peer) -> None:
    root = f"/api/v1/namespaces/{await peer.namespace(f'test-{uuid.uuid4().hex[:8]}')}"
    for name, expressions in SELECTORS.items():
        await _quota(peer, f"{root}/resourcequotas", name, expressions)
    for name, spec in PODS.items():
        await peer.create(f"{root}/pods", _pod(name, **spec))
    _, quotas = await peer.send("GET", f"{root}/resourcequotas")
    _, listed = await peer.send("GET", f"{root}/pods")
    pods = [msgspec.convert(pod, Pod) for pod in listed["items"]]
    assert len(pods) == len(PODS)
    charged, counted = {}, {}
    for quota in quotas["items"]:
        name = quota["metadata"]["name"]
        limits = read_limits(msgspec.convert(quota, ResourceQuota), RequestSettings())
        assert limits.problems == ()
        charged[name] = int(quota["status"]["used"][GPUS])
        counted[name] = sum(are_in(quota_class(pod), limits.quota.scopes) for pod in pods)
    assert counted == charged
    assert 0 not in charged.values()


@pytest.mark.parametrize(
    "expression",
    [
        ("Weekdays", "Exists", []),
        ("PriorityClass", "Gt", ["a"]),
        ("PriorityClass", "In", []),
        ("Terminating", "In", ["a"]),
    ],
)
async def test_scopes_that_cannot_be_read_are_none_that_an_api_server_accepts(
    peer: Peer, expression: tuple[str, str, list[str]]
) -> None:
    status, answer = await peer.send("POST", "/api/v1/namespaces/default/resourcequotas", _written("q", [expression]))
    assert status == 422, answer
    assert read_limits(msgspec.convert(_written("q", [expression]), ResourceQuota), RequestSettings()).problems


async def _quota(peer: Peer, path: str, name: str, expressions: list[tuple[str, str, list[str]]]) -> None:
    """No controller runs that would begin to count."""
    written = _written(name, expressions)
    await peer.create(path, written)
    begun = {"status": {"hard": written["spec"]["hard"], "used": {GPUS: "0"}}}
    status, answer = await peer.send("PATCH", f"{path}/{name}/status", begun, STATUS)
    assert status == 200, answer


def _written(name: str, expressions: list[tuple[str, str, list[str]]]) -> dict[str, Any]:
    selected = [{"scopeName": scope, "operator": operator, "values": values} for scope, operator, values in expressions]
    selector = {"scopeSelector": {"matchExpressions": selected}} if selected else {}
    return {"metadata": {"name": name}, "spec": {"hard": {GPUS: "1000"}, **selector}}


def _pod(
    name: str, *, requests: dict[str, str] | None = None, limits: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    gpu = {"nvidia.com/gpu": "1"}
    resources = {"requests": gpu | (requests or {}), "limits": gpu | (limits or {})}
    containers = [{"name": "main", "image": "example.com/work:1", "resources": resources}]
    return {"metadata": {"name": name}, "spec": {"containers": containers, **spec}}
