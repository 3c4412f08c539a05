"""An eviction takes a pod as far as its PodDisruptionBudget allows."""

from typing import Any

import pytest

from tests.cluster.peers import Peer
from tests.conformance.objects import ANOTHER_UID, MERGE, a_pod


@pytest.fixture
def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


async def running(peer: Peer, pods: str, name: str = "p") -> Any:
    pod = a_pod(name)
    pod["metadata"]["labels"] = {"app": "a"}
    pod["spec"]["nodeName"] = "nowhere"
    await peer.create(pods, pod)
    ready = {"type": "Ready", "status": "True"}
    return await status(peer, f"{pods}/{name}", phase="Running", conditions=[ready])


async def budget(peer: Peer, namespace: str, name: str, allowed: int) -> str:
    path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["a"]}]}}
    await peer.create(path, {"metadata": {"name": name}, "spec": spec})
    numbers = {"currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1, "observedGeneration": 1}
    await status(peer, f"{path}/{name}", disruptionsAllowed=allowed, **numbers)
    return f"{path}/{name}"


async def status(peer: Peer, path: str, **fields: Any) -> Any:
    code, answer = await peer.send("PATCH", f"{path}/status", {"status": fields}, MERGE)
    assert code == 200, answer
    return answer


async def evict(peer: Peer, pods: str, name: str = "p", **options: Any) -> tuple[int, Any]:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, "deleteOptions": options}
    return await peer.send("POST", f"{pods}/{name}/eviction", body)


async def test_a_pod_without_a_budget_goes_and_says_why(peer: Peer, pods: str) -> None:
    await running(peer, pods)
    assert (await evict(peer, pods))[0] == 201
    _, pod = await peer.send("GET", f"{pods}/p")
    assert pod["metadata"]["deletionTimestamp"]
    [condition] = [one for one in pod["status"]["conditions"] if one["type"] == "DisruptionTarget"]
    assert (condition["status"], condition["reason"]) == ("True", "EvictionByEvictionAPI")


async def test_a_budget_is_charged_once_and_then_refuses(peer: Peer, pods: str, namespace: str) -> None:
    for name in ("first", "second"):
        await running(peer, pods, name)
    path = await budget(peer, namespace, "b", 1)
    assert (await evict(peer, pods, "first", dryRun=["All"]))[0] == 201
    assert (await evict(peer, pods, "first"))[0] == 201
    code, refusal = await evict(peer, pods, "second")
    assert (code, refusal["reason"]) == (429, "TooManyRequests")
    assert refusal["details"]["causes"][0]["reason"] == "DisruptionBudget"
    assert (await evict(peer, pods, "second", dryRun=["All"]))[0] == 429
    _, found = await peer.send("GET", path)
    assert found["status"]["disruptionsAllowed"] == 0
    assert found["status"]["disruptedPods"].keys() == {"first"}
    _, pod = await peer.send("GET", f"{pods}/second")
    assert "deletionTimestamp" not in pod["metadata"]


async def test_a_pod_of_two_budgets_cannot_be_evicted(peer: Peer, pods: str, namespace: str) -> None:
    await running(peer, pods)
    for name in ("one", "other"):
        await budget(peer, namespace, name, 1)
    code, refusal = await evict(peer, pods)
    assert code == 500
    assert "more than one PodDisruptionBudget" in refusal["message"]


async def test_a_pod_that_does_not_run_costs_no_budget(peer: Peer, pods: str, namespace: str) -> None:
    await running(peer, pods)
    await status(peer, f"{pods}/p", phase="Failed")
    await budget(peer, namespace, "b", 0)
    assert (await evict(peer, pods))[0] == 201


async def test_a_pod_that_is_not_ready_costs_nothing_while_enough_are_healthy(
    peer: Peer, pods: str, namespace: str
) -> None:
    await running(peer, pods)
    await status(peer, f"{pods}/p", conditions=[{"type": "Ready", "status": "False"}])
    await budget(peer, namespace, "b", 0)
    assert (await evict(peer, pods))[0] == 201


async def test_only_the_pod_that_is_meant_is_evicted(peer: Peer, pods: str) -> None:
    await running(peer, pods)
    assert (await evict(peer, pods, preconditions={"uid": ANOTHER_UID}))[0] == 409
    assert (await evict(peer, pods, "nobody"))[0] == 404
