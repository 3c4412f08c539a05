"""Settings get smaller while pods run."""

from collections.abc import Mapping

import pytest

from tests.deviceplugin.daemon_rig import DaemonRig, daemon
from tests.deviceplugin.gpus import share

pytestmark = pytest.mark.needs_compiler

LOWER = ("--device-split-count", "1", "--device-memory-scaling", "0.4", "--device-cores-scaling", "0.3")
LOWEST = ("--device-split-count", "1", "--device-memory-scaling", "0.2", "--device-cores-scaling", "0.1")


async def start_again(node: DaemonRig, options: tuple[str, ...], *lowered: str) -> None:
    await node.kill()
    node.options = (*options, *lowered)
    await node.start()
    await node.ready()


async def envs(node: DaemonRig, *containers: tuple[str, str]) -> list[Mapping[str, str]]:
    """Starts the containers again, each given by its pod's UID and its name."""
    return [(await node.kubelet.restart_container(uid, name)).env for uid, name in containers]


async def test_running_pods_start_again_with_what_they_have_however_often_settings_get_smaller() -> None:
    async with daemon("--allocation", "slots") as node:
        options, half = node.options, node.gpus()[0].memory_mib * 4 // 10
        small = [node.bind(f"p{n}", lent=((share(node.uuid(0), half, 30),),)) for n in range(2)]
        inits = node.bind_shares(
            "inits", ((share(node.uuid(2), 80000, 100),), (share(node.uuid(2), 30000, 40),)), init=1
        )
        hidden = node.bind("hidden", 1)
        await node.runs("p0", "p1", "inits", "hidden")
        containers = [*((uid, "c0") for uid in small), (inits, "c0"), (inits, "c1"), (hidden, "c0")]
        before = await envs(node, *containers)
        await start_again(node, options, *LOWER)
        assert await envs(node, *containers) == before
        await start_again(node, options, *LOWEST, "--filter-devices", node.uuid(1))
        assert [gpu.memory_mib for gpu in node.gpus()] == [16384] * 3
        assert await envs(node, *containers) == before
        assert node.problems() == []


async def test_a_pod_that_was_served_immediately_keeps_its_limits_and_library_in_a_daemon_that_serves_by_slots() -> (
    None
):
    async with daemon("--allocation", "immediate") as node:
        options, half = node.options[:-2], node.gpus()[0].memory_mib // 2
        uid = node.bind("p", lent=((share(node.uuid(0), half, 50),),))
        await node.runs("p")
        before = await envs(node, (uid, "c0"))
        await start_again(node, options, "--allocation", "slots", *LOWER)
        assert await envs(node, (uid, "c0")) == before


@pytest.mark.parametrize("allocation", ["slots", "immediate"])
async def test_a_container_with_whole_gpus_goes_on_without_the_library_when_their_memory_is_promised_more_than_once(
    allocation: str,
) -> None:
    async with daemon("--allocation", allocation) as node:
        options, memory = node.options, node.gpus()[0].memory_mib
        uid = node.bind_shares("p", (tuple(share(node.uuid(gpu), memory, 100) for gpu in range(2)),))
        await node.runs("p")
        before = await envs(node, (uid, "c0"))
        await start_again(node, options, "--device-memory-scaling", "1.5")
        assert await envs(node, (uid, "c0")) == before
