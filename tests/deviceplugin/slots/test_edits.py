"""What a container gets by its slot."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.container.cdi import SLOT_KIND, cdi_spec
from deviceplugin.container.edits import (
    CDI_KIND,
    AllocationSettings,
    DeviceListStrategy,
    DeviceNode,
    Hardware,
    container_edits,
    container_facts,
)
from deviceplugin.plugin_calls import CannotAllocate, allocate_response
from deviceplugin.slots.slot import SPEC_FILE, applied, named
from proto.kubernetes.objects import Container
from simulation.kubelet.container import create_container, decode_cdi_spec
from tests.deviceplugin.agent_rig import write
from tests.deviceplugin.gpus import INVENTORY, A, B, bound_pod, share
from tests.deviceplugin.slots.slot_rig import slots

X = f"{A}-0"
ONE = (share(A),)


async def test_the_edits_of_nvidias_own_specs_are_in_the_slots_spec() -> None:
    settings = AllocationSettings(strategies=(DeviceListStrategy.CDI_CRI, DeviceListStrategy.CDI_ANNOTATIONS))
    async with slots(allocation=settings, hook_path="/nonexistent") as rig:
        pod = bound_pod("p", ((share(A, 40960, 0),),))
        rig.bring(pod)
        rig.kubelet.hold(pod, "c0", X)
        with pytest.raises(CannotAllocate, match=f"defines {CDI_KIND}={A}"):
            await rig.allocator.pre_start([X])
        hami_core = {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["x"]}
        node = {"path": "/dev/nvidia0"}
        spec = {
            "cdiVersion": "0.7.0",
            "kind": CDI_KIND,
            "containerEdits": {"hooks": [hami_core], "deviceNodes": [{"path": "/dev/nvidiactl"}]},
            "devices": [{"name": A, "containerEdits": {"deviceNodes": [node], "additionalGids": [44]}}],
        }
        write(rig.directory / "nvidia.json", json.dumps(spec))
        await rig.allocator.pre_start([X])
        made = json.loads((rig.directory / SPEC_FILE).read_bytes())
        assert made["cdiVersion"] == "0.7.0"
        assert made["devices"][0]["containerEdits"] == {
            "env": [
                "CUDA_DEVICE_MEMORY_LIMIT_0=40960m",
                "CUDA_DEVICE_SM_LIMIT=0",
                "CUDA_DEVICE_SM_LIMIT_0=0",
                "NVIDIA_VISIBLE_DEVICES=void",
            ],
            "hooks": [hami_core],
            "deviceNodes": [{"path": "/dev/nvidiactl"}, node],
            "additionalGids": [44],
        }


PLAIN = st.lists(
    st.sampled_from([DeviceListStrategy.ENVVAR, DeviceListStrategy.VOLUME_MOUNTS]), min_size=1, max_size=2, unique=True
)
SHARES = st.builds(
    lambda gpus, memory, cores: tuple(share(gpu, memory, cores) for gpu in gpus),
    st.lists(st.sampled_from([A, B]), min_size=1, max_size=2, unique=True),
    st.integers(0, 40960),
    st.integers(0, 100),
)


@given(SHARES, PLAIN, st.booleans())
def test_a_container_gets_by_its_slot_what_it_would_have_got_at_once(
    shares: tuple[object, ...], strategies: list[DeviceListStrategy], specs: bool
) -> None:
    settings = AllocationSettings(strategies=tuple(strategies), pass_device_specs=specs)
    hardware = Hardware(
        control_nodes=(DeviceNode(path="/dev/nvidiactl"),),
        gpu_nodes={A: (DeviceNode(path="/dev/nvidia0", host_path="/host/dev/nvidia0"),)},
    )
    container = Container(name="c0")
    facts = container_facts("uid-p", container, "nvidia.com/priority")
    edits = container_edits(shares, INVENTORY, facts, settings, None, hardware=hardware)  # type: ignore[arg-type]
    spec = decode_cdi_spec(msgspec.json.encode(cdi_spec(SLOT_KIND, "s", applied(edits))))
    by_slot = create_container(container, "app", [X], [allocate_response(named("s"))], [spec])
    at_once = create_container(container, "app", [X], [allocate_response(edits)], [])
    assert (by_slot.env, by_slot.mounts, by_slot.devices) == (at_once.env, at_once.mounts, at_once.devices)
