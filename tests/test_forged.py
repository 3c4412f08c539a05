"""Forged decisions, stolen GPUs, raised limits, fake registrations and replayed UIDs, against the running programs.

The first line of defence is the API server's (tests/cluster/test_policies.py, tests/cluster/test_rbac.py). Here it is
away: pods and nodes carry what any tenant could write, and the programs are held against it.
"""

import base64
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from proto.annotations import keys
from proto.annotations.node_lock import NodeLock, encode_lock, encode_lock_uid
from proto.annotations.pod_devices import encode_pod_devices
from proto.devices import DeviceShare, DeviceUUID
from simulation.apiserver import EmbeddedApiServer
from tests.builders import node_json, pod_json
from tests.deviceplugin.daemon_rig import T0, DaemonRig, daemon
from tests.deviceplugin.gpus import NODE
from tests.polling import until
from tests.scheduler_ext.extender_process import NAMESPACE, WEBHOOK, Extender, extender, prepare

GPUS_OF_A = 40960
"""MiB."""


def decided(uuid: str, memory_mib: int = 1000, cores: int = 10) -> str:
    return encode_pod_devices(((DeviceShare(uuid=DeviceUUID(uuid), memory_mib=memory_mib, cores=cores),),))


def bound_pod(name: str, allocated: str, to_allocate: str = "", node: str = NODE, uid: str = "") -> dict[str, Any]:
    """As if it had been decided."""
    annotations = {
        keys.POD_NODE: node,
        keys.DEVICES_ALLOCATED: allocated,
        keys.DEVICES_TO_ALLOCATE: to_allocate or allocated,
        keys.BIND_PHASE: "allocating",
    }
    pod = pod_json(name)
    pod["metadata"] = {"name": name, "namespace": "default", "annotations": annotations} | ({"uid": uid} if uid else {})
    pod["spec"] |= {"nodeName": node, "restartPolicy": "Never"}
    return pod


# The node daemon


@pytest.fixture
async def node() -> AsyncIterator[DaemonRig]:
    async with daemon() as found:
        yield found


FORGERIES: Mapping[str, tuple[Any, str]] = {
    "memory raised after the decision": (
        lambda uuid: (decided(uuid), decided(uuid, 80000)),
        "so one was changed after the decision",
    ),
    "another GPU after the decision": (
        lambda uuid: (decided(uuid), decided("GPU-of-another-pod")),
        "so one was changed after the decision",
    ),
    "a GPU of another node": (lambda uuid: (decided("GPU-elsewhere"), ""), "is not a GPU of this node"),
    "more memory than there is": (lambda uuid: (decided(uuid, 10**6), ""), "MiB were decided of"),
    "more cores than there are": (lambda uuid: (decided(uuid, 1000, 1000), ""), "% of the cores were decided of"),
    "garbage": (lambda uuid: (";;:,,,", ""), keys.DEVICES_TO_ALLOCATE),
}


@pytest.mark.needs_compiler
async def test_a_forged_decision_gets_no_gpu_where_allocation_is_immediate(node: DaemonRig) -> None:
    for number, (what, (forge, words)) in enumerate(FORGERIES.items()):
        name = f"forged-{number}"
        node.lock(name)
        allocated, to_allocate = forge(node.uuid(0))
        node.server.create(bound_pod(name, allocated, to_allocate))
        await until(lambda name=name: node.status(name).get("phase") == "Failed")  # type: ignore[misc]
        assert words in node.status(name)["message"], what
        # The pod is marked, and the next one is not held up by its lock.
        await until(lambda: not node.annotation(keys.NODE_LOCK))
        stored = node.server.store.get("pods", "default", name) or {}
        assert stored["metadata"]["annotations"][keys.BIND_PHASE] == "failed"
    uid = node.bind("honest", 1)
    await node.runs("honest")
    assert (node.visible(uid), node.problems()) == (node.uuid(1), [])


@pytest.mark.needs_compiler
async def test_a_forged_decision_starts_no_container_where_slots_are_used() -> None:
    async with daemon(runtime_version="containerd://2.4.2") as slots:
        for what, words in (
            (decided("GPU-elsewhere"), "is not a GPU of this node"),
            (decided(slots.gpus()[0].uuid, 10**6), "MiB were decided of"),
            (";;:,,,", keys.DEVICES_ALLOCATED),
        ):
            slots.server.create(bound_pod("forged", what))
            await until(lambda words=words: words in slots.waiting("forged"))  # type: ignore[misc]
            slots.server.delete("pods", "forged", namespace="default")
        uid = slots.bind("honest", 1)
        await slots.runs("honest")
        assert slots.visible(uid) == slots.gpus()[1].uuid


@pytest.mark.needs_compiler
async def test_a_pod_past_the_scheduler_gets_nothing_by_its_name_alone(node: DaemonRig) -> None:
    """It names the node itself, and brings no decision."""
    pod = pod_json("past")
    pod["spec"] |= {"nodeName": NODE, "restartPolicy": "Never"}
    node.server.create(pod)
    await until(lambda: node.status("past").get("phase") == "Failed")
    assert "no known pod on node node-1 waits for 1 GPUs" in node.status("past")["message"]


@pytest.mark.needs_compiler
async def test_a_pod_made_anew_under_the_name_does_not_inherit_the_lock(node: DaemonRig) -> None:
    """The UID of the pod that took the lock stands beside it: replaying its name and annotations is not enough."""
    lock = encode_lock(NodeLock(taken_at=T0, namespace="default", pod="p"))
    beside = {keys.NODE_LOCK: lock, keys.NODE_LOCK_UID: encode_lock_uid(lock, "uid-of-the-first")}
    node.server.patch("nodes", NODE, {"metadata": {"annotations": beside}})
    node.server.create(bound_pod("p", decided(node.uuid(0))))
    await until(lambda: node.status("p").get("phase") == "Failed")
    assert f"{keys.NODE_LOCK} of node {NODE} names pod default/p" in node.status("p")["message"]


@pytest.mark.needs_compiler
async def test_who_asks_again_with_the_ids_of_another_pod_is_not_answered(node: DaemonRig) -> None:
    node.bind("victim", 2)
    await node.runs("victim")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await node.allocate(f"{node.uuid(2)}-0", seconds=60)
    assert "waits for 1 GPUs" in (refused.value.details() or "")


# The extender


@pytest.fixture
async def scheduler(tmp_path: Path) -> AsyncIterator[Extender]:
    async with EmbeddedApiServer() as server:
        prepare(server)
        server.create(node_json("a", memory_mib=GPUS_OF_A))
        async with extender(server, tmp_path) as found:
            yield found


async def fits(found: Extender, pod: Mapping[str, Any], *nodes: str) -> list[str]:
    answer = await found.post("/filter", {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})
    return list(answer["NodeNames"] or ())


async def test_a_forged_allocation_makes_less_room_never_more(scheduler: Extender) -> None:
    """What a bound pod claims counts as taken, and what cannot be read counts as everything."""
    server = scheduler.server
    server.create(bound_pod("greedy", decided("GPU-a-0", GPUS_OF_A - 1000), node="a"))
    large = server.create(pod_json("large", memory_mib=2000))

    async def no_room() -> bool:
        return await fits(scheduler, large, "a") == []

    await until(no_room)
    assert await fits(scheduler, server.create(pod_json("small", memory_mib=1000)), "a") == ["a"]
    server.create(bound_pod("unreadable", ";;:,,,", node="a"))
    await until(lambda: bool(scheduler.events("UnreadableAllocation")))
    assert await fits(scheduler, server.create(pod_json("smallest", memory_mib=1)), "a") == []


async def test_a_fake_registration_is_turned_down_or_harms_its_own_node_alone(scheduler: Extender) -> None:
    """Garbage, GPUs without end, and the UUIDs of another node."""
    server = scheduler.server
    fakes = {
        "garbage": "[{",
        "negative": json.dumps(
            [{"id": "GPU-x", "count": -1, "devmem": -1, "devcore": 100, "type": "t", "health": True}]
        ),
        "endless": json.dumps([{"id": f"GPU-{n}", "count": 10**9, "devmem": 10**12} for n in range(3000)]),
    }
    for name, registered in fakes.items():
        fake = node_json(name)
        fake["metadata"]["annotations"][keys.NODE_REGISTER] = registered
        server.create(fake)
    thief = node_json("thief")
    thief["metadata"]["annotations"][keys.NODE_REGISTER] = node_json("a")["metadata"]["annotations"][keys.NODE_REGISTER]
    server.create(thief)
    await until(lambda: {"garbage", "negative"} <= _unreadable(scheduler))
    pod = server.create(pod_json("p", memory_mib=GPUS_OF_A))
    assert await fits(scheduler, pod, "garbage", "negative") == []
    assert await fits(scheduler, pod, "a") == ["a"]
    assert (await scheduler.post("/bind", _binding(pod, "a")))["Error"] == ""
    # The stolen GPU is full on its own node; what the thief's node gives out stays there.
    assert await fits(scheduler, server.create(pod_json("q")), "a") == []
    await scheduler.well()


def _unreadable(found: Extender) -> set[str]:
    events = found.server.store.objects("events")
    return {event["involvedObject"]["name"] for event in events if event["reason"] == "UnreadableRegistration"}


async def test_a_bind_with_the_uid_of_a_pod_that_is_gone_binds_nobody(scheduler: Extender) -> None:
    server = scheduler.server
    first = server.create(pod_json("p"))
    assert await fits(scheduler, first, "a") == ["a"]
    server.delete("pods", "p", namespace="default")
    again = pod_json("p")
    again["metadata"]["uid"] = "uid-of-the-second"
    server.create(again)
    assert (await scheduler.post("/bind", _binding(first, "a")))["Error"] != ""
    assert "nodeName" not in scheduler.pod("p")["spec"]
    assert keys.DEVICES_ALLOCATED not in scheduler.annotations("p")


async def test_what_only_the_scheduler_writes_is_stripped_from_a_new_pod_and_bypasses_are_refused(
    scheduler: Extender,
) -> None:
    await until(lambda: bool(_authorities(scheduler)))
    forged = bound_pod("p", decided("GPU-a-0", GPUS_OF_A))
    del forged["spec"]["nodeName"]
    forged["metadata"]["labels"] = {keys.POD_NODE: "a", keys.WEBHOOK: keys.WEBHOOK_IGNORE}
    answer = await _review(scheduler, forged)
    assert answer["allowed"]
    patch = json.loads(base64.b64decode(answer["patch"]))
    annotations = [f"/metadata/annotations/{key.replace('/', '~1')}" for key in forged["metadata"]["annotations"]]
    label = f"/metadata/labels/{keys.POD_NODE.replace('/', '~1')}"
    assert {(each["op"], each["path"]) for each in patch} == {("remove", path) for path in (*annotations, label)}
    for variable, value in (("NVIDIA_VISIBLE_DEVICES", "all"), ("NVIDIA_VISIBLE_DEVICES", "GPU-a-0")):
        lifted = pod_json("p", gpus=0)
        lifted["spec"]["containers"][0]["env"] = [{"name": variable, "value": value}]
        assert not (await _review(scheduler, lifted))["allowed"]
    lifted = pod_json("p")
    lifted["spec"]["containers"][0]["env"] = [{"name": "CUDA_DISABLE_CONTROL", "value": "true"}]
    assert "can lift the limits of a shared GPU" in (await _review(scheduler, lifted))["status"]["message"]


def _authorities(found: Extender) -> str:
    secret = found.server.store.get("secrets", NAMESPACE, WEBHOOK) or {}
    return base64.b64decode((secret.get("data") or {}).get("ca.crt", "")).decode()


async def _review(found: Extender, pod: Mapping[str, Any]) -> dict[str, Any]:
    """As the API server asks, trusting the webhook's own authority."""
    request = {"uid": "u", "operation": "CREATE", "namespace": "default", "object": pod}
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    trust = ssl.create_default_context(cadata=_authorities(found))
    url = f"{found.webhook}/webhook"
    async with aiohttp.ClientSession() as http, http.post(url, json=body, ssl=trust) as response:
        answer: dict[str, Any] = json.loads(await response.read())["response"]
        return answer


def _binding(pod: Mapping[str, Any], node: str) -> dict[str, str]:
    metadata = pod["metadata"]
    names = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
    return {**names, "Node": node}
