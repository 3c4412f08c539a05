import pytest

from proto.annotations.keys import RESOURCE_CORES, RESOURCE_COUNT, RESOURCE_MEMORY, USE_GPU_TYPE
from scheduler_ext.policies import NodePolicy, parse_gpu_policy, read_policies
from simulation import machines
from simulation.choice import explain_choice, links_among
from simulation.workload import MACHINES, SHAPES, Ask, Shape, workload

PAIRS = (("X", "NV12", "SYS"), ("NV12", "X", "SYS"), ("SYS", "SYS", "X"))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_every_shape_is_understood_without_a_warning(shape: Shape) -> None:
    policies = read_policies(dict(shape.annotations), NodePolicy.BINPACK, parse_gpu_policy("spread"))
    assert policies.warnings == ()


def test_every_machine_of_the_demo_is_described() -> None:
    assert set(MACHINES) <= set(machines.names())


def test_pods_have_a_name_of_their_own_in_every_round() -> None:
    names = [name for name, _ in workload(3 * len(SHAPES) + 1)]
    assert len(set(names)) == len(names)
    assert names[-1] == f"{SHAPES[0].name}-4"


def test_one_shape_cannot_fit() -> None:
    assert [shape.name for shape in SHAPES if not shape.fits] == ["too-big"]


def test_a_resource_that_is_not_asked_for_is_left_out() -> None:
    assert Ask(name="plain").limits() == {}
    limits = Ask(name="share", gpus=1, memory_mib=5, cores=0).limits()
    assert limits == {RESOURCE_COUNT: "1", RESOURCE_MEMORY: "5", RESOURCE_CORES: "0"}


def test_topology_aware_names_the_links_among_the_chosen() -> None:
    annotations = {"hami.io/gpu-scheduler-policy": "topology-aware"}
    assert explain_choice(annotations, [(0, 1)], PAIRS) == "best-linked node, NV12 among both"
    assert links_among((0, 1, 2), PAIRS) == "SYS and NV12 among all 3"


def test_the_policies_in_force_and_the_selector_are_named() -> None:
    annotations = {"hami.io/node-scheduler-policy": "spread", USE_GPU_TYPE: "RTX 4090"}
    assert explain_choice(annotations, [(0,)], PAIRS) == "spread node, spread GPU, only RTX 4090"
    assert explain_choice({}, [(), (2,)], PAIRS) == "binpack node, spread GPU"


def test_a_pod_without_gpus_has_no_choice_to_explain() -> None:
    assert explain_choice({}, [()], PAIRS) == ""
