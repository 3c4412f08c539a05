"""Runtimes that cannot have slots: containerd 1.7 while its switch for CDI devices is off, as it is by default, and
CRI-O before 1.33.3, which lets the variables of image and pod replace those of CDI devices.
"""

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from deviceplugin.slots.slot import NOT_APPLIED
from proto.annotations import keys
from tests.node.pods import Pods, container, pod
from tests.node.real_node import NODE, RealNode
from tests.polling import until

RUNTIME = os.environ.get("NODE_RUNTIME", "")
pytestmark = [
    pytest.mark.node,
    pytest.mark.needs_compiler,
    pytest.mark.skipif(RUNTIME not in {"containerd-1.7", "cri-o-1.33"}, reason="this runtime always can have slots"),
]


@pytest.fixture(autouse=True)
async def switched_off(real_kubelet: RealNode) -> AsyncIterator[None]:
    await asyncio.to_thread(real_kubelet.configure_cdi, False)
    yield
    await asyncio.to_thread(real_kubelet.configure_cdi, True)


async def test_the_daemon_finds_out_and_allocates_immediately(scheduled: Pods) -> None:
    await scheduled.serve()
    _, node = await scheduled.peer.send("GET", f"/api/v1/nodes/{NODE}")
    assert node["metadata"]["annotations"][keys.NODE_ALLOCATION] == "immediate"
    await scheduled.add(pod("share", container(gpumem=3000)), pod("whole", container(gpus=2)))
    await scheduled.started("share", "whole")
    await scheduled.check("share", "main")
    await scheduled.check("whole", "main")


async def test_slots_that_are_demanded_all_the_same_end_the_daemon_with_a_sentence(pods: Pods) -> None:
    await asyncio.to_thread(pods.node.start_daemon, "--allocation", "slots")
    await pods.logged("Allocation by slots is not possible on this node: ")

    async def ended() -> bool:
        return pods.node.daemon is not None and not pods.node.daemon.is_running()

    await until(ended)


@pytest.mark.skipif(RUNTIME != "containerd-1.7", reason="a release tells the order")
async def test_where_the_daemon_cannot_ask_demanded_slots_show_no_gpu(scheduled: Pods) -> None:
    await scheduled.serve("--allocation", "slots", "--host-root", "/nonexistent")
    await scheduled.add(pod("share", container(gpumem=3000)))
    await scheduled.started("share")
    (start,) = await scheduled.starts("share")
    assert start.devices == {}
    assert {name: value for name, value in start.env.items() if name.startswith(("NVIDIA_", "CUDA_"))} == {
        "NVIDIA_VISIBLE_DEVICES": NOT_APPLIED
    }
