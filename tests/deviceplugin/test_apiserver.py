"""What the daemon writes of pods, on the embedded API server."""

import asyncio
from contextlib import suppress

import pytest

from deviceplugin.apiserver import OwnNode
from deviceplugin.changes import Changes
from deviceplugin.immediate.proof import settlement
from proto.annotations.keys import BIND_PHASE, NODE_LOCK
from proto.annotations.node_lock import BindPhase
from proto.kubernetes.errors import ApiError
from proto.kubernetes.objects import PODS
from simulation.apiserver.faults import Fault
from tests.deviceplugin.agent_rig import running
from tests.deviceplugin.gpus import NODE, A, B, share
from tests.polling import until

ONE = (share(A),)


@pytest.mark.parametrize(("uid_known", "released"), [(True, True), (False, False)])
async def test_the_lock_of_a_pod_whose_name_another_took_is_released_if_it_is_surely_its_own(
    uid_known: bool, released: bool
) -> None:
    async with running() as rig:
        rig.bind("train", (ONE,))
        gone = await rig.api.get(PODS, "train", "default")
        rig.lock("train", gone.metadata.uid if uid_known else "")
        rig.server.delete("pods", "train", namespace="default")
        rig.bind("train", (ONE,))
        own = OwnNode(rig.api, NODE, Changes())
        body = settlement(gone, frozenset({0}), BindPhase.SUCCESS, "nvidia.com/gpu")
        await own.settle(gone, body, release=True)
        assert (NODE_LOCK not in rig.annotations("nodes", NODE)) == released
        assert rig.annotations("pods", "train").get(BIND_PHASE) != "success"


async def test_a_pod_is_recorded_although_the_api_server_knows_no_rights_yet() -> None:
    """A kube-apiserver that has just started answers 403 until it has read its roles."""
    async with running() as rig:
        rig.bind("train", (ONE,))
        rig.lock("train")
        rig.server.inject(Fault(verbs=frozenset({"patch"}), resources=frozenset({"pods"}), status=403, times=2))
        await rig.allocate(f"{A}-0")
        await until(lambda: NODE_LOCK not in rig.annotations("nodes", NODE))
        assert rig.annotations("pods", "train")[BIND_PHASE] == "success"


async def test_an_api_server_restored_from_a_backup_is_followed() -> None:
    async with running() as rig:
        rig.bind("kept", (ONE,))
        backup = rig.server.store.backup()
        own = OwnNode(rig.api, NODE, Changes())
        async with asyncio.TaskGroup() as group:
            following = [group.create_task(own.follow_pods()), group.create_task(own.follow_node())]
            for number in range(5):
                rig.bind(f"lost-{number}", (ONE,))
                rig.server.patch("nodes", NODE, {"metadata": {"labels": {"lost": str(number)}}})
            await until(lambda: len(own.pods) == 6 and own.node is not None and "lost" in own.node.metadata.labels)
            await rig.server.restore(backup)
            await until(lambda: [pod.metadata.name for pod in own.pods.values()] == ["kept"])
            await until(lambda: own.node is not None and "lost" not in own.node.metadata.labels)
            for task in following:
                task.cancel()


async def test_pods_that_cannot_be_watched_may_be_old_although_the_node_can_be() -> None:
    """Else the folders of containers that were started since would be swept away under them."""
    async with running() as rig:
        rig.server.inject(Fault(verbs=frozenset({"list", "watch"}), resources=frozenset({"pods"}), status=403))
        own = OwnNode(rig.api, NODE, Changes())
        async with asyncio.TaskGroup() as group:
            following = [group.create_task(own.follow_pods())]
            await until(lambda: own.problem != "")
            following.append(group.create_task(own.follow_node()))
            await until(lambda: own.node is not None)
            assert "403" in own.problem
            rig.server.faults.clear()
            await until(lambda: own.problem == "")
            for task in following:
                task.cancel()


async def test_the_lock_is_released_although_the_api_server_will_never_take_what_is_written_on_the_pod() -> None:
    """As where a policy refuses it. The pod has its GPUs, and binds to the node would wait until the lock expires."""
    async with running() as rig:
        rig.bind("train", (ONE,))
        rig.lock("train")
        rig.server.inject(Fault(verbs=frozenset({"patch"}), resources=frozenset({"pods"}), status=422))
        await rig.allocate(f"{A}-0")
        await until(lambda: NODE_LOCK not in rig.annotations("nodes", NODE))
        assert rig.annotations("pods", "train")[BIND_PHASE] == "allocating"


async def test_so_it_is_when_the_last_container_is_served_while_the_first_is_written() -> None:
    async with running() as rig:
        rig.bind("train", (ONE, ONE))
        rig.lock("train")
        patched = frozenset({"patch"})
        rig.server.inject(Fault(verbs=patched, resources=frozenset({"pods"}), status=422, latency_seconds=0.3))
        await rig.allocate(f"{A}-0")
        await rig.allocate(f"{A}-1")
        await until(lambda: NODE_LOCK not in rig.annotations("nodes", NODE))


async def test_the_lock_stays_while_containers_of_a_pod_that_cannot_be_written_are_waiting() -> None:
    async with running() as rig:
        rig.bind("train", (ONE, (share(B),)))
        rig.lock("train")
        pod = await rig.api.get(PODS, "train", "default")
        rig.server.inject(Fault(verbs=frozenset({"patch"}), resources=frozenset({"pods"}), status=422))
        with pytest.raises(ApiError):
            await OwnNode(rig.api, NODE, Changes()).settle(
                pod, settlement(pod, frozenset({0}), None, "r"), release=False
            )
        assert NODE_LOCK in rig.annotations("nodes", NODE)


async def test_pods_of_other_nodes_are_not_asked_for() -> None:
    async with running() as rig:
        own = OwnNode(rig.api, NODE, Changes())
        following = asyncio.create_task(own.follow_pods())
        container = {"name": "c0", "image": "i"}
        for name, node in (("theirs", "node-2"), ("ours", NODE)):
            spec = {"nodeName": node, "containers": [container]}
            rig.server.create({"kind": "Pod", "metadata": {"name": name}, "spec": spec})
        await until(lambda: len(own.pods) > 0)
        assert [pod.metadata.name for pod in own.pods.values()] == ["ours"]
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
