from dataclasses import replace

import pytest

from proto.annotations import keys
from proto.kubernetes.objects import Pod
from scheduler_ext.cluster.snapshot import GpuUsage
from scheduler_ext.decide.decision import decide
from scheduler_ext.decide.misfit import NotOffered, is_unresolvable
from tests.builders import container, pod
from tests.scheduler_ext.gpus import device, request, snapshot, usage
from tests.scheduler_ext.mig_gpus import mig_device

FULL = GpuUsage(device(0), 10, 40960, 100)
SICK = GpuUsage(replace(device(1), healthy=False))
PAIR = pod(container(gpu=2, gpumem=1000))


@pytest.mark.parametrize(
    ("gpus", "wanted", "unresolvable"),
    [
        ([FULL, FULL], PAIR, False),
        ([FULL], PAIR, True),
        ([FULL, SICK], PAIR, True),
        ([FULL, SICK], pod(container(gpu=1)), False),
        ([FULL], pod(container(gpu=1, gpumem=40960)), False),
        ([FULL], pod(container(gpu=1, gpumem=40961)), True),
        ([FULL], pod(container(gpu=1), annotations={keys.USE_GPU_TYPE: "H100"}), True),
        ([FULL], pod(container(gpu=1), annotations={keys.USE_GPU_UUID: "G7"}), True),
        ([GpuUsage(mig_device(0), 7)], pod(container(gpu=2, gpumem=4000)), False),
    ],
)
def test_evicting_helps_where_enough_gpus_could_ever_serve_the_pod(
    gpus: list[GpuUsage], wanted: Pod, unresolvable: bool
) -> None:
    decision = decide(request(wanted), snapshot(usage("n", gpus)), ["n"])
    assert is_unresolvable(decision.misfits["n"]) == unresolvable


def test_a_node_that_offers_nothing_is_unresolvable() -> None:
    assert is_unresolvable(NotOffered("node unregistered"))
