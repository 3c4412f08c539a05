from dataclasses import replace

from deviceplugin.inventory import Inventory
from deviceplugin.node.announcing import notices
from proto.kubernetes.objects import Notice
from tests.deviceplugin.gpus import PAIR, A

WELL = Inventory(devices=PAIR)
ILL = Inventory(devices=(replace(PAIR[0], healthy=False), PAIR[1]), problems={A: "XID 79"})


def told(before: Inventory, after: Inventory) -> list[Notice]:
    return list(notices(before, after))


def test_a_gpu_that_falls_ill_and_recovers_is_told_of_once_each() -> None:
    ill = Notice(reason="GPUUnhealthy", message=f"GPU 0 ({A}) is unhealthy: XID 79", distinct=True)
    well = Notice(reason="GPUHealthy", message=f"GPU 0 ({A}) is healthy again", warning=False, distinct=True)
    assert told(WELL, ILL) == [ill]
    assert told(ILL, ILL) == []
    assert told(ILL, WELL) == [well]


def test_a_daemon_that_starts_tells_of_what_is_ill_and_not_of_what_is_well() -> None:
    assert told(Inventory(), WELL) == []
    assert [notice.reason for notice in told(Inventory(), ILL)] == ["GPUUnhealthy"]


def test_a_pair_that_comes_to_disagree_is_told_of() -> None:
    odd = replace(WELL, disagreements=("GPUs 0 and 1: 4 links there, 2 back",))
    assert told(WELL, odd) == [
        Notice(reason="AsymmetricGPUP2PLink", message="GPUs 0 and 1: 4 links there, 2 back", distinct=True)
    ]
    assert told(odd, odd) == []
