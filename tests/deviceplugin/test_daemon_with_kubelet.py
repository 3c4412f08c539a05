"""The daemon as a process over the fake NVML library, with the kubelet stand-in and the embedded API server."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from deviceplugin.replicas import split_replica
from proto.annotations.keys import NODE_LOCK, NODE_REGISTER
from proto.kubernetes.objects import Pod
from tests.deviceplugin.daemon_rig import DaemonRig, daemon
from tests.deviceplugin.gpus import NODE
from tests.polling import until

pytestmark = pytest.mark.needs_compiler


@pytest.fixture
async def node() -> AsyncIterator[DaemonRig]:
    async with daemon() as node:
        yield node


async def test_it_registers_publishes_once_and_restores_what_was_taken(node: DaemonRig) -> None:
    first = node.annotation()
    node.server.patch("nodes", NODE, {"metadata": {"annotations": {NODE_REGISTER: None}}})
    await until(lambda: node.annotation() == first)
    assert (node.writes(), node.registrations(), len(node.gpus())) == (2, 1, 4)
    made: Any = node.server.store.get("nodes", "", NODE)
    node.server.delete("nodes", NODE)
    node.server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}, "status": made["status"]})
    await until(lambda: node.annotation() == first)


async def test_two_equal_pods_at_once_are_never_guessed(node: DaemonRig) -> None:
    uids = {name: node.bind(name, gpu) for gpu, name in enumerate(("one", "two"))}
    await until(lambda: all(node.status(name)["phase"] in ("Running", "Failed") for name in uids))
    for gpu, (name, uid) in enumerate(uids.items()):
        status = node.status(name)
        if status["phase"] == "Running":
            assert node.visible(uid) == node.gpus()[gpu].uuid
        else:
            assert "default/one and default/two" in status["message"]


async def test_it_outlives_the_api_server_and_serves_afterwards(node: DaemonRig) -> None:
    await node.server.go_offline()
    await until(lambda: node.said("using the last known state"))
    await node.server.go_online()
    assert node.process.returncode is None
    uid = node.bind("p", 2)
    await node.runs("p")
    assert node.visible(uid) == node.gpus()[2].uuid


async def test_pods_bound_one_by_one_while_kubelet_restarts_get_their_own_gpus_or_a_refusal(node: DaemonRig) -> None:
    """Kubelet dies before, while and after it asks for a pod; each pod is bound under the node lock."""
    calls, uids = node.kubelet.devices.calls, dict[str, str]()
    for number in range(9):
        await until(lambda: not node.annotation(NODE_LOCK) and node.capacity() == (40, 40))
        name, moment = f"pod-{number}", ("before", "while", "after")[number % 3]
        calls.clear()
        node.lock(name)
        uids[name] = node.bind(name, number % 4)
        if moment == "while":
            await until(lambda: "Allocate c0" in calls)
        elif moment == "after":
            await node.runs(name)
        await node.kubelet.restart()
    await until(lambda: all(node.status(name)["phase"] in ("Running", "Failed") for name in uids))
    for number, (name, uid) in enumerate(uids.items()):
        if node.status(name)["phase"] == "Running":
            assert node.visible(uid) == node.uuid(number % 4)
        else:
            assert node.status(name)["message"].startswith("Pod was rejected: Allocate failed due to ")
    await until(lambda: not node.annotation(NODE_LOCK) and node.capacity() == (40, 40))
    last = node.bind("last", 3)
    await node.runs("last")
    assert (node.visible(last), node.problems()) == (node.uuid(3), [])


async def test_kubelets_books_name_the_gpus_that_were_decided() -> None:
    async with daemon("--limits", "driver,hami-core,unenforced") as node:
        admit = node.kubelet.devices.admit

        async def admit_known(pod: Pod) -> None:
            """A hint that comes too late is none."""
            await until(lambda: node.counts("topogpu_pods"))
            await admit(pod)

        node.kubelet.devices.admit = admit_known  # type: ignore[method-assign]
        uid = node.bind("train", 3, 1)
        await node.runs("train")
        (held,) = node.kubelet.devices.held(uid)
        assert {split_replica(identifier)[0] for identifier in held.ids} == {node.uuid(1), node.uuid(3)}
