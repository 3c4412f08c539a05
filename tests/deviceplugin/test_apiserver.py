"""What the daemon writes of pods, on the embedded API server."""

import pytest

from deviceplugin.allocation.immediate import settlement
from deviceplugin.apiserver import OwnNode
from deviceplugin.news import News
from proto.annotations.bind_phase import BindPhase
from proto.annotations.keys import BIND_PHASE, NODE_LOCK
from proto.kubernetes.objects import PODS
from simulation.apiserver.faults import Fault
from tests.deviceplugin.agent_rig import running
from tests.deviceplugin.gpus import NODE, A, share
from tests.deviceplugin.registration import until

ONE = (share(A),)


@pytest.mark.parametrize(("uid_known", "released"), [(True, True), (False, False)])
async def test_the_lock_of_a_pod_whose_name_another_took_is_released_if_it_is_surely_its_own(
    uid_known: bool, released: bool
) -> None:
    async with running() as rig:
        rig.bind("train", (ONE,))
        gone = await rig.api.get(PODS, "train", "default")
        rig.lock("train", gone.metadata.uid if uid_known else "")
        rig.server.delete("pods", "train", namespace="default")
        rig.bind("train", (ONE,))
        own = OwnNode(rig.api, NODE, News())
        body = settlement(gone, frozenset({0}), BindPhase.SUCCESS, "nvidia.com/gpu")
        await own.settle(gone, body, release=True)
        assert (NODE_LOCK not in rig.annotations("nodes", NODE)) == released
        assert rig.annotations("pods", "train").get(BIND_PHASE) != "success"


async def test_a_pod_is_recorded_although_the_api_server_knows_no_rights_yet() -> None:
    """A kube-apiserver that has just started answers 403 until it has read its roles."""
    async with running() as rig:
        rig.bind("train", (ONE,))
        rig.lock("train")
        rig.server.inject(Fault(verbs=frozenset({"patch"}), resources=frozenset({"pods"}), status=403, times=2))
        await rig.allocate(f"{A}-0")
        await until(lambda: NODE_LOCK not in rig.annotations("nodes", NODE), 5)
        assert rig.annotations("pods", "train")[BIND_PHASE] == "success"
