"""The node daemon's writes, on the embedded API server and the real one."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime

from deviceplugin.apiserver import OwnNode
from deviceplugin.changes import Changes
from deviceplugin.immediate.proof import settlement
from deviceplugin.node.desired import is_met, patch_of
from deviceplugin.node.registration import Offer, registration
from deviceplugin.settings import HamiScheduler
from proto.annotations import keys
from proto.annotations.node_allocation import AllocationMode
from proto.annotations.node_limits import NodeLimits
from proto.annotations.node_lock import BindPhase, NodeLock, encode_lock, encode_lock_uid
from proto.kubernetes.client import ApiServer
from proto.kubernetes.objects import NODES, PODS
from tests.cluster.peers import Peer
from tests.deviceplugin.gpus import PAIR, A, B

NOW = datetime(2030, 1, 1, tzinfo=UTC)


async def a_node(peer: Peer, name: str) -> str:
    await peer.create("/api/v1/nodes", {"metadata": {"name": name}})
    return name


async def a_bound_pod(peer: Peer, namespace: str, node: str) -> None:
    devices = f"{A},NVIDIA,1000,10:;"
    annotations = {keys.DEVICES_ALLOCATED: devices, keys.DEVICES_TO_ALLOCATE: devices}
    container = {"name": "main", "image": "example.com/work:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    await peer.create(
        f"/api/v1/namespaces/{namespace}/pods",
        {"metadata": {"name": "train", "annotations": annotations}, "spec": {"containers": [container]}},
    )
    binding = {"metadata": {"name": "train"}, "target": {"kind": "Node", "name": node}}
    await peer.create(f"/api/v1/namespaces/{namespace}/pods/train/binding", binding)


async def lock(api: ApiServer, node: str, namespace: str, uid: str) -> None:
    text = encode_lock(NodeLock(taken_at=NOW, namespace=namespace, pod="train"))
    annotations = {keys.NODE_LOCK: text, keys.NODE_LOCK_UID: encode_lock_uid(text, uid)}
    await api.patch(NODES, node, {"metadata": {"annotations": annotations}})


async def test_what_is_reported_is_written_once_and_then_nothing_is_due(
    peer: Peer, api: ApiServer, namespace: str
) -> None:
    own = OwnNode(api, await a_node(peer, f"n-{namespace}"), Changes())
    following = asyncio.create_task(own.follow_node())
    async with asyncio.timeout(30):
        while own.node is None:  # noqa: ASYNC110 - polls, with a deadline
            await asyncio.sleep(0.01)
    scores = {A: {B: 100}, B: {A: 100}}
    offer = Offer(devices=PAIR, scores=scores, mode=AllocationMode.SLOTS, limits=NodeLimits.HAMI_CORE)
    desired = registration(own.node, offer, HamiScheduler.NONE, now=NOW)
    patch = patch_of(own.node, desired, NOW)
    assert patch is not None
    await own.patch_node(patch.body)
    assert is_met(own.node, desired)
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following


async def test_a_served_pod_is_told_and_its_lock_released(peer: Peer, api: ApiServer, namespace: str) -> None:
    node = await a_node(peer, f"n-{namespace}")
    await a_bound_pod(peer, namespace, node)
    pod = await api.get(PODS, "train", namespace)
    await lock(api, node, namespace, pod.metadata.uid)
    body = settlement(pod, frozenset({0}), BindPhase.SUCCESS, keys.RESOURCE_COUNT)
    await OwnNode(api, node, Changes()).settle(pod, body, release=True)
    assert (await api.get(PODS, "train", namespace)).metadata.annotations[keys.BIND_PHASE] == "success"
    assert (await api.get(NODES, node)).metadata.annotations == {}


async def test_a_pod_whose_name_another_took_gives_back_its_lock_and_the_other_is_left_alone(
    peer: Peer, api: ApiServer, namespace: str
) -> None:
    node = await a_node(peer, f"n-{namespace}")
    await a_bound_pod(peer, namespace, node)
    gone = await api.get(PODS, "train", namespace)
    await lock(api, node, namespace, gone.metadata.uid)
    await peer.send("DELETE", f"/api/v1/namespaces/{namespace}/pods/train?gracePeriodSeconds=0")
    await a_bound_pod(peer, namespace, node)
    body = settlement(gone, frozenset({0}), BindPhase.SUCCESS, keys.RESOURCE_COUNT)
    await OwnNode(api, node, Changes()).settle(gone, body, release=True)
    assert keys.BIND_PHASE not in (await api.get(PODS, "train", namespace)).metadata.annotations
    assert (await api.get(NODES, node)).metadata.annotations == {}
