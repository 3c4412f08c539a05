import pytest

from deviceplugin.container.own_variables import outdone, unreplaced
from proto.kubernetes.objects import EnvVar
from tests.deviceplugin.gpus import A

LIMIT = "CUDA_DEVICE_MEMORY_LIMIT_0"
GIVEN = {"NVIDIA_VISIBLE_DEVICES": A, "NVIDIA_GDS": "disabled", LIMIT: "1000m", "LIBCUDA_LOG_LEVEL": "1"}
ELSEWHERE = {"configMapKeyRef": {"name": "m", "key": "k"}}
REPLACES, ADDS = "would replace what this node gives it", "would get it past what was decided for it"


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        (EnvVar(name="NVIDIA_VISIBLE_DEVICES", value="all"), REPLACES),
        (EnvVar(name="NVIDIA_VISIBLE_DEVICES", value="void"), REPLACES),
        (EnvVar(name="NVIDIA_VISIBLE_DEVICES", value_from=ELSEWHERE), REPLACES),
        (EnvVar(name=LIMIT, value="80000m"), REPLACES),
        (EnvVar(name="NVIDIA_GDS", value="enabled"), REPLACES),
        (EnvVar(name="NVIDIA_NVSWITCH", value="enabled"), ADDS),
        (EnvVar(name="NVIDIA_IMEX_CHANNELS", value="$(CHANNELS)"), ADDS),
    ],
)
def test_a_variable_of_the_pod_that_wins_over_the_nodes_is_named(variable: EnvVar, words: str) -> None:
    found = outdone("main", [EnvVar(name="HOME", value="/"), variable], GIVEN, limited=False)
    assert found == f"container main sets {variable.name} itself, which {words}; remove it from the pod"


@pytest.mark.parametrize(
    "variable",
    [
        EnvVar(name="CUDA_DISABLE_CONTROL", value_from=ELSEWHERE),
        EnvVar(name="GPU_CORE_UTILIZATION_POLICY", value="disable"),
        EnvVar(name="CUDA_DEVICE_MEMORY_LIMIT", value="80000m"),
        EnvVar(name="NVIDIA_GPU_MEMORY_REQUEST", value="80000"),
    ],
)
def test_only_a_container_that_must_be_limited_may_not_lift_limits(variable: EnvVar) -> None:
    for judge in (outdone, unreplaced):
        assert judge("main", [variable], {}, limited=True).startswith(f"container main sets {variable.name} itself")
        assert judge("main", [variable], {}, limited=False) == ""


def test_a_slot_replaces_what_it_gives_and_nothing_else() -> None:
    own = [EnvVar(name=name, value="1") for name in ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_GDS", LIMIT)]
    assert unreplaced("main", own, GIVEN, limited=True) == ""
    other = EnvVar(name="CUDA_DEVICE_MEMORY_LIMIT_9", value="1")
    assert "CUDA_DEVICE_MEMORY_LIMIT_9" in unreplaced("main", [*own, other], GIVEN, limited=True)


def test_what_the_node_says_too_and_what_opens_nothing_may_stand_in_the_pod() -> None:
    same = [EnvVar(name=LIMIT, value="1000m"), EnvVar(name="NVIDIA_VISIBLE_DEVICES", value=A)]
    harmless = [
        EnvVar(name="LIBCUDA_LOG_LEVEL", value="4"),
        EnvVar(name="NVIDIA_GDS"),
        EnvVar(name="CUDA_DISABLE_CONTROL", value="0"),
        EnvVar(name="LD_PRELOAD", value="/usr/lib/libjemalloc.so"),
        EnvVar(name="CUDA_VERSION", value="12.9"),
    ]
    given = {**GIVEN, "CUDA_DISABLE_CONTROL": "false"}
    assert outdone("main", [*same[1:], *harmless], given, limited=True) == ""
    assert outdone("main", same, given, limited=False) == ""


def test_gpus_named_by_cdi_alone_are_not_joined_by_those_of_the_environment() -> None:
    every = [EnvVar(name="NVIDIA_VISIBLE_DEVICES", value="all")]
    assert "NVIDIA_VISIBLE_DEVICES" in outdone("main", every, {LIMIT: "1000m"}, limited=False)
    none = [EnvVar(name="NVIDIA_VISIBLE_DEVICES", value="void")]
    assert outdone("main", none, {"NVIDIA_VISIBLE_DEVICES": "void"}, limited=False) == ""
