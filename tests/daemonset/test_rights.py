"""The rights that are shipped are those that are used: no verb is missing, and none is left over.

Both programs are run through their lives before an API server that writes down every request.
"""

import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.doctor.cluster import DAEMON_RIGHTS, daemon_rights
from deviceplugin.settings import RemediationSettings, Remedy
from proto.annotations import keys
from simulation.apiserver import EmbeddedApiServer
from simulation.apiserver.faults import Fault
from simulation.apiserver.routes import RecordedRequest
from simulation.nvml.machine_file import RowsRemapped, lost_gpu
from tests.builders import node_json, pod_json
from tests.cluster.shipped import DAEMON, SCHEDULER, rules
from tests.deviceplugin.daemon_rig import daemon
from tests.deviceplugin.gpus import NODE
from tests.deviceplugin.remediation.test_daemon import bind_owned, with_lease
from tests.polling import until
from tests.scheduler_ext.extender_process import LEASE, NAME, NAMESPACE, extender, prepare
from tests.scheduler_ext.rig import now

KUBE_SCHEDULERS = "topogpu-kube-scheduler-lease"
Right = tuple[str, str, str, str, str]
"""Verb, API group, resource with its subresource, namespace (`*`: all of them) and name (`*`: any)."""


NOT_SERVED = frozenset({"scheduling.x-k8s.io", "scheduling.volcano.sh"})
"""Groups of definitions that others install: the extender looks for them once a minute."""


def granted(account: str) -> set[Right]:
    """Without what kube-scheduler alone needs, which runs with the extender's account."""
    return {
        (verb, group, resource, rule["namespace"], name)
        for rule in rules(account)
        if rule["role"] != KUBE_SCHEDULERS
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        if group not in NOT_SERVED
        for resource in rule["resources"]
        for name in rule.get("resourceNames", ["*"])
    }


def used(requests: Iterable[RecordedRequest], agent: str) -> set[RecordedRequest]:
    """What the program asked for of Kubernetes' objects; who may review its own rights, everybody may."""
    return {request for request in requests if request.user_agent == agent and request.resource}


def covers(right: Right, request: RecordedRequest) -> bool:
    verb, group, resource, namespace, name = right
    asked = f"{request.resource}/{request.subresource}" if request.subresource else request.resource
    return (verb, group, resource) == (request.verb, request.group, asked) and (
        namespace in ("*", request.namespace) and name in ("*", request.name)
    )


def unused(rights: Iterable[Right], requests: Iterable[RecordedRequest]) -> set[Right]:
    return {right for right in rights if not any(covers(right, request) for request in requests)}


async def check(account: str, requests: Callable[[], set[RecordedRequest]]) -> None:
    """While the program runs: what it does in the background is waited for."""
    rights = granted(account)
    with suppress(TimeoutError):
        await until(lambda: not unused(rights, requests()))
    assert unused(rights, requests()) == set()
    assert {request for request in requests() if not any(covers(right, request) for right in rights)} == set()


def test_doctor_asks_after_the_rights_that_are_shipped() -> None:
    asked = {(right.verb, "", right.resource, right.namespace or "*", "*") for right in DAEMON_RIGHTS}
    assert asked == granted(DAEMON)


def test_the_node_daemon_may_record_events_of_pods_in_every_namespace() -> None:
    assert ("create", "", "events", "*", "*") in granted(DAEMON)


@pytest.mark.needs_compiler
async def test_the_node_daemon_has_the_rights_it_uses_and_no_others() -> None:
    async with daemon(faults=[RowsRemapped(gpu=2, pending=True)]) as immediate:
        immediate.lock("first")
        immediate.bind("first", 0)
        await immediate.runs("first")
        await until(lambda: not immediate.annotation(keys.NODE_LOCK))
        # As when another pod took the name meanwhile: the daemon looks whose it is.
        patch, pods = frozenset({"patch"}), frozenset({"pods"})
        immediate.server.inject(Fault(verbs=patch, resources=pods, subresource="", name="second", status=422))
        immediate.lock("second")
        immediate.bind("second", 1)
        await until(lambda: immediate.said("default/second was served, but its annotations cannot be updated"))
        await until(lambda: bool(immediate.events("GPUUnhealthy")))
    async with daemon(runtime_version="containerd://2.4.2") as slots:
        slots.bind("p", 0)
        await slots.runs("p")
        await slots.kill()
        await slots.start()
        await slots.ready()
        slots.bind("q", 1)
        await slots.runs("q")
        await check(DAEMON, lambda: used((*immediate.server.requests, *slots.server.requests), DAEMON))
    requests = used((*immediate.server.requests, *slots.server.requests), DAEMON)
    assert {request.name for request in requests if request.resource == "nodes"} == {NODE}


@pytest.mark.needs_compiler
async def test_a_daemon_that_evicts_uses_the_rights_that_this_takes_and_no_others() -> None:
    rights = {
        (right.verb, right.group, right.resource, right.namespace or "*", right.name or "*")
        for right in set(daemon_rights(RemediationSettings(remedies=(Remedy.EVICT,)))) - set(DAEMON_RIGHTS)
    }
    flags = ("--remediation", "evict,taint-any", "--remediation-seconds", "0.5")
    async with daemon(*flags, runtime_version="containerd://2.4.2", before=with_lease) as node:
        bind_owned(node, "p", 2)
        await node.runs("p")
        node.machine(lost_gpu(2))
        await until(lambda: bool(node.events("EvictedFromUnhealthyGPU")))
        requests = used(node.server.requests, DAEMON)
    assert unused(rights, requests) == set()
    assert {one for one in requests if not any(covers(right, one) for right in rights | granted(DAEMON))} == set()


async def test_the_extender_has_the_rights_it_uses_and_no_others(tmp_path: Path) -> None:
    async with EmbeddedApiServer() as server:
        prepare(server)
        server.create(node_json("slots"))
        server.create(node_json("immediate", allocation="immediate"))
        server.create(_scheduler_pod())
        server.create(_lease())
        leading = ("--leader-elect", "--leader-elect-resource-name", LEASE)
        async with extender(server, tmp_path, *leading, "--leader-elect-resource-namespace", NAMESPACE) as found:
            for name, node in (("p", "slots"), ("q", "immediate")):
                pod = server.create(pod_json(name))
                await found.post("/filter", {"Pod": pod, "Nodes": None, "NodeNames": [node]})
                assert (await found.post("/bind", _binding(pod, node)))["Error"] == ""
            # A pod that waits for room, is explained, and requeued once there is some.
            waiting = server.create(pod_json("r", memory_mib=40000))
            await found.post("/filter", {"Pod": waiting, "Nodes": None, "NodeNames": ["slots", "immediate"]})
            async with found.http.get(f"{found.verbs}/debug/explain?pod=r&namespace=default") as response:
                assert response.status == 200
            # A bind that the API server refuses gives the lock back.
            server.patch("pods", "q", {"metadata": {"annotations": {keys.BIND_PHASE: "success"}}}, namespace="default")
            server.patch("nodes", "immediate", {"metadata": {"annotations": dict.fromkeys(_LOCK)}})
            server.inject(Fault(resources=frozenset({"pods"}), subresource="binding", status=403, times=1))
            refused = server.create(pod_json("s"))
            await found.post("/filter", {"Pod": refused, "Nodes": None, "NodeNames": ["immediate"]})
            assert (await found.post("/bind", _binding(refused, "immediate")))["Error"] != ""
            server.delete("pods", "p", namespace="default")
            await until(lambda: keys.REQUEUE in found.annotations("r"))
            await until(lambda: bool(_certificate(server)))
            await until(lambda: bool(found.events("BindingSucceed")))
            await check(SCHEDULER, lambda: used(server.requests, NAME))


_LOCK = (keys.NODE_LOCK, keys.NODE_LOCK_UID)


def _binding(pod: dict[str, Any], node: str) -> dict[str, str]:
    metadata = pod["metadata"]
    return {
        "PodName": metadata["name"],
        "PodNamespace": metadata["namespace"],
        "PodUID": metadata["uid"],
        "Node": node,
    }


def _certificate(server: EmbeddedApiServer) -> str:
    secret = server.store.get("secrets", NAMESPACE, "topogpu-webhook") or {}
    return str((secret.get("data") or {}).get("tls.crt", ""))


def _scheduler_pod() -> dict[str, Any]:
    labels = {"app.kubernetes.io/component": "hami-scheduler"}
    metadata = {"name": NAME, "namespace": NAMESPACE, "labels": labels}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": metadata,
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }


def _lease() -> dict[str, Any]:
    stamp = now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": f"{socket.gethostname()}_1", "leaseDurationSeconds": 3600, "renewTime": stamp}
    metadata = {"name": LEASE, "namespace": NAMESPACE}
    return {"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": metadata, "spec": spec}
