import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from deviceplugin.changes import Changes
from deviceplugin.container.edits import Hardware
from deviceplugin.gpus import Gpus
from deviceplugin.inventory import GpusUnavailable, Inventory
from deviceplugin.own_threads import OwnThreads
from deviceplugin.settings import AgentSettings
from proto.devices import Device, DeviceUUID
from tests.deviceplugin.gpus import PAIR, A, B, a100
from tests.polling import until

FOUND = Inventory(devices=PAIR)
SLICE = replace(a100(A, 0), uuid="MIG-1", replicas=1)  # type: ignore[arg-type]


async def seen(
    read: Callable[[], Inventory],
    act: Callable[[Gpus], None],
    fact: Callable[[Gpus], bool],
    took: Callable[[float], None] = lambda _: None,
) -> Gpus:
    settings = AgentSettings(node_name="n", read_seconds=3600, retry_seconds=0.01)
    gpus = Gpus(read, OwnThreads("nvml"), Changes(), settings, took=took)
    task = asyncio.create_task(gpus.run())
    try:
        await until(lambda: bool(gpus.inventory.devices) or bool(gpus.problem))
        act(gpus)
        await until(lambda: fact(gpus))
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return gpus


async def test_an_ailing_gpu_is_unhealthy_at_once_and_the_machine_is_read_again() -> None:
    reads = list[int]()

    def read() -> Inventory:
        reads.append(1)
        return FOUND

    gpus = await seen(read, lambda gpus: gpus.set_ailing({A: "XID 79"}), lambda gpus: len(reads) == 2)
    assert gpus.inventory.devices == (replace(PAIR[0], healthy=False), PAIR[1])


async def test_a_gpu_that_proves_well_again_is_healthy_after_its_links_were_read_anew() -> None:
    def act(gpus: Gpus) -> None:
        gpus.set_ailing({A: "XID 79"})
        gpus.set_ailing({})

        assert not gpus.inventory.devices[0].healthy

    gpus = await seen(lambda: FOUND, act, lambda gpus: gpus.inventory.devices[0].healthy)
    assert gpus.inventory.devices == PAIR


async def test_a_driver_that_goes_leaves_its_gpus_unhealthy_and_one_that_returns_heals_them() -> None:
    answers = [FOUND, None, None, FOUND]

    def read() -> Inventory:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer is None:
            raise GpusUnavailable("No driver.")
        return answer

    states = list[tuple[bool, ...]]()

    def watched(gpus: Gpus) -> bool:
        state = tuple(device.healthy for device in gpus.inventory.devices)
        if not states or states[-1] != state:
            states.append(state)
        gpus.set_ailing({})
        return len(states) == 3

    await seen(read, lambda gpus: None, watched)
    assert states == [(True, True), (False, False), (True, True)]


@pytest.mark.parametrize("are_gone", [True, False])
async def test_a_driver_that_cannot_be_asked_says_nothing_of_its_gpus(are_gone: bool) -> None:
    answers: list[Inventory | None] = [None, FOUND]
    states = list[tuple[bool, bool]]()

    def read() -> Inventory:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer is None:
            raise GpusUnavailable("No driver.", are_gone=are_gone)
        return answer

    def watched(gpus: Gpus) -> bool:
        states.extend([] if (gpus.known, gpus.is_blind) in states else [(gpus.known, gpus.is_blind)])
        gpus.set_ailing({})
        return bool(gpus.inventory.devices)

    await seen(read, lambda gpus: None, watched)
    assert ((True, True) in states) is not are_gone
    assert states[-1] == (True, False)


async def test_a_mig_device_that_vanished_stays_unhealthy_under_its_resource() -> None:
    answers = [replace(FOUND, instances={"nvidia.com/mig-1g.5gb": (SLICE,)}), FOUND]
    gpus = await seen(
        lambda: answers.pop(0) if len(answers) > 1 else answers[0],
        lambda gpus: gpus.set_ailing({}),
        lambda gpus: not gpus.inventory.instances["nvidia.com/mig-1g.5gb"][0].healthy,
    )
    assert gpus.inventory.devices == PAIR


def at_places(**devices: Device) -> Inventory:
    """GPUs by their PCI addresses."""
    gpus = {device.uuid: place for place, device in devices.items()}
    return Inventory(devices=tuple(devices.values()), physical=frozenset(gpus), hardware=Hardware(pci_addresses=gpus))


async def after(*answers: Inventory) -> Inventory:
    """What is known after all these readings."""
    left, readings = list(answers), list[float]()

    def fact(gpus: Gpus) -> bool:
        gpus.set_ailing({})
        return len(readings) >= len(answers)

    read = lambda: left.pop(0) if len(left) > 1 else left[0]  # noqa: E731
    return (await seen(read, lambda gpus: None, fact, took=readings.append)).inventory


async def test_a_gpu_is_forgotten_when_a_new_one_is_in_its_place() -> None:
    old, other, new = a100(A, 0), a100(B, 1), replace(a100(A, 0), uuid=DeviceUUID("GPU-new"))
    both, replaced = at_places(one=old, two=other), at_places(one=new, two=other)
    assert (await after(both, replaced)).devices == (new, other)
    assert (await after(both, at_places(two=other), replaced)).devices == (new, other)
    assert (await after(both, replaced, both)).devices == (old, other)


async def test_a_gpu_stays_known_while_its_place_is_empty_or_a_known_one_seems_to_be_there() -> None:
    old, other = a100(A, 0), a100(B, 1)
    ill = replace(old, healthy=False)
    for now in (at_places(two=other), at_places(one=other)):
        assert (await after(at_places(one=old, two=other), now)).devices == (ill, other)


async def test_the_instances_of_a_gpu_go_with_it() -> None:
    instance = {"nvidia.com/mig-1g.5gb": (SLICE,)}
    before = replace(at_places(one=a100(A, 0)), instances=instance, parents={SLICE.uuid: A})
    found = await after(before, at_places(one=replace(a100(A, 0), uuid=DeviceUUID("GPU-new"))))
    assert found.instances == {"nvidia.com/mig-1g.5gb": ()}


@pytest.mark.parametrize(
    ("shown", "problem"),
    [
        (frozenset({A}), "it can no longer be shared; the daemon's log has the reason"),
        (frozenset[DeviceUUID](), "the driver no longer shows it"),
    ],
    ids=["shown", "gone"],
)
async def test_a_gpu_that_is_no_longer_shared_is_called_gone_only_if_the_driver_does_not_show_it(
    shown: frozenset[DeviceUUID], problem: str
) -> None:
    answers = [FOUND, replace(FOUND, devices=PAIR[1:], physical=shown)]
    gpus = await seen(
        lambda: answers.pop(0) if len(answers) > 1 else answers[0],
        lambda gpus: gpus.set_ailing({}),
        lambda gpus: bool(gpus.inventory.problems),
    )
    assert gpus.inventory.problems == {A: problem}


async def test_what_only_a_new_process_can_heal_ends_this_one() -> None:
    def read() -> Inventory:
        raise GpusUnavailable("Driver upgraded.", needs_restart=True)

    gpus = Gpus(read, OwnThreads("nvml"), Changes(), AgentSettings(node_name="n"))
    with pytest.raises(GpusUnavailable, match="upgraded"):
        await gpus.run()


async def test_a_driver_that_hangs_is_told_of_and_no_node_without_gpus(caplog: pytest.LogCaptureFixture) -> None:
    answer = threading.Event()

    def read() -> Inventory:
        answer.wait()
        return FOUND

    gpus = Gpus(read, OwnThreads("nvml"), Changes(), AgentSettings(node_name="n"), silent_seconds=0.01)
    task = asyncio.create_task(gpus.run())
    await until(lambda: "the NVIDIA driver has not answered for 0.01 s, nothing is served" in caplog.text)
    assert not gpus.known
    answer.set()
    await until(lambda: gpus.known)
    assert gpus.inventory == FOUND
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
