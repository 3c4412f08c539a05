"""The daemon as a process on a node without HAMi-core, between an API server and a kubelet that runs containers."""

import pytest

from proto.annotations.keys import NODE_LIMITS
from proto.devices import DeviceShare
from tests.deviceplugin.daemon_rig import daemon
from tests.deviceplugin.registration import eventually, until

pytestmark = pytest.mark.needs_compiler

BY_SLOTS = "containerd://2.4.2"


async def test_a_container_with_a_part_of_a_gpu_is_not_started_and_one_with_a_whole_gpu_is() -> None:
    async with daemon(runtime_version=BY_SLOTS, hook=False) as node:
        assert node.annotation(NODE_LIMITS) == "none"
        whole = DeviceShare(uuid=node.uuid(1), memory_mib=node.gpus()[1].memory_mib, cores=100)
        node.bind("part", 0)
        uid = node.bind("whole", lent=((whole,),))
        await node.runs("whole")
        assert node.visible(uid) == node.uuid(1)
        await until(lambda: "container c0 was given a part of" in node.waiting("part"))
        assert "set the daemon's unenforced_shares to allow" in node.waiting("part")
        assert node.said("pods that ask for a part of a GPU are refused here")
        series = await node.series()
        assert (series["topogpu_limits_enforced"], series["topogpu_unenforced_shares_allowed"]) == (0, 0)


async def test_it_is_started_if_that_is_allowed_and_then_everything_says_so() -> None:
    async with daemon("--unenforced-shares", "allow", runtime_version=BY_SLOTS, hook=False) as node:
        assert node.annotation(NODE_LIMITS) == "unenforced"
        node.bind("part", 0)
        await node.runs("part")
        assert node.said("nothing holds containers to their part of a GPU")
        await until(lambda: node.events("LimitsNotEnforced"))
        await eventually(lambda: node.counts("topogpu_unenforced_shares_allowed"))
