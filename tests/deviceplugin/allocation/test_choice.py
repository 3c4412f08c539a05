import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from deviceplugin.allocation.choice import choose_allocation
from deviceplugin.allocation.slot_files import SlotFiles
from deviceplugin.reporting import AllocationMode
from deviceplugin.settings import AgentSettings
from proto.annotations.keys import NODE_ALLOCATION
from proto.kubernetes.objects import Node, NodeInfo, NodeStatus, ObjectMeta
from tests.deviceplugin.allocation.slot_rig import SlotRig, slots
from tests.deviceplugin.gpus import NODE
from tests.deviceplugin.registration import until

SETTINGS = AgentSettings(node_name=NODE)


def node(*, annotated: str = "", kubelet: str = "v1.36.0") -> Node:
    info = NodeInfo(kubelet_version=kubelet, container_runtime_version="containerd://2.4.2")
    annotations = {NODE_ALLOCATION: annotated} if annotated else {}
    return Node(metadata=ObjectMeta(name=NODE, annotations=annotations), status=NodeStatus(node_info=info))


@asynccontextmanager
async def choosing() -> AsyncIterator[tuple[SlotRig, "asyncio.Task[tuple[AllocationMode, str]]"]]:
    async with slots() as rig:
        files = SlotFiles(str(rig.directory))
        chosen = choose_allocation(rig.own, rig.news, SETTINGS, files, rig.kubelet, pause_seconds=0.01)
        task = asyncio.create_task(chosen)
        yield rig, task
        task.cancel()


def show(rig: SlotRig, shown: Node) -> None:
    rig.own.node = shown
    rig.news.tell()


async def test_nothing_is_chosen_before_the_node_is_known() -> None:
    async with choosing() as (rig, chosen):
        await asyncio.sleep(0.01)
        assert not chosen.done()
        show(rig, node())
        assert (await chosen)[0] is AllocationMode.SLOTS
        assert rig.specs() == []


async def test_a_kubelet_that_answers_a_moment_later_is_waited_for() -> None:
    async with choosing() as (rig, chosen):
        rig.kubelet.listed_now = None
        show(rig, node())
        await until(lambda: rig.kubelet.asked >= 2)
        rig.kubelet.listed_now = []
        assert (await chosen)[0] is AllocationMode.SLOTS


async def test_a_kubelet_that_never_answers_makes_it_immediate() -> None:
    async with choosing() as (rig, chosen):
        rig.kubelet.listed_now = None
        show(rig, node())
        assert await chosen == (
            AllocationMode.IMMEDIATE,
            "Allocation is immediate: kubelet's pod-resources cannot be asked (connection refused).",
        )


async def test_a_folder_that_cannot_be_written_makes_it_immediate_unless_slots_are_in_use() -> None:
    for annotated, mode in (("", AllocationMode.IMMEDIATE), ("slots", AllocationMode.SLOTS)):
        async with choosing() as (rig, chosen):
            rig.directory.write_text("in the way")
            show(rig, node(annotated=annotated))
            assert (await chosen)[0] is mode
            assert f"the CDI folder {rig.directory} cannot be written" in (await chosen)[1]


async def test_an_old_kubelet_is_told_from_its_version_and_nothing_is_tried() -> None:
    async with choosing() as (rig, chosen):
        show(rig, node(kubelet="v1.28.3"))
        assert (await chosen)[0] is AllocationMode.IMMEDIATE
        assert not rig.directory.exists()
