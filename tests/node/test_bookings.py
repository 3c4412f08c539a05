"""Whose ids does kubelet book for a pod? Those of the GPUs that were decided, so that a reader of them is right."""

import asyncio

import pytest

from deviceplugin.records.holdings import decode_checkpoint
from deviceplugin.replicas import split_replica
from proto.devices import DeviceUUID
from tests.deviceplugin.gpus import share
from tests.node.pods import SEVERAL, Pods, container, decided, pod

pytestmark = [pytest.mark.node, pytest.mark.needs_compiler]
BURST = 24
NAMES = [f"pod-{number}" for number in range(BURST)]
BOTH = pytest.mark.parametrize("allocation", ["slots", "immediate"])


async def strangers(pods: Pods, *containers: str) -> dict[str, list[DeviceUUID]]:
    """Of containers of which kubelet has booked ids of other GPUs than decided, those GPUs. What it refuses, while no
    plugin serves, has none.
    """
    checkpoint = pods.node.root / "device-plugins" / "kubelet_internal_checkpoint"
    booked = {
        (one.pod_uid, one.container_name): sorted(split_replica(identifier)[0] for identifier in one.ids)
        for one in decode_checkpoint(checkpoint.read_bytes())
    }
    found = {}
    for name, made in (await pods.all()).items():
        for each in containers if made["status"]["phase"] != "Failed" else ():
            gpus = booked[made["metadata"]["uid"], each]
            if gpus != sorted(share.uuid for share in decided(made, each)):
                found[f"{name} {each}"] = gpus
    return found


@BOTH
async def test_one_by_one_kubelet_books_the_gpus_that_were_decided(scheduled: Pods, allocation: str) -> None:
    await scheduled.serve("--allocation", allocation)
    for name in NAMES:
        await scheduled.add(pod(name, container(gpumem=3000)))
        await scheduled.started(name)
    assert await strangers(scheduled, "main") == {}


@BOTH
async def test_in_a_burst_too(scheduled: Pods, allocation: str) -> None:
    await scheduled.serve("--allocation", allocation)
    await asyncio.gather(*(scheduled.add(pod(name, container(gpumem=3000))) for name in NAMES))
    await scheduled.started(*NAMES)
    assert await strangers(scheduled, "main") == {}


async def test_pods_that_are_bound_at_once_are_told_apart_by_the_order_of_their_binding(pods: Pods) -> None:
    await pods.serve()
    decisions = {name: (share(pods.node.uuid(3 * number % 8), 1000 + number),) for number, name in enumerate(NAMES)}
    await asyncio.gather(*(pods.add_bound(pod(name, container()), (held,)) for name, held in decisions.items()))
    await pods.started(*NAMES)
    assert await strangers(pods, "main") == {}


async def test_containers_of_several_sizes_are_told_apart_too(scheduled: Pods) -> None:
    await scheduled.serve(*SEVERAL)
    await asyncio.gather(
        *(
            scheduled.add(pod(name, container("a", gpumem=900), container("b", gpus=2, gpumem=500)))
            for name in NAMES[:12]
        )
    )
    await scheduled.started(*NAMES[:12])
    assert await strangers(scheduled, "a", "b") == {}


async def test_a_daemon_that_starts_in_the_middle_of_a_burst_goes_on_in_the_same_order(scheduled: Pods) -> None:
    await scheduled.serve()
    await scheduled.add(*(pod(name, container(gpumem=1000)) for name in NAMES[:8]))
    await asyncio.to_thread(scheduled.node.stop_daemon)
    await scheduled.serve()
    await asyncio.gather(*(scheduled.add(pod(name, container(gpumem=1000))) for name in NAMES[8:]))
    await scheduled.started(*NAMES[8:])
    wrong = await strangers(scheduled, "main")
    assert not wrong.keys() & {f"{name} main" for name in NAMES[8:]}, wrong
