"""Parts of a GPU on nodes where nothing holds a container to its part."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from proto.annotations.node_limits import NodeLimits
from proto.devices import DeviceUUID
from proto.environment import DISABLE_CONTROL
from proto.kubernetes.objects import Container, EnvVar, Pod
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage
from scheduler_ext.decide.decision import Decision, decide
from scheduler_ext.decide.explain import explain
from scheduler_ext.decide.misfit import refusals_of
from scheduler_ext.requests import RequestSettings
from scheduler_ext.settings import BypassMode
from tests.builders import container, pod
from tests.scheduler_ext.gpus import GIB, device, request, snapshot
from tests.scheduler_ext.mig_gpus import mig_device

WHOLE = 40 * GIB


def decided(
    wanted: Pod,
    limits: NodeLimits,
    gpus: Sequence[GpuUsage] = (GpuUsage(device(0)), GpuUsage(device(1))),
    settings: RequestSettings | None = None,
) -> Decision:
    node = RegisteredNode(name="n", devices=tuple(gpu.device for gpu in gpus), limits=limits)
    return decide(request(wanted, settings), snapshot(NodeUsage(node=node, gpus=tuple(gpus))), ["n"])


@pytest.mark.parametrize(
    ("asked", "is_part"),
    [
        pytest.param(container(gpu=1), False, id="a GPU and nothing beside"),
        pytest.param(container(gpu=1, gpucores=100), False, id="as the webhook completes it"),
        pytest.param(container(gpu=2, gpumem_percentage=100), False, id="all its memory in percent"),
        pytest.param(container(gpu=1, gpumem=WHOLE, gpucores=0), False, id="all its memory in MiB"),
        pytest.param(container(gpu=1, gpumem=WHOLE - 1), True, id="a MiB less"),
        pytest.param(container(gpu=1, gpumem_percentage=99), True, id="a percent less"),
        pytest.param(container(gpu=1, gpucores=99), True, id="part of the cores"),
        pytest.param(container(gpu=1, gpumem=1000, gpucores=100), True, id="all cores, part of the memory"),
    ],
)
def test_a_part_of_a_gpu_is_refused_where_nothing_limits_and_a_whole_one_never(asked: Container, is_part: bool) -> None:
    assert (decided(pod(asked), NodeLimits.NONE).node is None) == is_part
    others = (NodeLimits.HAMI_CORE, NodeLimits.PARTLY_ENFORCED, NodeLimits.UNENFORCED)
    assert [decided(pod(asked), limits).node for limits in others] == ["n", "n", "n"]


@pytest.mark.parametrize(
    ("asked", "is_held"),
    [
        pytest.param(container(gpu=2), True, id="whole GPUs"),
        pytest.param(container(gpu=2, gpumem=WHOLE, gpucores=100), True, id="all of each"),
        pytest.param(container(gpu=2, gpumem=1000), False, id="part of the memory"),
        pytest.param(container(gpu=2, gpumem_percentage=50), False, id="half of the memory"),
        pytest.param(container(gpu=2, gpucores=50), False, id="part of the cores"),
    ],
)
def test_parts_of_several_gpus_are_refused_unless_the_node_allows_what_hami_core_does_not_hold(
    asked: Container, is_held: bool
) -> None:
    assert (decided(pod(asked), NodeLimits.HAMI_CORE).node == "n") == is_held
    assert [decided(pod(asked), limits).node for limits in (NodeLimits.PARTLY_ENFORCED, NodeLimits.UNENFORCED)] == [
        "n",
        "n",
    ]


def test_the_refusal_of_parts_of_several_gpus_says_what_to_do() -> None:
    wanted = pod(container(gpu=2, gpumem=1000))
    decision = decided(wanted, NodeLimits.HAMI_CORE)
    assert refusals_of(decision.misfits).unresolvable == {"n": "CardLimitsNotEnforced(parts of several GPUs)"}
    assert decision.failed["n"] == (
        "2/2 CardLimitsNotEnforced (the node's HAMi-core does not hold a container to parts of several GPUs; ask for "
        "whole GPUs or for one GPU in each container, or add unenforced to limits of its daemon)"
    )
    (line,) = explain(request(wanted), decision)
    assert line.gpus[0].sentence == (
        "GPU 1: nothing holds the container to a part of a GPU: HAMi-core does not hold parts of several GPUs"
    )


@pytest.mark.parametrize(
    ("asked", "by_driver", "by_both"),
    [
        pytest.param(container(gpu=1, gpumem=1000), True, True, id="memory"),
        pytest.param(container(gpu=2, gpumem=1000), True, True, id="memory of several GPUs"),
        pytest.param(container(gpu=1, gpumem=1000, gpucores=30), False, True, id="memory and cores"),
        pytest.param(container(gpu=2, gpucores=30), False, False, id="cores of several GPUs"),
        pytest.param(container(gpu=2), True, True, id="whole GPUs"),
    ],
)
def test_the_driver_holds_memory_of_any_number_of_gpus_and_hami_core_beside_it_the_cores_of_one(
    asked: Container, by_driver: bool, by_both: bool
) -> None:
    found = [decided(pod(asked), limits).node for limits in (NodeLimits.DRIVER, NodeLimits.DRIVER_AND_HAMI_CORE)]
    assert found == ["n" if by_driver else None, "n" if by_both else None]
    allowing = (NodeLimits.DRIVER_UNENFORCED, NodeLimits.DRIVER_PARTLY_ENFORCED)
    assert [decided(pod(asked), limits).node for limits in allowing] == ["n", "n"]


def test_a_variable_of_the_container_lifts_nothing_that_the_driver_holds() -> None:
    memory, cores = container(gpu=1, gpumem=1000), container(gpu=1, gpumem=1000, gpucores=30)
    memory.env = cores.env = [EnvVar(name=DISABLE_CONTROL, value="true")]
    assert decided(pod(memory), NodeLimits.DRIVER).node == "n"
    for limits in (NodeLimits.DRIVER_AND_HAMI_CORE, NodeLimits.DRIVER_PARTLY_ENFORCED):
        assert [decided(pod(asked), limits).node for asked in (memory, cores)] == ["n", None]


def test_the_refusal_of_cores_where_only_the_driver_holds_parts_says_what_to_do() -> None:
    wanted = pod(container(gpu=1, gpumem=1000, gpucores=30))
    decision = decided(wanted, NodeLimits.DRIVER)
    assert refusals_of(decision.misfits).unresolvable == {"n": "CardLimitsNotEnforced(no HAMi-core for cores)"}
    assert decision.failed["n"] == (
        "2/2 CardLimitsNotEnforced (the node's driver holds containers to memory, and no HAMi-core holds them to "
        "cores; ask for memory and no cores, install HAMi-core there, or add unenforced to limits of its daemon)"
    )
    (line,) = explain(request(wanted), decision)
    assert line.gpus[0].sentence == ("GPU 1: nothing holds the container to a part of a GPU: the driver holds no cores")


def test_two_containers_may_have_a_part_of_a_gpu_each() -> None:
    assert decided(
        pod(container("a", gpu=1, gpumem=1000), container("b", gpu=1, gpumem=1000)), NodeLimits.HAMI_CORE
    ).node


def test_of_gpus_of_two_sizes_several_are_taken_only_whole() -> None:
    large, small = [GpuUsage(device(n, memory_mib=2 * WHOLE)) for n in (0, 1)], [GpuUsage(device(n)) for n in (2, 3)]
    decision = decided(pod(container(gpu=2, gpumem=WHOLE)), NodeLimits.HAMI_CORE, [*large, *small])
    assert {share.uuid for share in decision.shares[0]} == {"G2", "G3"}


def test_the_refusal_says_what_to_do_and_evicting_others_is_no_way_out() -> None:
    full = [GpuUsage(device(n), 10, WHOLE, 100) for n in range(2)]
    decision = decided(pod(container(gpu=1, gpumem=1000)), NodeLimits.NONE, full)
    failed, unresolvable = refusals_of(decision.misfits)
    assert (failed, unresolvable) == ({}, {"n": "CardLimitsNotEnforced(no HAMi-core)"})
    assert decision.failed["n"] == (
        "2/2 CardLimitsNotEnforced (neither driver nor HAMi-core of the node holds containers to a part of a GPU; ask "
        "for whole GPUs, install HAMi-core or a driver of release 615 there, or add unenforced to limits of its daemon)"
    )
    (line,) = explain(request(pod(container(gpu=1, gpumem=1000))), decision)
    assert line.gpus[0].sentence == "GPU 1: nothing holds the container to a part of a GPU"


@pytest.mark.parametrize(
    ("switch", "turns_off"),
    [
        (EnvVar(name=DISABLE_CONTROL, value="true"), True),
        (EnvVar(name=DISABLE_CONTROL, value_from={"configMapKeyRef": {"name": "settings", "key": "control"}}), True),
        (EnvVar(name=DISABLE_CONTROL, value="false"), False),
        (EnvVar(name="OTHER", value="true"), False),
    ],
)
def test_a_container_that_turns_its_limits_off_gets_whole_gpus_only(switch: EnvVar, turns_off: bool) -> None:
    part, whole = container(gpu=1, gpumem=1000), container(gpu=1)
    part.env = whole.env = [switch]
    decision = decided(pod(part), NodeLimits.HAMI_CORE)
    assert (decision.node is None) == turns_off
    assert decided(pod(whole), NodeLimits.HAMI_CORE).node == "n"
    assert (decided(pod(part), NodeLimits.PARTLY_ENFORCED).node is None) == turns_off
    assert decided(pod(part), NodeLimits.UNENFORCED).node == "n"
    if turns_off:
        assert refusals_of(decision.misfits).unresolvable["n"] == "CardLimitsNotEnforced(CUDA_DISABLE_CONTROL)"
        assert decision.failed["n"].startswith("2/2 CardLimitsNotEnforced (CUDA_DISABLE_CONTROL of the")
        (line,) = explain(request(pod(part)), decision)
        assert line.gpus[0].sentence.endswith("a part of a GPU: the container's CUDA_DISABLE_CONTROL lifts its limits")


@pytest.mark.parametrize(
    ("variable", "denied", "audited"),
    [
        ("CUDA_DEVICE_MEMORY_LIMIT_a,b", "CardLimitsNotEnforced(CUDA_DEVICE_MEMORY_LIMIT)", ""),
        ("GPU_CORE_UTILIZATION_POLICY", "CardLimitsNotEnforced(GPU_CORE_UTILIZATION_POLICY)", ""),
        (DISABLE_CONTROL, *(["CardLimitsNotEnforced(CUDA_DISABLE_CONTROL)"] * 2)),
    ],
)
def test_where_variables_are_only_warned_of_one_without_hami_core_gets_no_part(
    variable: str, denied: str, audited: str
) -> None:
    part = container(gpu=1, gpumem=1000)
    part.env = [EnvVar(name=variable, value="disable")]
    for mode, brief in ((BypassMode.DENY, denied), (BypassMode.AUDIT, audited)):
        settings = RequestSettings(deny_bypass=mode)
        misfits = decided(pod(part), NodeLimits.HAMI_CORE, settings=settings).misfits
        assert {node: each.brief for node, each in misfits.items()} == ({"n": brief} if brief else {})


def test_what_is_a_part_of_a_large_gpu_may_be_all_of_a_small_one() -> None:
    large, small = GpuUsage(device(0, memory_mib=2 * WHOLE)), GpuUsage(device(1))
    decision = decided(pod(container(gpu=1, gpumem=WHOLE)), NodeLimits.NONE, [large, small])
    assert [share.uuid for share in decision.shares[0]] == ["G1"]


def test_the_hardware_holds_containers_to_mig_instances() -> None:
    instance = replace(device(0, replicas=1), uuid=DeviceUUID("MIG-0"))
    assert decided(pod(container(gpu=1, gpumem=1000, gpucores=10)), NodeLimits.NONE, [GpuUsage(instance)]).node == "n"
    assert decided(pod(container(gpu=1, gpumem=1000)), NodeLimits.NONE, [GpuUsage(mig_device(0))]).node == "n"


def test_a_whole_gpu_for_one_container_and_a_part_for_another_is_refused_as_a_whole() -> None:
    both = pod(container("a", gpu=1), container("b", gpu=1, gpumem=1000))
    assert decided(both, NodeLimits.NONE).node is None
