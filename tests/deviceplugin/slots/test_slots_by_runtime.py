"""Whatever the container runtime does with CDI devices and an image says, a container sees its own GPUs or none."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.container.cdi import SLOT_KIND, cdi_spec
from deviceplugin.container.edits import AllocationSettings, ContainerFacts, DeviceListStrategy, container_edits
from deviceplugin.plugin_calls import allocate_response
from deviceplugin.slots.slot import NOT_APPLIED, applied, named
from proto.kubernetes.objects import Container
from simulation.kubelet.container import CdiOrder, CdiSpec, RuntimeManner, create_container
from tests.deviceplugin.daemon_rig import daemon
from tests.deviceplugin.gpus import INVENTORY, A, share
from tests.polling import until

IMAGE = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
"""Of every image that is built on NVIDIA's."""


@given(
    st.sampled_from(CdiOrder),
    st.lists(st.sampled_from(DeviceListStrategy), min_size=1, max_size=3, unique=True),
    st.sampled_from(["all", "0", "none", "void", "", "GPU-other"]),
)
def test_no_order_of_cdi_and_environment_lets_an_image_choose_gpus(
    order: CdiOrder, strategies: list[DeviceListStrategy], image: str
) -> None:
    settings = AllocationSettings(strategies=tuple(strategies))
    edits = applied(container_edits((share(A),), INVENTORY, ContainerFacts(pod_uid="u", name="c"), settings, None))
    spec = msgspec.json.decode(msgspec.json.encode(cdi_spec(SLOT_KIND, "s", edits)), type=CdiSpec)
    made = create_container(
        *(Container(name="c"), "app", ["id"], [allocate_response(named("s"))], [spec]),
        manner=RuntimeManner(order=order, image_env={"NVIDIA_VISIBLE_DEVICES": image}),
    )
    given_by_slot = {A, "void", "/var/run/nvidia-container-devices"}
    seen = made.env["NVIDIA_VISIBLE_DEVICES"]
    assert seen in given_by_slot if order is CdiOrder.LAST else seen == NOT_APPLIED


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    ("runtime", "order", "flags"),
    [
        ("cri-o://1.33.2", CdiOrder.FIRST, ()),
        ("containerd://1.7.29", CdiOrder.NEVER, ()),
        ("containerd://2.2.1", CdiOrder.NEVER, ()),
    ],
)
async def test_a_runtime_that_might_leave_the_slot_out_is_served_immediately(
    runtime: str, order: CdiOrder, flags: tuple[str, ...]
) -> None:
    async with daemon(*flags, runtime_version=runtime, cdi_order=order, image_env=IMAGE) as node:
        assert not node.is_by_slots()
        uid = node.bind("p", 1)
        await node.runs("p")
        assert node.visible(uid) == node.gpus()[1].uuid


@pytest.mark.needs_compiler
async def test_where_slots_are_demanded_and_left_out_the_container_sees_no_gpu() -> None:
    demanded = daemon(
        "--allocation", "slots", runtime_version="containerd://1.7.29", cdi_order=CdiOrder.NEVER, image_env=IMAGE
    )
    async with demanded as node:
        uid = node.bind("p", 1)
        await node.runs("p")
        assert node.visible(uid) == NOT_APPLIED


@pytest.mark.needs_compiler
async def test_a_runtime_whose_cache_lags_never_gives_what_the_ids_meant_before() -> None:
    async with daemon(runtime_version="containerd://2.4.2", cdi_lags=True, image_env=IMAGE) as node:
        for turn in range(6):
            uid = node.bind("p", turn % 4)
            await node.runs("p")
            assert node.visible(uid) == node.gpus()[turn % 4].uuid
            node.server.delete("pods", "p", namespace="default")
            await until(lambda: node.kubelet.devices.held() == ())
