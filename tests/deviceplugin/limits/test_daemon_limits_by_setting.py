"""What holds parts of GPUs by setting and driver, and what containers keep when these change."""

import json

import pytest
from msgspec.structs import replace

from deviceplugin.container.edits import CDI_KIND
from proto.annotations.keys import NODE_LIMITS
from proto.devices import DeviceShare
from tests.deviceplugin.daemon_rig import BRIDGED, DaemonRig
from tests.deviceplugin.limits.limiting import bind, held, libraries, limiting, part, with_driver
from tests.polling import until
from tests.variables import value

pytestmark = pytest.mark.needs_compiler


def whole(node: DaemonRig, gpu: int) -> DeviceShare:
    return DeviceShare(uuid=node.uuid(gpu), memory_mib=node.gpus()[gpu].memory_mib, cores=100)


async def restart(node: DaemonRig, limits: str, word: str) -> None:
    """Starts the daemon with another setting; the Node then names these backends."""
    await node.kill()
    node.options = (*node.options, "--limits", limits)
    await node.start()
    await until(lambda: node.annotation(NODE_LIMITS) == word)
    await node.ready()


async def test_cores_are_refused_where_the_driver_is_alone_and_a_whole_gpu_needs_nothing() -> None:
    async with limiting() as node:
        assert node.annotation(NODE_LIMITS) == "driver"
        node.bind("cores", lent=((part(node, 0, 3000, 30),),))
        entire = node.bind("whole", lent=((whole(node, 1),),))
        lifting = node.bind("lifting", lent=((part(node, 2),),), env=[value("CUDA_DISABLE_CONTROL", "true")])
        await node.runs("whole", "lifting")
        await until(lambda: "the driver holds no cores" in node.waiting("cores"))
        assert (held(node, entire), held(node, lifting)) == ({}, {node.uuid(2): 3000})


@pytest.mark.parametrize(
    ("flags", "driver", "word", "why"),
    [
        pytest.param(("--limits", "driver"), "580.95", "none", "the driver is 580.95, and limits by", id="not there"),
        pytest.param(("--allocation", "immediate"), "615.10", "hami-core", "", id="immediate allocation"),
    ],
)
async def test_the_node_says_which_backends_hold_parts(
    flags: tuple[str, ...], driver: str, word: str, why: str
) -> None:
    async with limiting(*flags, driver=driver, hami_core=True) as node:
        assert node.annotation(NODE_LIMITS) == word
        await until(lambda: not why or node.said(why))


async def test_running_containers_keep_what_held_them_when_the_setting_changes() -> None:
    """The memory that the driver reserves is offered only where the driver holds no newcomer."""
    total = BRIDGED.gpus[0].memory_mib
    machine = replace(with_driver("615.10"), gpus=tuple(replace(each, reserved_mib=600) for each in BRIDGED.gpus))
    async with limiting("--limits", "hami-core", hami_core=True, description=machine) as node:
        assert [gpu.memory_mib for gpu in node.gpus()] == [total] * 4
        by_library, entire = bind(node, "library", 0), node.bind("whole", lent=((whole(node, 3),),))
        await node.runs("library", "whole")
        await restart(node, "driver", "driver")
        assert [gpu.memory_mib for gpu in node.gpus()] == [total - 600] * 4
        by_driver = bind(node, "driver", 1)
        await node.runs("driver")
        for uid in (by_library, entire):
            await node.kubelet.restart_container(uid, "c0")
        assert [bool(libraries(node, uid)) for uid in (by_library, by_driver, entire)] == [True, False, False]
        assert [held(node, uid) for uid in (by_library, entire)] == [{}, {}]
        await restart(node, "none", "none")
        assert [gpu.memory_mib for gpu in node.gpus()] == [total] * 4
        await node.kubelet.restart_container(by_driver, "c0")
        assert held(node, by_driver) == {node.uuid(1): 3000}
        bind(node, "newcomer", 2)
        await until(lambda: "the driver does not (the setting limits" in node.waiting("newcomer"))


async def test_a_container_that_hami_core_holds_after_the_driver_is_not_the_drivers_any_more() -> None:
    async with limiting(hami_core=True) as node:
        uid = bind(node, "part", 0)
        await node.runs("part")
        await node.kill()
        node.description = with_driver("580.95")
        node.machine()
        await node.start()
        await until(lambda: node.annotation(NODE_LIMITS) == "hami-core")
        await node.ready()
        await node.kubelet.restart_container(uid, "c0")
        assert libraries(node, uid)
        assert not list(node.cdi.glob("*/*_c0"))
        assert (await node.series())["topogpu_memory_limits_lost"] == 0


async def test_nvidias_hook_stays_only_where_it_sets_the_limits_because_an_image_may_have_its_variables() -> None:
    async with limiting("--device-list-strategy", "cdi-cri") as node:
        write_nvidias_spec(node)
        uids = [
            node.bind_shares("equal", ((part(node, 0), part(node, 1)),)),
            node.bind_shares("unequal", ((part(node, 0, 3000), part(node, 1, 5000)),)),
            node.bind("whole", lent=((whole(node, 2),),)),
        ]
        await node.runs("equal", "unequal", "whole")
        hooks = [[hook.path for hook in node.kubelet.created[uid][0].hooks] for uid in uids]
        assert hooks == [["/bin/true", "/bin/true"], ["/bin/sh"], ["/bin/true"]]
        assert [node.env(uid).get("NVIDIA_GPU_MEMORY_LIMIT") for uid in uids] == ["3000", "3000", None]
        assert held(node, uids[1]) == {node.uuid(0): 3000, node.uuid(1): 5000}


def write_nvidias_spec(node: DaemonRig) -> None:
    """The GPUs as NVIDIA's toolkit describes them, with its hook."""
    devices = []
    for gpu in range(len(node.description.gpus)):
        words = ["nvidia-cdi-hook", "apply-cuda-memory-limits", "--gpu-id", node.uuid(gpu)]
        hook = {"hookName": "createRuntime", "path": "/bin/true", "args": words}
        devices.append({"name": node.uuid(gpu), "containerEdits": {"hooks": [hook]}})
    spec = {"cdiVersion": "0.7.0", "kind": CDI_KIND, "devices": devices}
    (node.cdi / "nvidia.json").write_text(json.dumps(spec))
