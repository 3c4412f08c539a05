import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from deviceplugin.mode.trial import ChosenMode, ModeOutdated, choose_allocation, confirm
from deviceplugin.records.memory import Memory
from deviceplugin.slots.files import SlotFiles
from proto.annotations.keys import NODE_ALLOCATION
from proto.annotations.node_allocation import AllocationMode
from proto.kubernetes.objects import Node
from tests.builders import node
from tests.deviceplugin.gpus import NODE
from tests.deviceplugin.slots.slot_rig import SlotRig, slots
from tests.polling import until

REMEMBERED = Memory(
    node=NODE, boot="b007", mode=AllocationMode.SLOTS, kubelet="v1.36.0", runtime="containerd://2.4.2", gpus=(), pods=()
)


def known(*, annotated: str = "", kubelet: str = "v1.36.0") -> Node:
    annotations = {NODE_ALLOCATION: annotated} if annotated else {}
    return node(NODE, annotations=annotations, kubelet=kubelet, runtime="containerd://2.4.2")


@asynccontextmanager
async def choosing() -> AsyncIterator[tuple[SlotRig, "asyncio.Task[ChosenMode]"]]:
    async with slots() as rig:
        files = SlotFiles(str(rig.directory))
        chosen = choose_allocation(rig.sources, files, rig.kubelet, pause_seconds=0.01)
        task = asyncio.create_task(chosen)
        yield rig, task
        task.cancel()


def show(rig: SlotRig, shown: Node) -> None:
    rig.own.node = shown
    rig.changes.announce()


async def nothing_new(rig: SlotRig) -> None:
    """Whoever waits for changes has looked twice, and waits again."""
    for _ in range(2):
        await asyncio.sleep(0)
        rig.changes.announce()
    await asyncio.sleep(0)


async def test_nothing_is_chosen_before_the_node_is_known() -> None:
    async with choosing() as (rig, chosen):
        await nothing_new(rig)
        assert not chosen.done()
        show(rig, known())
        assert (await chosen).mode is AllocationMode.SLOTS
        assert rig.specs() == []


async def test_a_kubelet_that_answers_a_moment_later_is_waited_for() -> None:
    async with choosing() as (rig, chosen):
        rig.kubelet.listed_now = None
        show(rig, known())
        await until(lambda: rig.kubelet.asked >= 2)
        rig.kubelet.listed_now = []
        assert (await chosen).mode is AllocationMode.SLOTS


async def test_a_kubelet_that_never_answers_makes_it_immediate() -> None:
    async with choosing() as (rig, chosen):
        rig.kubelet.listed_now = None
        show(rig, known())
        assert await chosen == ChosenMode(
            AllocationMode.IMMEDIATE,
            "Allocation is immediate: kubelet's pod-resources cannot be asked (connection refused).",
        )


async def test_a_folder_that_cannot_be_written_makes_it_immediate_unless_slots_are_in_use() -> None:
    for annotated, mode in (("", AllocationMode.IMMEDIATE), ("slots", AllocationMode.SLOTS)):
        async with choosing() as (rig, chosen):
            rig.directory.write_text("in the way")
            show(rig, known(annotated=annotated))
            assert (await chosen).mode is mode
            assert f"the CDI folder {rig.directory} cannot be written" in (await chosen).sentence


async def test_an_old_kubelet_is_told_from_its_version_and_nothing_is_tried() -> None:
    async with choosing() as (rig, chosen):
        show(rig, known(kubelet="v1.28.3"))
        assert (await chosen).mode is AllocationMode.IMMEDIATE
        assert not rig.directory.exists()


async def test_what_was_remembered_counts_only_while_the_api_server_does_not_answer() -> None:
    async with slots() as rig:
        choosing = asyncio.create_task(
            choose_allocation(rig.sources, SlotFiles(str(rig.directory)), rig.kubelet, recall=lambda: REMEMBERED)
        )
        await nothing_new(rig)
        assert not choosing.done()
        show(rig, known())
        assert (await choosing).memory is None


async def test_a_node_that_tells_of_another_runtime_after_an_outage_is_served_by_another_process() -> None:
    async with slots() as rig:
        chosen = ChosenMode(AllocationMode.SLOTS, "", REMEMBERED)
        rig.own.node = known()
        await confirm(rig.sources, chosen, REMEMBERED)
        rig.own.node = known(kubelet="v1.27.0")
        with pytest.raises(ModeOutdated, match=r"other versions than were remembered\. Allocation is immediate: "):
            await confirm(rig.sources, chosen, REMEMBERED)
